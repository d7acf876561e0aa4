"""The five problems: right answers, wrong ones that are recognized, and what is said of others."""

from __future__ import annotations

import pytest

from utils.planning.worked import DRAWN, problem

SEEDS = range(60)


@pytest.mark.parametrize("number", DRAWN)
def test_the_answer_is_right_and_no_mistake_is(number: int) -> None:
    for seed in SEEDS:
        drawn = problem(number, seed)
        assert drawn.check(drawn.answer).startswith("Right")
        for look_at, wrong in drawn.mistakes.items():
            said = drawn.check(wrong)
            assert said.startswith("Too ") and "by a factor of" in said, (seed, look_at)
            assert any(words in said for words in drawn.mistakes), (seed, look_at)


@pytest.mark.parametrize("number", DRAWN)
def test_the_steps_lead_to_the_answer(number: int) -> None:
    for seed in SEEDS:
        drawn = problem(number, seed)
        shown = drawn.solution.data
        assert shown.startswith("<details>") and all(step in shown for step in drawn.steps)
        numbers = [word.strip("$,:;s") for word in drawn.steps[-1].replace(",", "").split()]
        if number != 4:  # its last step multiplies
            found = [float(word) for word in numbers if word.replace(".", "").isdigit()]
            assert any(drawn.is_right(value) for value in found), (seed, drawn.steps[-1])


@pytest.mark.parametrize("number", DRAWN)
def test_other_numbers_are_told_where_to_begin(number: int) -> None:
    drawn = problem(number, 1)
    assert "Too high, by a factor of 1e+06" in drawn.check(1e6 * drawn.answer)
    assert drawn.first_step in drawn.check(1e6 * drawn.answer)
    assert "Too low" in drawn.check(1e-6 * drawn.answer)
    assert drawn.unit in drawn.check(None) and "negative" in drawn.check(-1)
    assert drawn.title in drawn._repr_markdown_() and drawn.question in drawn._repr_markdown_()


def test_numbers_are_drawn_and_stay() -> None:
    for number in DRAWN:
        assert len({problem(number, seed).question for seed in SEEDS}) > 3
        assert problem(number, 5).question == problem(number, 5).question
    with pytest.raises(ValueError, match="problems 1 to 5, got 6"):
        problem(6, 1)
