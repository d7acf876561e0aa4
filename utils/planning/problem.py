"""A problem with a number for an answer, and what to say about a number that is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from IPython.display import HTML

TOLERANCE = 0.05  # of the answer; a whole number may also be off by one


@dataclass(frozen=True, repr=False)
class Problem:
    """A question, its answer, and the way to it.

    Attributes:
        title: a few words.
        question: Markdown, with every number that is needed.
        answer: the number, in `unit`.
        unit: in words.
        steps: the way to the answer, as Markdown lines with numbers.
        mistakes: what to look at -> the number that comes out if it was forgotten.
        whole: the answer is a whole number.
    """

    title: str
    question: str
    answer: float
    unit: str
    steps: tuple[str, ...]
    mistakes: Mapping[str, float]
    whole: bool = False

    def __repr__(self) -> str:
        return self.title  # and not the answer

    def _repr_markdown_(self) -> str:
        return f"**{self.title}** {self.question}"

    def is_right(self, given: float) -> bool:
        """Within 5 % of the answer; of a whole number also off by one (rounding)."""
        allowed = max(TOLERANCE * self.answer, 1 if self.whole else 0)
        return abs(given - self.answer) <= allowed

    def check(self, given: float | None) -> str:
        """Right, or too high or too low, by which factor, and where to look."""
        if not given:
            return f"Put your number into this cell: {self.unit}."
        if given < 0:
            return f"{given:g} is negative. Expected {self.unit}."
        if self.is_right(given):
            return f"Right: {self._said(self.answer)} {self.unit}."
        high = given > self.answer
        factor = given / self.answer if high else self.answer / given
        verdict = f"Too {'high' if high else 'low'}, by a factor of {factor:.3g}."
        for look_at, wrong in self.mistakes.items():
            if abs(given - wrong) <= TOLERANCE * wrong:
                return f"{verdict} {look_at}"
        return f"{verdict} Go through the steps in their order; the first is: {self.first_step}"

    @property
    def first_step(self) -> str:
        """The first step without its numbers."""
        return self.steps[0].partition(":")[0] + "."

    @property
    def solution(self) -> HTML:
        """The steps with their numbers, folded."""
        lines = "".join(f"<li>{step}</li>" for step in self.steps)
        return HTML(
            f"<details><summary>The way to the answer</summary><ol>{lines}</ol>"
            f"<p>Answer: {self._said(self.answer)} {self.unit}.</p></details>"
        )

    def _said(self, number: float) -> str:
        return f"{number:,.0f}" if self.whole or number >= 100 else f"{number:.3g}"
