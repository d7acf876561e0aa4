"""Every mutant is rejected with words that name its fault; every correct answer passes.

At the small size the answers that run a whole engine are fewer: two wrong ones a lab. The right
ones are the solutions' own notebooks there, and of each other exercise one right answer is tried,
on fewer inputs.
"""

from __future__ import annotations

import html
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.labs.bug_zoo.zoo import Specimen
from tests.scale import FULL, PIPELINE_PROFILE, SCALE, sized
from utils.checks.kit import patience
from utils.checks.kit.contracts import contract
from utils.checks.kit.feedback import Feedback
from utils.profiles import ENV_VAR

LABS = {
    name: (
        importlib.import_module(f"tests.labs.bug_zoo.{name}").zoo,
        importlib.import_module(f"utils.checks.{name}"),
    )
    for name in sorted(file.stem for file in (Path(__file__).parent / "bug_zoo").glob("lab_*.py"))
}
ENGINE = "engine"  # the exercise in which a learner's class runs the course's engine
ENGINES = sized(2, 1000)  # wrong ones of each lab
INPUTS = sized(50, 1000)  # on which a right answer is tried, unless its contract asks for fewer

ENDLESS = re.compile("does not (come to an )?end")  # in the words for an answer that never ends


def chosen_wrong(specimens: list[Specimen]) -> list[Specimen]:
    """The wrong answers of this scale: all, but few that run an engine."""
    engines = [specimen for specimen in specimens if specimen.exercise == ENGINE][:ENGINES]
    return [s for s in specimens if s.exercise != ENGINE or s in engines]


def chosen_right(specimens: list[Specimen]) -> list[Specimen]:
    """The right answers of this scale: one for each exercise, and none that runs an engine."""
    if SCALE == FULL:
        return specimens
    first = {s.exercise: s for s in reversed(specimens) if s.exercise != ENGINE}
    return [specimen for specimen in specimens if specimen in first.values()]


WRONG = [(lab, s) for lab, (zoo, _) in LABS.items() for s in chosen_wrong(zoo.wrong_answers)]
RIGHT = [(lab, s) for lab, (zoo, _) in LABS.items() for s in chosen_right(zoo.right_answers)]


def answer_of(lab: str, specimen: Specimen) -> Feedback:
    arguments = getattr(specimen.answer, "arguments", (specimen.answer,))  # of a check of several
    feedback: Feedback = getattr(LABS[lab][1], specimen.exercise)(*arguments)
    return feedback


@pytest.fixture(autouse=True)
def trained_as_small_as_this_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """An EAGLE layer for an engine of lab 07b takes minutes at its full size."""
    monkeypatch.setenv(ENV_VAR, PIPELINE_PROFILE)


def _id(value: Any) -> str:
    return str(getattr(value, "id", value))


@pytest.mark.parametrize(("lab", "specimen"), WRONG, ids=_id)
def test_a_wrong_answer_is_rejected_and_its_fault_named(
    lab: str, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(ENDLESS.search(words) for words in specimen.says):
        # No patience with what is known never to end; right answers keep all of it.
        monkeypatch.setattr(patience, "SECOND_CHANCE", 1)
    feedback = answer_of(lab, specimen)
    assert feedback.status == "failed"
    assert feedback.points == 0
    for words in specimen.says:
        assert words in feedback.headline, feedback.message
    _stands_alone(feedback)


def _stands_alone(feedback: Feedback) -> None:
    """No link, script or file from outside, and the words are in the HTML too."""
    bundle = feedback._repr_mimebundle_()
    assert bundle["text/plain"] == "0.0"
    assert not re.search(r"https?://|<script|<link|src=\"(?!data:)", bundle["text/html"])
    shown = html.unescape(re.sub(r"<[^>]+>", "", bundle["text/html"]))
    assert re.sub(r"[`*]", "", feedback.headline) in re.sub(r"[`*]", "", shown)


@pytest.mark.parametrize(("lab", "specimen"), RIGHT, ids=_id)
def test_a_correct_answer_written_differently_passes(
    lab: str, specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_inputs = contract.wrong_inputs
    monkeypatch.setattr(
        contract,
        "wrong_inputs",
        lambda inputs, wrong, examples, seconds: wrong_inputs(
            inputs, wrong, min(examples, INPUTS), seconds
        ),
    )
    feedback = answer_of(lab, specimen)
    assert feedback.passed, feedback.message
    assert feedback.points == feedback.max_points > 0


@pytest.mark.parametrize("lab", LABS)
def test_each_exercise_has_a_right_answer_that_is_written_differently(lab: str) -> None:
    zoo, checks = LABS[lab]
    exercises = {name for name, check in vars(checks).items() if hasattr(check, "max_points")}
    assert {s.exercise for s in zoo.wrong_answers} <= exercises
    assert {s.exercise for s in zoo.right_answers} == exercises
    assert {s.exercise for of, s in RIGHT if of == lab} | {ENGINE} >= exercises
