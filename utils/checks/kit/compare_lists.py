"""Compare functions that return lists of ints with an oracle, and name the known mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, call, describe

# A known mistake: what it makes of a case, words that name it, and where to look.
KnownMistake = tuple[Callable[..., Any], str, str]


class ListCase(NamedTuple):
    """One input of a function that returns a list of ints."""

    given: str
    args: tuple[Any, ...]
    expected: list[int]


def compare_lists(
    function: Callable[..., Any], cases: Sequence[ListCase], mistakes: Sequence[KnownMistake],
    otherwise: str,
) -> None:  # fmt: skip
    """Raise `Mismatch` about the first case that is wrong; name the mistake that explains all."""
    answers = [_ask(function, case) for case in cases]
    for case, got in zip(cases, answers, strict=True):
        if got == case.expected:
            continue
        says, look = otherwise, ""
        for wrong, words, where in mistakes:
            if all(wrong(*c.args) == answer for c, answer in zip(cases, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=case.given, expected=f"`{case.expected}`", got=f"`{got}`", look=look
        )


def _ask(function: Callable[..., Any], case: ListCase) -> list[int]:
    args = tuple(list(a) if isinstance(a, list) else a for a in case.args)
    got = call(function, *args, given=case.given)
    if got is None:
        raise Mismatch(
            "Your function returned None.", input=case.given, expected=f"`{case.expected}`",
            look="Every path through it must end in `return` and a list.",
        )  # fmt: skip
    if not isinstance(got, list) or not all(type(number) is int for number in got):
        raise Mismatch(
            f"Your function returned {describe(got)}; expected a list of ints.",
            input=case.given, expected=f"`{case.expected}`",
        )  # fmt: skip
    if args != case.args:
        raise Mismatch(
            "Your function changes the list it was given. The engine goes on using it.",
            input=case.given, look="`pop`, `append` and `+=` change a list. Slices are copies.",
        )  # fmt: skip
    return got
