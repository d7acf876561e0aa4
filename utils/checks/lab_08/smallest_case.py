"""How the checks of lab 08 judge a function: all cases, then the smallest that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.runner import Mismatch, describe


@dataclass(frozen=True)
class Fault:
    """A known mistake: what it makes of a case, and how to name it.

    Args:
        wrong: the answer that this mistake gives to a case.
        says: the mistake in words.
        look: what to do about it.
    """

    wrong: Callable[[Any], Any]
    says: str
    look: str


def answers_of(
    ask: Callable[[Any], Any], cases: Sequence[Any]
) -> tuple[list[Any], Mismatch | None]:
    """The learner's answers up to the first case that failed, and how that one failed."""
    answers = []
    for case in cases:
        try:
            answers.append(ask(case))
        except Mismatch as failure:
            return answers, failure
    return answers, None


def judge(
    cases: Sequence[Any],
    ask: Callable[[Any], Any],
    expected: Callable[[Any], Any],
    told: Callable[[Any], str],
    faults: Sequence[Fault],
    otherwise: tuple[str, str],
    show: Callable[[Any], str] = describe,
    picture: Callable[[Any, Any, Any], tuple[Figure | None, str]] | None = None,
) -> None:
    """Compare an answer to each case with the expected one; raise `Mismatch` about the first.

    A fault is named only if it explains the answers to all cases.

    Args:
        cases: from the smallest to the largest.
        ask: calls the learner's function on a case.
        expected: the oracle's answer.
        told: the case in words.
        faults: known mistakes, the most specific first.
        otherwise: what to say, and where to look, when no known mistake explains the answers.
        show: an answer in words.
        picture: `(case, expected, got)` as a figure, with its description.
    """
    answers, failure = answers_of(ask, cases)
    for case, got in zip(cases, answers, strict=False):
        want = expected(case)
        if got == want:
            continue
        says, look = otherwise
        for fault in faults:
            if all(fault.wrong(c) == a for c, a in zip(cases, answers, strict=False)):
                says, look = fault.says, fault.look
                break
        figure, alt = picture(case, want, got) if picture else (None, "")
        raise Mismatch(
            says, input=told(case), expected=show(want), got=show(got), look=look, figure=figure,
            alt=alt,
        )  # fmt: skip
    if failure:
        raise failure
