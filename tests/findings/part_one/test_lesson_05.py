"""What notebook 05 says of fast, slow and noisy machines."""

from __future__ import annotations

from utils.findings.part_one.lesson_05 import attack, hit_time

SHARED = [0, 128, 256, 384]
MISS, HIT = [0.107, 0.303, 0.467, 0.668], [0.105, 0.112, 0.116, 0.119]


def test_the_second_attempt_is_better_and_a_hit_rises_a_little() -> None:
    said = hit_time(SHARED, MISS, HIT, 0.091, 0.106)
    assert "off by 19% on average, the second by 6%. So the size of the matrix" in said
    assert "was most of the miss" in said
    assert said.endswith("shared tokens a hit gets 14 ms slower, a miss 561 ms.")


def test_a_second_attempt_that_is_hardly_better_explains_little() -> None:
    assert "at most a part of the miss" in hit_time(SHARED, MISS, HIT, 0.091, 0.095)


def test_a_second_attempt_that_is_no_better_is_not_praised() -> None:
    said = hit_time(SHARED, MISS, HIT, 0.112, 0.140)
    assert "Here the second is no better" in said and "matters" not in said


def test_a_fast_machine_may_have_flat_hits() -> None:
    said = hit_time(SHARED, [0.010, 0.012, 0.014, 0.016], [0.010] * 4, 0.008, 0.010)
    assert "does not get slower" in said


def test_hits_that_rise_like_misses_are_called_noise() -> None:
    said = hit_time(SHARED, MISS, [0.1, 0.2, 0.3, 0.5], 0.091, 0.106)
    assert "Here a hit is not flat" in said and "run the cells again" in said


def test_an_attack_succeeds_fails_or_stays_in_doubt() -> None:
    times = {"Anna": 0.188, "Clara": 0.082, "David": 0.193}
    assert attack(times, "Clara") == (
        "The fastest is Clara, 2.3 times faster than the next. He knows."
    )
    assert "That is wrong" in attack(times, "Anna")
    assert "could not be sure" in attack(times | {"Anna": 0.085}, "Clara")
