"""How a zoo is built: plausible wrong answers, and right ones written differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from utils.checks.kit.lab.edits import edited
from utils.checks.kit.lab.words import right_answers


@dataclass(frozen=True)
class Specimen:
    """One answer to one exercise. `says`: words that the feedback must contain (if wrong)."""

    exercise: str
    answer: Any
    says: tuple[str, ...] = ()
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.exercise}-{self.name or self.answer.__name__}"


@dataclass
class Zoo:
    """`answers`: a lab's right answers; wrong ones that edit them stand in the zoo's YAML file."""

    answers: ModuleType | None = None
    wrong_answers: list[Specimen] = field(default_factory=list)
    right_answers: list[Specimen] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.answers is not None:
            self.wrong_answers += edited_answers(self.answers)

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


def edited_answers(answers: ModuleType) -> list[Specimen]:
    """The wrong answers of a lab that are edits: name -> words of the feedback, then the edits."""
    lab, right = Path(answers.__file__ or "").parent.name, right_answers(answers)
    found = yaml.safe_load(Path(__file__).with_name(f"{lab}.yaml").read_text("utf-8"))
    return [
        Specimen(exercise, edited(right[exercise], edits), (says,), name)
        for exercise, wrong in found.items()
        for name, (says, *edits) in wrong.items()
    ]
