"""What notebook 10 says about its measurements, on measurements made up."""

from __future__ import annotations

from utils.findings.part_two.lesson_10 import (
    fast_kernel,
    held_out_by_alpha,
    held_out_by_rank,
    price,
    swallowed,
)


def test_held_out_by_rank() -> None:
    said = held_out_by_rank(0.85, {1: 0.54, 4: 0.44, 64: 0.43})
    assert said.startswith("Held-out loss 0.85 before, 0.54 with r = 1, 0.44 with r = 4, 0.43 with")
    assert "From r = 4 to r = 64, 16 times as many numbers" in said
    assert "-2%: next to nothing" in said
    assert "otherwise" in held_out_by_rank(0.85, {1: 0.54, 4: 0.44, 64: 0.3})
    assert "worse" in held_out_by_rank(0.85, {1: 0.54, 4: 0.44, 64: 0.6})
    assert "r = 4 learned nothing" in held_out_by_rank(0.85, {1: 0.9, 4: 0.9, 64: 0.9})


def test_held_out_by_alpha() -> None:
    ends = {2: 0.7, 32: 0.27, 1024: 0.3}
    said = held_out_by_alpha(0.85, {2: 0.69, 32: 0.41, 1024: 1.73}, ends)
    assert "alpha = 2 gains 0.16, alpha = 32 gains 0.44, and alpha = 1024 loses 0.88" in said
    assert "its loss is 0.30 in the end all the same" in said
    lost = held_out_by_alpha(0.85, {2: 0.69, 32: 0.41, 1024: 1.73}, ends | {1024: 1.2})
    assert lost.endswith("it is thrown about.")
    gained = held_out_by_alpha(0.85, {2: 0.69, 32: 0.41, 1024: 0.65}, ends)
    assert gained.endswith("1024 gains 0.20.")
    best = held_out_by_alpha(0.85, {2: 0.69, 32: 0.41, 1024: 0.4}, ends)
    assert "otherwise: alpha = 1024" in best


def test_fast_kernel() -> None:
    assert "swallowed, without an error" in fast_kernel(True, False)
    assert "arrives both times" in fast_kernel(True, True)
    assert "otherwise" in fast_kernel(False, False)


def test_swallowed() -> None:
    assert "0.85 before, 0.41 after, 0.63 if swallowed: it still learns, 50%" in swallowed(
        0.85, 0.41, 0.63
    )
    assert "nothing is learned" in swallowed(0.85, 0.41, 0.9)
    assert "as much all the same" in swallowed(0.85, 0.41, 0.40)


def test_price() -> None:
    assert price(37.0, 51.9) == "The price: plain English has become 40% more surprising."
    assert "changed by +0.3%" in price(37.0, 37.1)
    assert "changed by -2.7%" in price(37.0, 36.0)
