"""Tokens of texts and of guesses."""

from __future__ import annotations

from utils.checks.kit.contracts import Choices

# Few tokens, so that they repeat; also 0, digits that hold each other, and ids above 16 bits.
VOCABULARIES = (
    (1, 2, 3),
    (0, 1, 2),
    (5, 6, 7, 8, 9),
    (1, 11, 2, 12, 21, 112),
    (70_001, 70_002, 70_003, 4465),
    (0, 300, 151_000),
)


def token_of(c: Choices, vocabulary: tuple[int, ...]) -> int:
    """A new object each time: `is` in place of `==` must show."""
    return int(str(c.pick(vocabulary)))
