"""What notebook 06 says of fast, slow and noisy machines."""

from __future__ import annotations

import math

import pytest

from utils.findings.part_one.lesson_06 import as_foreseen, batch_sweep, budgets, sooner, waits

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]
SLOW = [0.040, 0.040, 0.053, 0.067, 0.077, 0.087, 0.133, 0.204]


def test_a_late_knee_and_what_more_requests_bring() -> None:
    first, before, behind = batch_sweep(SIZES, SLOW, 16.3, 37.4).splitlines()
    assert first.startswith("predicted knee: 16 requests, measured: 37. It comes later")
    assert before.startswith("from 1 to 32 requests: a step takes 2.2 times as long")
    assert before.endswith("makes 14.7 times the tokens per second")
    assert behind.endswith("2.3 times as long, and makes 1.7 times the tokens per second")


def test_a_knee_where_it_was_predicted_or_before() -> None:
    steps = [0.01 + b * 0.0005 for b in SIZES]
    assert "It comes" not in batch_sweep(SIZES, steps, 18.0, 20.0)
    assert "It comes earlier" in batch_sweep(SIZES, steps, 100.0, 20.0)
    assert "from 1 to 2 requests" in batch_sweep(SIZES, steps, 16.0, 0.5)


@pytest.mark.parametrize("measured", [-3.0, 0.0, math.inf, math.nan])
def test_no_line_no_knee(measured: float) -> None:
    assert "no line that has a knee. A busy machine" in batch_sweep(SIZES, SLOW, 16.0, measured)


def test_a_run_that_something_disturbed_is_not_compared() -> None:
    predicted = {"static": 0.058, "continuous": 0.061}
    said = as_foreseen(predicted, {"static": 0.069, "continuous": 0.068})
    assert said == "measured over predicted time per output token: 1.2 (static), 1.1 (continuous)."
    said = as_foreseen(predicted, {"static": 0.125, "continuous": 0.076})
    assert "2.2 (static), 1.2 (continuous). Something disturbed the static run" in said
    assert "the continuous run: do not" in as_foreseen(predicted, predicted | {"continuous": 0.1})


def test_who_waits_longer_is_named() -> None:
    static = {"A": 0.1, "B": 0.8, "C": 0.5, "D": 3.0}
    said = waits(static, {"A": 0.1, "B": 0.2, "C": 0.9, "D": 1.2})
    assert said.startswith("mean wait for the first token: 1.10 s static, 0.60 s continuous.")
    assert said.endswith("Longer than before: C.")
    assert waits(static, static | {"B": 0.9, "C": 0.6, "D": 1.0}).endswith("before: B and C.")
    assert "Nobody" in waits(static, static | {"D": 1.0})
    assert "Nobody" in waits(static, static | {"A": 0.12, "D": 1.0})  # noise
    assert "Here it is otherwise" in waits(static, static | {"D": 9.0})


def test_how_much_sooner_is_a_mean() -> None:
    static = {"A": 1.0, "B": 5.0}
    assert sooner(static, {"A": 2.0, "B": 1.0}) == (
        "With continuous batching the first token comes 2.0 times sooner on average"
    )
    assert "hardly sooner" in sooner(static, {"A": 1.0, "B": 4.8})
    assert "no sooner" in sooner(static, {"A": 2.0, "B": 5.0})


def test_the_price_of_a_small_budget() -> None:
    sizes, predicted = [2048, 256, 64], [0.500, 0.261, 0.109]
    said = budgets(sizes, [0.606, 0.337, 0.176], [0.6, 0.6, 1.4], predicted)
    assert said.startswith("measured stops are up to 1.6 times the predicted ones.")
    assert said.endswith(
        "the stop becomes 3.4 times shorter, the newcomer's wait 2.3 times longer."
    )
    assert "no longer" in budgets(sizes, [0.05, 0.03, 0.01], [0.1, 0.1, 0.1], predicted)
    assert "does not shorten" in budgets(sizes, [0.1, 0.3, 0.2], [0.1, 0.1, 0.1], predicted)
