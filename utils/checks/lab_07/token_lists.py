"""Lists of tokens, as arguments and as answers."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.functions import Wrong

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


def not_ints(got: Any) -> Fault | None:
    """A fault if this is no list of ints."""
    if got is None:
        return Fault("none", "", "a list", got)
    if isinstance(got, list) and all(
        isinstance(t, Integral) and not isinstance(t, bool) for t in got
    ):
        return None
    return Fault("form", "", "a list of ints", got)


def is_list(explain: Callable[[list[int], list[int], Given], tuple[str, str]]) -> Wrong:
    """Compare lists of ints; `explain` gives the clause and the words of a difference."""

    def wrong(expected: list[int], got: Any, given: Given) -> Fault | None:
        if fault := not_ints(got):
            return fault
        if got == expected:
            return None
        clause, says = explain(expected, got, given)
        return Fault(clause, "", expected, got, says)

    return wrong
