"""What lab 16 says of keys: exercise 1."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


def draw(c: Choices) -> Given:
    """Any namespace, any number of tokens, small and large ones; some prompts are very long."""
    namespace = c.pick([b"", b"model A, float32", b"model B, bfloat16", bytes(range(32))])
    tokens = c.some(lambda: c.pick([0, 1, 2, 255, 256, 49_151, 2**31]), 0, 24)
    block_size = c.size(1, 8)
    if c.rarely(20):  # thousands of blocks: no recursion goes so deep
        block_size = 1
        tokens *= 4_000 // max(1, len(tokens))
    return Given(namespace, tokens, block_size)


def told(given: Given) -> str:
    """A long prompt by its length."""
    namespace, tokens, block_size = given.args
    ids = tokens if len(tokens) <= 24 else f"({len(tokens)} of them, such as {tokens[0]})"
    return f"namespace {namespace}, token_ids {ids}, block_size {block_size}"


def right_keys(namespace: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """All tokens become bytes at once, and these are cut into blocks."""
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    chain = [namespace]
    for end in range(4 * block_size, len(packed) + 1, 4 * block_size):
        chain.append(hashlib.sha256(chain[-1] + packed[end - 4 * block_size : end]).digest())
    return chain[1:]


def variant(
    namespace: bytes,
    token_ids: Sequence[int],
    block_size: int,
    *,
    chain: str = "keys",
    size: int = 4,
    order: str = "little",
    partial: bool = False,
    text: bool = False,
) -> list[bytes]:
    """The keys with one switch per known mistake. Serves to recognise, never as oracle."""
    keys: list[bytes] = []
    packed = b"".join(t.to_bytes(size, order) for t in token_ids)  # type: ignore[arg-type]
    end = len(token_ids) if partial else len(token_ids) - block_size + 1
    for start in range(0, end, block_size):
        block = token_ids[start : start + block_size]
        parent = keys[-1] if keys and chain == "keys" else namespace
        if chain == "later" and keys:
            parent = keys[-1]
        if chain == "no namespace":
            parent = keys[-1] if keys else b""
        first = 0 if chain == "all tokens" else start
        if chain == "namespace each time":
            parent = namespace + (keys[-1] if keys else b"")
        data = packed[first * size : (start + block_size) * size]
        keys.append(hashlib.sha256(parent + (str(list(block)).encode() if text else data)).digest())
    return keys


CHUNK_KEYS = Contract(
    inputs=draw,
    judge=Returns(right_keys),
    passed="Right: every process that agrees on the namespace finds the same keys.",
    clauses={
        "returns": Clause(
            "The keys are not those that the contract describes. {says}",
            "Namespace, or key before; then 4 bytes for each token of the block, the "
            "lowest byte first; all of it through SHA-256.",
        )
    },
    tell=told,
    mistakes=(
        mistake(
            "Each block is hashed by itself. The same tokens behind other tokens have other "
            "keys and values, and would be found.",
            "Hash the key of the block before, too.",
            lambda n, t, b: variant(n, t, b, chain="none"),
        ),
        mistake(
            "The tokens after the last full block get a key, too. Only full blocks have one.",
            "`range(0, len(token_ids) - block_size + 1, block_size)`.",
            lambda n, t, b: variant(n, t, b, partial=True),
        ),
        mistake(
            "The namespace is left out: keys and values of another model would be found.",
            "The first block is hashed behind the namespace.",
            lambda n, t, b: variant(n, t, b, chain="no namespace"),
        ),
        mistake(
            "You hash all tokens from the first on, in place of the key before. That tells "
            "prefixes apart, but costs more with each block, and others have other keys.",
            "Behind the key of the block before, only the block's own tokens.",
            lambda n, t, b: variant(n, t, b, chain="all tokens"),
        ),
        mistake(
            "The namespace enters each block. It is in the key before already.",
            "Only the first block is hashed behind the namespace itself.",
            lambda n, t, b: variant(n, t, b, chain="namespace each time"),
        ),
        mistake(
            "A token takes 8 bytes in your keys; the contract says 4.",
            "`to_bytes(4, ...)`.",
            lambda n, t, b: variant(n, t, b, size=8),
        ),
        mistake(
            "The bytes of a token are in the other order.",
            "The lowest first: `little`.",
            lambda n, t, b: variant(n, t, b, order="big"),
        ),
        mistake(
            "You hash the tokens as text.",
            "`token.to_bytes(4, 'little')` for each.",
            lambda n, t, b: variant(n, t, b, text=True),
        ),
        mistake(
            "Your keys are text; expected the 32 bytes themselves.",
            "`digest()`.",
            lambda n, t, b: [key.hex() for key in right_keys(n, t, b)],
        ),
    ),
)
