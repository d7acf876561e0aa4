"""What notebook 04 says of fast, slow and noisy machines."""

from __future__ import annotations

import pytest

from utils.findings.part_one.lesson_04 import loop_time, paged_step

LENGTHS, BOUNDS = [128, 512, 1536], [1.02, 1.08, 1.23]


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        ([0.99, 1.00, 0.96], "No difference of more than 5 %"),
        ([1.01, 1.05, 1.18], "up to 1.18 times a contiguous one. That is the prediction"),
        ([1.02, 1.40, 1.20], "after 512 tokens a paged step takes 1.40 times"),
        ([0.70, 1.00, 1.01], "only 0.70 times"),
    ],
)
def test_a_paged_step(ratios: list[float], says: str) -> None:
    assert says in paged_step(LENGTHS, ratios, BOUNDS)


def test_what_is_too_slow_counts_before_what_is_too_fast() -> None:
    assert "at most 1.23 was predicted" in paged_step(LENGTHS, [0.5, 1.0, 1.9], BOUNDS)


@pytest.mark.parametrize(
    ("small", "large", "says"),
    [
        (14.9, 7.2, "as predicted. With large blocks it decides less"),
        (15.5, 15.0, "as predicted. With large blocks it decides as well"),
        (4.7, 7.7, "Even with small blocks"),
        (40.0, 7.7, "Here it is otherwise"),
        (15.0, 30.0, "Here it is otherwise"),
    ],
)
def test_turns_of_the_loop(small: float, large: float, says: str) -> None:
    assert says in loop_time(small, large, 16)
