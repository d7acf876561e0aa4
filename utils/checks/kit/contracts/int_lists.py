"""Lists of ints, as answers."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts.faults import Fault
from utils.checks.kit.contracts.functions import Given, Wrong


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
