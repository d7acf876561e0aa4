"""Pairs of blocks that are easily confused: exercise 2."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from utils.checks.kit.contracts import Choices, Stage

HASHES: dict[str, Callable[[bytes], bytes]] = {
    "SHA-256": lambda data: hashlib.sha256(data).digest(),
    "xxHash, 16 bytes": xxhash.xxh3_128_digest,
    "SHA-512": lambda data: hashlib.sha512(data).digest(),
    "BLAKE2, 4 bytes": lambda data: hashlib.blake2b(data, digest_size=4).digest(),
}
TOKENS = (1, 23, 5, 255, 256, 300, 0, 55_300, 65_535, 65_536, 99_999, 131_072, 200_000)
OTHER_BITS = (1, 1 << 8, 1 << 16, 1 << 17, 1 << 18)
SAME_CRC = 0x1DB710641  # bits that change no CRC-32 if all of them are flipped
LONG = "customer " + "0" * 60
# Salts that a careless encoding takes for the same one.
ALIKE: tuple[tuple[str | None, str | None], ...] = (
    (None, "ada"),
    ("ada", "bob"),
    (None, ""),
    ("", "ü"),
    ("é", "ü"),
    ("é", "e\u0301"),
    ("日", "本"),
    ("Ada", "ada"),
    ("ada", " ada"),
    ("ada", "ada\0"),
    ("ada", "'ada'"),
    (None, "None"),
    ("7", "07"),
    (LONG + "1", LONG + "2"),
    ("1" + LONG, "2" + LONG),
)
SEPARATORS = ("", ",", "|", " ", "/", ":", ";", "-", "_", "\n", "\0", "', '", '", "', "','", '","')
Extra = tuple[str, ...] | None


@dataclass(frozen=True)
class Block:
    parent: bytes | None
    tokens: tuple[int, ...]
    extra: Extra = None
    left_out: bool = False  # whether the argument `extra_keys` is

    def __str__(self) -> str:
        parent = "None" if self.parent is None else _short(self.parent)
        tokens = str(list(self.tokens[:12])).replace("]", ", ...]" * (len(self.tokens) > 12) or "]")
        extra = "" if self.left_out else f", extra_keys {self.extra}"
        return f"(parent {parent}, tokens {tokens}{extra})"


@dataclass(frozen=True)
class Pair:
    kind: str
    one: Block
    other: Block
    hash_name: str
    sequence: type = list  # of the tokens

    def __str__(self) -> str:
        name = "" if self.hash_name == "SHA-256" else f"; hash_function = {self.hash_name}"
        return f"{self.one}  and  {self.other}{name}"


def _short(digest: bytes) -> str:
    return digest.hex() if len(digest) <= 6 else f"{digest[:2].hex()}...{digest[-2:].hex()}"


def draw(c: Choices) -> Pair:
    kind, name = c.pick(KINDS), c.pick(("SHA-256", "SHA-256", *HASHES))
    digest = HASHES[name](bytes([c.integer(0, 9)]))
    count = c.size(2, 1200) if c.rarely(6) else c.pick((2, 3, 4, 5, 16, 17))
    tokens = tuple(c.pick(TOKENS) if i < 6 else i for i in range(count))
    extra: Extra = (c.pick(("ada", "bob", "ü", "\0\0")),) if c.rarely(3) else None
    block = Block(digest if c.rarely(2) else None, tokens, extra)
    one, other = CHANGES[kind](c, block, digest)
    if one == other and kind != "same":
        other = replace(other, tokens=(*other.tokens[:-1], other.tokens[-1] + 1))
    return Pair(kind, one, other, name, c.pick((list, tuple)))


def _parents(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """Digests that differ in one byte, or in many, but not in their CRC-32 or in some sums."""
    place = c.pick((0, len(digest) - 1, c.integer(0, len(digest) - 1)))
    how = c.pick(("byte", "order", "crc", "sums"))
    if how == "order":
        changed = digest[::-1]
    elif how == "sums":
        digest, changed = digest[:-3] + b"\5\5\5", digest[:-3] + b"\6\3\6"
    elif how == "crc" and len(digest) > 4:
        flipped = int.from_bytes(digest, "little") ^ SAME_CRC << 8 * c.integer(0, len(digest) - 5)
        changed = flipped.to_bytes(len(digest), "little")
    else:
        byte = (digest[place] + c.pick((1, 128))) % 256
        changed = digest[:place] + bytes([byte]) + digest[place + 1 :]
    return replace(block, parent=digest), replace(block, parent=changed)


def _no_parent(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """A first block, and one whose parent looks like none, or like a token."""
    parent = b"\0" + digest[1:] if c.rarely(3) else digest
    if len(digest) == 4:
        parent = (5).to_bytes(4, c.pick(("little", "big")))
        return replace(block, parent=None, tokens=(5, *block.tokens)), replace(block, parent=parent)
    return replace(block, parent=None), replace(block, parent=parent)


def _moved_digit(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """A digit of the first token belongs to the parent instead, if both are read as numbers."""
    order, size, rest = c.pick(("big", "little")), len(digest), block.tokens[1:]
    one = replace(block, parent=(12).to_bytes(size, order), tokens=(34, *rest))  # type: ignore[arg-type]
    return one, replace(one, parent=(123).to_bytes(size, order), tokens=(4, *rest))  # type: ignore[arg-type]


def _tokens(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    tokens, last = list(block.tokens), len(block.tokens) - 1
    place = c.pick((0, last, c.integer(0, last), len(tokens) // 2))
    tokens[place] ^= c.pick(OTHER_BITS)
    return block, replace(block, tokens=tuple(tokens))


def _orders(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """The same tokens in another order, or others that have something in common with them."""
    a, b = sorted((*block.tokens[:2], 7))[1:]
    rest = block.tokens[2:]
    how = c.pick(("swapped", "reversed", "sum", "repeated", "xor"))
    tokens = (a, a, b + 1, *rest) if how == "repeated" else (a + 1, b + 2, *rest)
    others = {
        "swapped": (b + 2, a + 1, *rest),
        "reversed": tokens[::-1],
        "sum": (a, b + 3, *rest),
        "repeated": (a, b + 1, b + 1, *rest),
        "xor": ((a + 1) ^ 8, (b + 2) ^ 8, *rest),
    }
    return replace(block, tokens=tokens), replace(block, tokens=others[how])


def _digits(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """Digits written one behind the other, cut in two places: decimal, hex, and bytes."""
    base, most = c.pick(((10, 6), (16, 4), (256, 2)))
    count = c.integer(3, 2 * most - 1)
    digits = [1 + (i + c.integer(0, 5)) % 8 for i in range(count)]
    last_first = -1 if not c.rarely(2) else 1

    def value(part: list[int]) -> int:
        return sum(digit * base**i for i, digit in enumerate(part[::last_first]))

    low = max(1, count - most)
    cuts = low, c.integer(low + 1, min(most, count - 1))
    one, other = ((value(digits[:cut]), value(digits[cut:])) for cut in cuts)
    return replace(block, tokens=one), replace(block, tokens=other)


def _longer(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    return block, replace(block, tokens=(*block.tokens, c.pick((0, block.tokens[-1]))))


def _salts(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    one, other = (None if salt is None else (salt,) for salt in c.pick(ALIKE))
    return replace(block, extra=one), replace(block, extra=other)


def _several_salts(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    by = c.pick(SEPARATORS)
    pairs = (
        (("ab", "c"), ("a", "bc")),
        ((f"a{by}b", "c"), ("a", f"b{by}c")),
        (("a", "b"), (f"a{by}b",)),
        (("a", "b"), ("b", "a")),
        (("a", "a"), ("a",)),
        (("a", "b"), ("a", "c")),
    )
    one, other = c.pick(pairs)
    return replace(block, extra=one), replace(block, extra=other)


def _token_as_salt(c: Choices, block: Block, digest: bytes) -> tuple[Block, Block]:
    """The last token, or its last digit, is a salt instead."""
    last, tokens = c.pick((2, 35, 77)), block.tokens
    how = c.pick(("digit", "text", "little", "big"))
    if how == "digit":
        return (
            replace(block, tokens=(*tokens, last), extra=("46",)),
            replace(block, tokens=(*tokens, last * 10 + 4), extra=("6",)),
        )
    text = str(last) if how == "text" else last.to_bytes(4, how).decode()  # type: ignore[arg-type]
    return replace(block, tokens=(*tokens, last), extra=None), replace(block, extra=(text,))


CHANGES: dict[str, Callable[[Choices, Block, bytes], tuple[Block, Block]]] = {
    "parent": _parents,
    "token": _tokens,
    "extra": _salts,
    "order": _orders,
    "digits": _digits,
    "first": _no_parent,
    "same": lambda c, block, digest: (block, block),
    "length": _longer,
    "left out": lambda c, block, digest: (
        replace(block, extra=None, left_out=True),
        replace(block, extra=None),
    ),
    "several": _several_salts,
    "moved": _token_as_salt,
    "moved digit": _moved_digit,
}
KINDS = (*CHANGES, "extra", "several", "parent", "token")


class Salt(str):
    """Equal to others, but Python's `hash` of it is another, as it is in another process."""

    numbers = itertools.count()

    def __hash__(self) -> int:
        return next(self.numbers)


class Spy:
    """A hash function that remembers what it answered."""

    def __init__(self, function: Callable[[bytes], bytes]) -> None:
        self.function, self.answers = function, set[bytes]()

    def __call__(self, data: bytes) -> bytes:
        answer = self.function(data)
        self.answers.add(answer)
        return answer


def play(stage: Stage, function: Any, pair: Pair) -> None:
    """Hash both blocks; the same or not?"""
    spy = Spy(HASHES[pair.hash_name])
    digests = []
    for block in (pair.one, pair.other):
        salts = block.extra and tuple(map(Salt, block.extra))
        extra = [] if block.left_out else [salts if pair.kind == "same" else block.extra]
        got = stage.do(function, spy, block.parent, pair.sequence(block.tokens), *extra)
        stage.see("bytes", "bytes" if isinstance(got, bytes) else got)
        stage.see("called", "`hash_function` is called" if spy.answers else "it never is")
        from_spy = got in spy.answers
        stage.see("returned", "what it returned" if from_spy else f"{len(got)} other bytes")
        digests.append(got)
    one = pair.one
    other_spy = Spy(lambda data: hashlib.md5(data).digest())
    again = stage.do(function, other_spy, one.parent, pair.sequence(one.tokens), one.extra)
    stage.see("another function", "its own" if again in other_spy.answers else "another's")
    stage.see(pair.kind, f"{'the same' if digests[0] == digests[1] else 'another'} hash")
