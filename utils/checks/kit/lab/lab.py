"""The checks of a lab, made of what its `words.yaml` says and what its Python draws and judges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from utils.checks.kit.contracts import Choices, Clause, Contract, Judge, Mistake
from utils.checks.kit.feedback import Feedback
from utils.checks.kit.lab.edits import edited
from utils.checks.kit.lab.words import WORDS, answers_of, read_words
from utils.checks.kit.runner import Passed, exercise


class Check(Protocol):
    """What a lab calls with a learner's function or class."""

    title: str
    max_points: float
    contract: Contract

    def __call__(self, answer: Any) -> Feedback: ...


class Lab:
    """The exercises of a lab, by name, from the `words.yaml` beside its file: see `words.py`."""

    def __init__(self, file: str) -> None:
        self._package = f"utils.checks.{Path(file).parent.name}"
        self.words = read_words(Path(file).with_name(WORDS))
        self._names = {words.get("answer", name): name for name, words in self.words.items()}

    def check(
        self, answer: Any, inputs: Callable[[Choices], Any], judge: Judge, **more: Any
    ) -> Check:
        """The check of the exercise of which `answer` is a right answer.

        Args:
            answer: a function or class of the lab's `answers.py`.
            inputs, judge: as in `Contract`.
            more: further arguments of `Contract`, such as `tell`.

        Raises:
            ValueError: an edit doesn't fit the answer.
        """
        name = self._names[answer.__name__]
        words = self.words[name]
        clauses = {clause: Clause(*said) for clause, said in words.get("clauses", {}).items()}
        mistakes = tuple(
            Mistake(
                said["says"],
                said.get("look", ""),
                tuple(edited(answer, edits) for edits in answers_of(said["edit"])),
            )
            for said in words.get("mistakes", ())
        )
        told = {"passed": words.get("passed", ""), "clauses": clauses, "mistakes": mistakes}
        contract = Contract(inputs, judge, **(told | more))

        def body(given: Any) -> str | Passed:
            return contract.check(given)

        body.__name__, body.__module__ = name, self._package
        check = self.exercise(body)
        check.contract = contract
        return check

    def exercise(self, body: Callable[[Any], str | Passed]) -> Check:
        """The check of an exercise that is judged by a function, which raises `Mismatch` itself."""
        words = self.words[body.__name__]
        return cast(Check, exercise(words["title"], words["points"])(body))
