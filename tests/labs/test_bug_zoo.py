"""Every mutant is rejected with words that name its fault; every correct answer passes."""

from __future__ import annotations

import functools
import html
import importlib
import re
from pathlib import Path

import pytest

LABS = {
    name: (
        importlib.import_module(f"tests.labs.bug_zoo.{name}").zoo,
        importlib.import_module(f"utils.checks.{name}"),
    )
    for name in sorted(file.stem for file in (Path(__file__).parent / "bug_zoo").glob("lab_*.py"))
}
WRONG = [(lab, s) for lab, (zoo, _) in LABS.items() for s in zoo.wrong_answers]
RIGHT = [(lab, s) for lab, (zoo, _) in LABS.items() for s in zoo.right_answers]


@functools.cache
def answer_of(lab, specimen):
    arguments = getattr(specimen.answer, "arguments", (specimen.answer,))  # of a check of several
    return getattr(LABS[lab][1], specimen.exercise)(*arguments)


def _id(value):
    return getattr(value, "id", value)


@pytest.mark.parametrize(("lab", "specimen"), WRONG, ids=_id)
def test_a_wrong_answer_is_rejected_and_its_fault_named(lab, specimen):
    feedback = answer_of(lab, specimen)
    assert feedback.status == "failed"
    assert feedback.points == 0
    for words in specimen.says:
        assert words in feedback.headline, feedback.message


@pytest.mark.parametrize(("lab", "specimen"), RIGHT, ids=_id)
def test_a_correct_answer_written_differently_passes(lab, specimen):
    feedback = answer_of(lab, specimen)
    assert feedback.passed, feedback.message
    assert feedback.points == feedback.max_points > 0


@pytest.mark.parametrize("lab", LABS)
def test_each_zoo_is_large_and_has_an_alternative_per_exercise(lab):
    zoo, checks = LABS[lab]
    exercises = {name for name, check in vars(checks).items() if hasattr(check, "max_points")}
    wrong = {s.exercise for s in zoo.wrong_answers}
    right = {s.exercise for s in zoo.right_answers}
    assert len(zoo.wrong_answers) >= 10
    assert wrong == exercises
    assert right == exercises


@pytest.mark.parametrize(("lab", "specimen"), WRONG, ids=_id)
def test_feedback_stands_alone(lab, specimen):
    """No link, script or file from outside, and the words are in the HTML too."""
    feedback = answer_of(lab, specimen)
    bundle = feedback._repr_mimebundle_()
    assert bundle["text/plain"] == "0.0"
    assert not re.search(r"https?://|<script|<link|src=\"(?!data:)", bundle["text/html"])
    shown = html.unescape(re.sub(r"<[^>]+>", "", bundle["text/html"]))
    assert re.sub(r"[`*]", "", feedback.headline) in re.sub(r"[`*]", "", shown)
