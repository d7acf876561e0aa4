"""A lab made of words, right answers and edits: what its author may get wrong, and is told."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.checks.mutants import mutants
from utils.checks.kit.contracts import Choices, Given, Returns, Stage
from utils.checks.kit.contracts.plays import Over
from utils.checks.kit.lab import words
from utils.checks.kit.lab.edits import edited
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.lab.story import LinedStory, Story


def smaller(a: int, b: int) -> int:
    """Which is less?"""
    least = a
    if b < a:
        least = b
    return least


WORDS = """
short:
  BOTH: "Compare a with b."
smallest:
  answer: smaller
  title: "Exercise 1: smallest"
  points: 2
  passed: "Right for all pairs."
  clauses:
    returns: ["The wrong one. {says}", $BOTH]
  mistakes:
  - says: "That is the larger one."
    look: "Where? $BOTH"
    edit: "b < a => b > a"
  - says: "Always the same one."
    edit: ["least = b => pass", ["least = a => least = b"]]
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / words.WORDS).write_text(WORDS)
    return Lab(str(tmp_path / "__init__.py"))


def draw(c: Choices) -> Given:
    return Given(c.integer(0, 9), c.integer(0, 9))


def test_a_check_is_made_of_words_and_a_judge(lab: Lab) -> None:
    check: Any = lab.check(smaller, draw, Returns(lambda a, b: min(a, b)))
    assert (check.__name__, check.title, check.max_points) == (
        "smallest",
        "Exercise 1: smallest",
        2,
    )
    assert check(min).headline == "Right for all pairs."
    wrong = check(max)
    assert wrong.headline == "That is the larger one."
    assert dict(wrong.details)["Where to look"] == "Where? Compare a with b."
    assert check(lambda a, b: a).headline == "Always the same one."
    assert check(lambda a, b: b).headline == "Always the same one."
    other = check(lambda a, b: min(a, b) + 1)
    assert other.headline.startswith("The wrong one. ")
    assert dict(other.details)["Where to look"] == "Compare a with b."


@pytest.mark.parametrize(
    ("edit", "times"), [("b <= a => b < a", 0), ("least => most", 3), ("no arrow", 0)]
)
def test_an_edit_that_fits_nowhere_or_twice_is_refused(edit: str, times: int) -> None:
    with pytest.raises(ValueError, match=f"stands there {times} times"):
        edited(smaller, [edit])


def test_edits_are_made_in_turn_and_leave_the_answer_alone() -> None:
    changed = edited(smaller, ["b < a => b > a", "b > a => a - b < 0"])
    assert (changed(1, 2), smaller(1, 2)) == (2, 1)
    assert "a - b < 0" in inspect.getsource(changed)


def test_a_name_without_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / words.WORDS).write_text('one: {title: "$NOWHERE", points: 1}')
    with pytest.raises(KeyError, match="NOWHERE"):
        words.read_words(tmp_path / words.WORDS)


class Counter:
    def __init__(self) -> None:
        self.number = 0

    def add(self, number: int) -> int:
        self.number += number
        return self.number


class CounterStory(Story):
    kinds = ("add",)

    @classmethod
    def draw_setting(cls, c: Choices) -> None:
        return None

    @classmethod
    def tell(cls, setting: None) -> str:
        return "a new counter"

    @staticmethod
    def draw_add(c: Choices, setting: None) -> tuple[int]:
        return (c.integer(0, 5),)

    def start(self, counter_class: Any) -> None:
        self.counter = counter_class()

    def do_add(self, number: int) -> None:
        self.stage.step(f"add({number})")
        self.stage.see("returns", self.stage.call(self.counter, "add", number))


def test_a_story_is_told_to_the_right_class_and_to_the_learners() -> None:
    judge = CounterStory.judge(Counter)
    stories = [CounterStory.draw(Choices(row=[1] * n)) for n in range(0, 20, 3)]
    for told in stories:
        expected = judge.expect(told)
        assert len(expected) == 2 * len(told.steps)  # arguments are seen, too
        assert judge.fault(Counter, told, expected) is None
    forgets = edited(Counter, ["+= number => = number"])
    faults = [judge.fault(forgets, told, judge.expect(told)) for told in stories]
    found = next(fault for fault in faults if fault is not None)
    assert (found.clause, found.expected, found.got) == ("returns", 2, 1)
    assert found.where == "add(1), add(1)"


class LinedCounterStory(LinedStory, CounterStory):
    def do_add(self, number: int) -> None:
        self.say(f"add({number})")
        self.stage.see("returns", self.stage.call(self.counter, "add", number))

    def end(self) -> None:
        self.say("the number")
        self.stage.see("number", self.counter.number)


def test_a_lined_story_is_told_call_by_call_to_its_end() -> None:
    judge = LinedCounterStory.judge(Counter)
    told = LinedCounterStory.draw(Choices(row=[1, 0, 2]))
    assert str(told) == ""
    forgets = edited(Counter, ["self.number += number => pass", "return self.number => return 2"])
    fault = judge.fault(forgets, told, judge.expect(told))
    assert fault is not None and fault.clause == "number"
    assert fault.where == "a new counter\nadd(2)\nthe number"


def test_a_refused_step_is_told_as_one() -> None:
    stage = Stage()
    stage.step("append(1)")
    stage.refused()
    stage.step("append(2)")
    with pytest.raises(Over):
        stage.blame("returns", 1, 2)
    assert stage.fault is not None and stage.fault.where == "append(1) (refused), append(2)"


def test_mutants_are_all_small_changes() -> None:
    found = dict(mutants(smaller))
    assert "- if b < a:  + if b <= a:" in found
    assert "- least = a  + pass" in found
    assert len(found) == len({inspect.getsource(mutant) for mutant in found.values()})
    wrong = [told for told, m in found.items() if "<=" not in told and _differs(m)]
    assert len(wrong) == len(found) - 1  # with `<=` it is right all the same


def _differs(mutant: Any) -> bool:
    def ask(a: int, b: int) -> Any:
        try:
            return mutant(a, b)
        except NameError:
            return None

    return any(ask(a, b) != min(a, b) for a in range(3) for b in range(3))
