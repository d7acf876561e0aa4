"""Notebook 02 says the right thing of fast, slow and noisy machines."""

from __future__ import annotations

import pytest

from utils.findings.part_one.lesson_02 import steps_with_and_without

LENGTHS = (16, 64, 512)
READ_BYTES = (100, 101, 104)


@pytest.mark.parametrize("speed", [1, 0.01])
def test_flat_on_a_quiet_machine_fast_or_slow(speed: float) -> None:
    without, cached = [0.1 * speed, 0.2 * speed, 1.4 * speed], [0.040 * speed] * 3
    words = steps_with_and_without(LENGTHS, without, cached, READ_BYTES)
    assert "from 16 to 512 tokens, 32 times the text" in words
    assert "without cache  14.0 times" in words
    assert "with cache     1.00 times as long (predicted from its bytes: 1.04)" in words
    assert "as predicted" in words
    assert "again" not in words


@pytest.mark.parametrize(
    ("cached", "says"),
    [
        ((0.04, 0.04, 0.08), "its steps grew more than their bytes did"),
        ((0.04, 0.04, 0.60), "grew no less than that without"),
        ((0.08, 0.04, 0.04), "even became faster"),
    ],
)
def test_a_noisy_machine_is_admitted(cached: tuple[float, ...], says: str) -> None:
    words = steps_with_and_without(LENGTHS, (0.1, 0.2, 1.4), cached, READ_BYTES)
    assert says in words
    assert words.endswith("A busy machine does that; run the cell again.")
