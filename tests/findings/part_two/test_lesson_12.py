"""What notebook 12 says on a fast, a slow and a noisy machine."""

from __future__ import annotations

from utils.findings.part_two.lesson_12 import four_bits_served, more_tokens


def test_more_tokens() -> None:
    errors = {"customers": [0.8, 0.4, 0.2], "novel": [1.2, 1.3, 1.1], "random tokens": [1.2, 1.0]}
    said = more_tokens(errors, rounding=0.9)
    assert "divided by that with fewest: customers 0.25, novel 0.92, random tokens 0.83" in said
    assert said.endswith("below plain rounding: only customers")
    assert more_tokens(errors, 2.0).endswith("all of them")
    assert more_tokens(errors, 0.1).endswith("none of them")


def test_four_bits_served() -> None:
    slow = four_bits_served([69, 44], [0.59, 1.09])
    assert "0.64 times as fast" in slow and "1.85 times as long" in slow
    assert slow.endswith("Here unpacking costs more than fewer bytes save.")
    assert "unpacking is cheap" in four_bits_served([69, 90], [0.59, 0.4])
    assert "nearly cancel" in four_bits_served([69, 68], [0.59, 0.60])
    assert "disagree" in four_bits_served([69, 44], [0.59, 0.40])
