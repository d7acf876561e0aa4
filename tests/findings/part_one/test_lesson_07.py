"""Notebook 07 says the right thing of fast, slow and noisy machines."""

from __future__ import annotations

import pytest

from utils.findings.part_one import lesson_07 as finding

SIZES = (1, 2, 3, 4, 5, 8)


@pytest.mark.parametrize(
    ("token_s", "says"),
    [
        (0.030, "90% of a token's time.\nFor most of the time the processor waits"),
        (0.090, "30% of a token's time.\nHere it is otherwise"),
        (0.020, "135% of a token's time.\nNothing is faster than the memory"),
    ],
    ids=["fast", "slow", "noisy"],
)
def test_reading(token_s: float, says: str) -> None:
    assert says in finding.reading(token_s, weight_bytes=540e6, bytes_per_s=20e9)


def test_a_flat_price() -> None:
    words = finding.rise(SIZES, [0.050, 0.051, 0.049, 0.052, 0.055, 0.060])
    assert words == "Flat, as predicted: 8 tokens take 1.20 times as long as 1."


def test_a_step_in_the_price() -> None:
    words = finding.rise(SIZES, [0.050, 0.052, 0.055, 0.080, 0.081, 0.090])
    assert words.startswith("Flat up to 3 tokens. The steepest rise is from 3 to 4 tokens")
    assert words.endswith("from 1.10 times the price of one to 1.60.")
    words = finding.rise(SIZES, [0.050, 0.100, 0.100, 0.110, 0.120, 0.130])
    assert words.startswith("The second token is not free. The steepest rise is from 1 to 2")


def test_a_peak_is_no_step() -> None:
    words = finding.rise(SIZES, [0.050, 0.052, 0.055, 0.260, 0.105, 0.100])
    assert words.startswith(
        "Flat up to 3 tokens. But 4 tokens cost 5.20 times the price of one, "
        "and 8 tokens only 2.00.\n"
    )
    assert words.endswith("\nRun the cell again: if the peak stays, it is the library.")
    words = finding.rise(SIZES, [0.050, 0.095, 0.110, 0.085, 0.080, 0.082])  # uneven, no peak
    assert "steepest rise is from 1 to 2" in words


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (1.60, 1.30, "Packing takes away 50% of the miss. The rest has another reason."),
        (1.60, 1.04, "That was the whole miss."),
        (1.60, 1.62, "Here it is otherwise"),
        (1.02, 1.00, "nothing to win"),
        (3.07, 0.45, "the machine is busy. Run it again."),
    ],
)
def test_packing(before: float, after: float, says: str) -> None:
    assert says in finding.packing(before, after, roofline=1.0)


def test_packing_against_a_roofline_that_rises() -> None:
    words = finding.packing(before=1.60, after=1.40, roofline=1.20)
    assert "the roofline says 1.20." in words and "takes away 50% of the miss" in words


def test_the_rest_of_the_miss() -> None:
    assert "not flat" in finding.rest_of_the_miss(whole=1.3, product=1.25)
    assert "What grows is around them" in finding.rest_of_the_miss(whole=1.3, product=1.02)
    assert "no miss" in finding.rest_of_the_miss(whole=1.03, product=1.2)


def test_where_an_answer_has_its_values_from() -> None:
    message, examples = "It is Ann. The number is A-1.", '{"name": "Bob", "product": "red hat"}'
    words = finding.sources('{"name": "Bob", "id": "A-1", "product": "red', message, examples)
    assert words.startswith("values from the message: A-1; from an example: Bob\nWhat it copied")
    words = finding.sources('{"name": "Ann", "id": "A-1", "count": 5', message, examples)
    assert words == "values from the message: Ann, A-1; none is copied from an example"
    assert "message: none;" in finding.sources('{"name": "Bob"', message, examples)


def test_counts_against_the_formula() -> None:
    predicted = [1.95, 1.54, 2.29, 1.62]
    words = finding.against_formula(predicted, [1.79, 1.45, 2.03, 1.55])
    assert words.startswith("4 of 4 counts are below the formula; the furthest off is 2.03, where")
    assert "All are too low" in words
    words = finding.against_formula(predicted, [1.79, 1.60, 2.03, 1.55])
    assert words.startswith("3 of 4") and "Most are too low" in words
    assert "do not show" in finding.against_formula(predicted, [2.0, 1.6, 2.5, 1.4])


def test_who_gains() -> None:
    words = finding.gains({"heads": 0.80, "copy": 2.10, "draft": 1.20, "dice": 1.02})
    assert words.splitlines() == [
        "gain: copy (2.10), draft (1.20)",
        "nothing either way: dice (1.02)",
        "loss: heads (0.80)",
    ]
    assert finding.gains({"copy": 2.0}) == "gain: copy (2.00)"


def test_the_furthest_miss() -> None:
    words = finding.furthest_miss({"a": 1.0, "b": 2.0}, {"a": 1.1, "b": 2.1})
    assert words == "furthest from its prediction: a, predicted 1.00, measured 1.10 (+10%)"
    words = finding.furthest_miss({"a": 1.0, "b": 2.0}, {"a": 1.1, "b": 1.2})
    assert "(-40%).\nA busy machine can do that, or so short a text." in words


@pytest.mark.parametrize(
    ("speeds", "says"),
    [
        ([1.2, 0.9, 0.6], "With 4 it is a loss."),
        ([1.5, 1.4, 1.1], "still a gain"),
        ([0.9, 0.8, 0.6], "a loss even for one"),
        ([0.9, 0.8, 1.0], "Here it is otherwise"),
    ],
)
def test_company(speeds: list[float], says: str) -> None:
    assert says in finding.company([1, 4, 16], speeds)
