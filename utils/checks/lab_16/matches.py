"""What lab 16 says of the longest stored prefix: exercise 2."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


@dataclass(frozen=True)
class Stored:
    """A store as a connector sees it: it can be asked for a key, and lists nothing."""

    held: frozenset[bytes]

    def __contains__(self, key: object) -> bool:
        return key in self.held

    def __repr__(self) -> str:
        return f"a store with {sorted(self.held)}"


def draw(c: Choices) -> Given:
    """A prompt of which the engine has some blocks, and a store that has most, with holes."""
    block_size = c.pick([4, 1, 2, 16])
    num_tokens = c.integer(1, 12 * block_size)
    if c.rarely(30):  # thousands of blocks
        num_tokens += 4_000 * block_size
    keys = [b"key %d" % i for i in range(num_tokens // block_size)]
    num_holes = c.integer(0, 2)
    holes = {c.integer(0, 12) for _ in range(num_holes)}
    stored = {key for i, key in enumerate(keys) if i not in holes}
    stored |= {b"another key"} if c.rarely(3) else set()
    most = (num_tokens - 1) // block_size
    return Given(
        keys,
        Stored(frozenset(stored)),
        num_tokens,
        block_size,
        block_size * c.integer(0, min(most, 4)),
    )


def right_match(
    keys: Sequence[bytes],
    stored: Container[bytes],
    num_tokens: int,
    block_size: int,
    num_computed_tokens: int,
) -> int:
    """Try all ends: the largest one before the last token up to which nothing is missing."""
    ends = [
        end
        for end in range(num_computed_tokens, num_tokens, block_size)
        if all(key in stored for key in keys[num_computed_tokens // block_size : end // block_size])
    ]
    return max(ends) - num_computed_tokens


def variant(
    keys: Sequence[bytes],
    stored: Container[bytes],
    num_tokens: int,
    block_size: int,
    num_computed_tokens: int,
    *,
    stop: bool = True,
    start: bool = True,
    last: int = 1,
    minus: bool = True,
) -> int:
    """The search with one switch per known mistake. Serves to recognise, never as oracle."""
    first = num_computed_tokens // block_size if start else 0
    found = 0
    for key in keys[first : (num_tokens - last) // block_size]:
        if key in stored:
            found += 1
        elif stop:
            break
    total = found * block_size
    return total if minus else total + num_computed_tokens


MATCHED_TOKENS = Contract(
    inputs=draw,
    judge=Returns(right_match),
    passed="Right: up to the first miss, behind what the engine has, and never the last token.",
    clauses={
        "returns": Clause(
            "{got} tokens; expected {expected}.",
            "Walk the keys from the first block that the engine lacks. Stop at the "
            "first that is not stored, and before the block of the last token.",
        )
    },
    mistakes=(
        mistake(
            "Blocks behind a miss are counted. Without the block before them they are of no use.",
            "`break` at the first key that is not stored.",
            lambda *a: variant(*a, stop=False),
        ),
        mistake(
            "All tokens of the prompt are taken from the store, and none is left to compute. "
            "The next token comes from what the model makes of the last one.",
            "At most `(num_tokens - 1) // block_size` blocks.",
            lambda *a: variant(*a, last=0),
        ),
        mistake(
            "You search from the first block on, also where the engine has blocks of its own.",
            "Begin at block `num_computed_tokens // block_size`.",
            lambda *a: variant(*a, start=False),
            lambda *a: max(0, variant(*a, start=False) - a[4]),
        ),
        mistake(
            "The tokens that the engine has itself are counted as well.",
            "Only those beyond `num_computed_tokens`.",
            lambda *a: variant(*a, minus=False),
        ),
        mistake(
            "You count blocks; expected tokens.",
            "Multiply by `block_size`.",
            lambda *a: variant(*a) // a[3],
        ),
        mistake(
            "A whole block is left, also where the last token's block is not full.",
            "`(num_tokens - 1) // block_size`, not `num_tokens // block_size - 1`.",
            lambda *a: variant(a[0][: max(0, a[2] // a[3] - 1)], *a[1:]),
        ),
        mistake(
            "You answer after the first block.",
            "Go on while keys are found.",
            lambda *a: min(variant(*a), a[3]),
        ),
    ),
)
