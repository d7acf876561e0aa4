"""How a zoo is built: plausible wrong answers, and right ones written differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Specimen:
    """One answer to one exercise. `says`: words that the feedback must contain (if wrong)."""

    exercise: str
    answer: Any
    says: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.exercise}-{self.answer.__name__}"


@dataclass
class Zoo:
    wrong_answers: list[Specimen] = field(default_factory=list)
    right_answers: list[Specimen] = field(default_factory=list)

    def wrong(self, exercise: str, *says: str) -> Callable[[Any], Any]:
        """Register a wrong answer. The feedback's headline must contain each of `says`."""

        def register(answer: Any) -> Any:
            assert says, "say which words the feedback must contain"
            self.wrong_answers.append(Specimen(exercise, answer, says))
            return answer

        return register

    def right(self, exercise: str) -> Callable[[Any], Any]:
        """Register a correct answer that is written differently from the solution."""

        def register(answer: Any) -> Any:
            self.right_answers.append(Specimen(exercise, answer))
            return answer

        return register
