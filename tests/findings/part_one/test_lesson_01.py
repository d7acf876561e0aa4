"""Notebook 01 says the right thing of fast, slow and noisy machines."""

from __future__ import annotations

from utils.findings.part_one.lesson_01 import bounds_hold, factors, flat_then_rising

SIZES = (1, 2, 4, 8, 16, 32)


def test_a_quiet_machine_hits_the_factor() -> None:
    words = factors(first=(0.040, 0.004), bounds_s=(0.030, 0.003), measured_s=(0.040, 0.004))
    assert words.splitlines()[0].startswith("a written token costs  10.0 times")
    assert "10.0 times, predicted" in words and "10.0 times, measured now" in words
    assert "Measured now is 1.00 times the prediction" in words
    assert "the factor is hit" in words
    assert "again" not in words


def test_overhead_of_a_short_pass_is_named() -> None:
    words = factors(first=(0.060, 0.004), bounds_s=(0.030, 0.003), measured_s=(0.060, 0.004))
    assert "Measured now is 1.50 times the prediction" in words
    assert "took 2.00 times\nits bound, a long pass 1.33 times" in words
    assert "weighs more in a short pass" in words
    words = factors(first=(0.030, 0.006), bounds_s=(0.030, 0.003), measured_s=(0.030, 0.006))
    assert "the long pass lies further from its bound" in words


def test_a_machine_that_became_busy_is_told_from_a_wrong_formula() -> None:
    words = factors(first=(0.040, 0.002), bounds_s=(0.030, 0.003), measured_s=(0.040, 0.004))
    assert "a written token took 1.00 times what it takes now, a read one 0.50 times" in words
    assert "Run both cells again" in words


def test_a_hit_by_chance_is_not_sold_as_a_success() -> None:
    words = factors(first=(0.3, 0.03), bounds_s=(0.030, 0.003), measured_s=(0.3, 0.03))
    assert "Both are far from their bounds: the machine is busy." in words


def test_a_beaten_bound_is_reported() -> None:
    assert bounds_hold([1.0, 2.0], [1.0, 2.5]) == "No pass was faster than its bound."
    words = bounds_hold([1.0, 3.0], [1.0, 2.0])
    assert "1 of 2 passes beat the bound, by up to 1.50 times" in words
    assert "again" in words


def test_flat_then_rising_as_predicted() -> None:
    bounds = [1, 1, 1, 1, 2, 4]
    words = flat_then_rising(SIZES, bounds, [1.1 * b for b in bounds])
    assert "memory-bound, from 1 to 8 tokens: twice the tokens take 1.00 times" in words
    assert "compute-bound, from 8 to 32 tokens: twice the tokens take 2.00 times" in words
    assert "91% of it" in words
    assert "nearly flat on the left" in words


def test_a_left_side_that_rises_is_admitted() -> None:
    words = flat_then_rising(SIZES, [1, 1, 1, 1, 2, 4], [1.5, 2.1, 3, 4, 5, 6])
    assert "twice the tokens take 1.39 times as long (predicted 1.00)" in words
    assert "furthest: one of 8, 25%" in words
    assert "the left is not flatter than the right" in words and "run the cell again" in words
    words = flat_then_rising(SIZES, [1, 1, 1, 1, 2, 4], [1.5, 2.1, 3, 4, 7, 13])
    assert "and yet it rises" in words


def test_a_right_side_that_rises_by_less_than_the_tokens() -> None:
    words = flat_then_rising(SIZES, [1, 1, 1, 1, 2, 4], [2, 2.1, 2.2, 2.3, 3.8, 6])
    assert "twice the tokens take 1.62 times as long (predicted 2.00)" in words
    assert "it rises, by less than the\ntokens" in words and "in proportion" not in words


def test_a_machine_without_a_memory_bound_side() -> None:
    words = flat_then_rising(SIZES, [1, 2, 4, 8, 16, 32], [2, 4, 8, 16, 32, 64])
    assert "No two of these passes are memory-bound on this machine." in words
    assert "run the cell again" not in words
