"""A line through points whose line is known."""

from __future__ import annotations

import numpy as np
import pytest

from utils.serving.straight_line import fit_line


def test_points_on_a_line_give_it_without_an_error() -> None:
    line = fit_line([1, 3, 9], [0.05, 0.07, 0.13])
    assert (line.start, line.slope) == (pytest.approx(0.04), pytest.approx(0.01))
    assert (line.start_error, line.slope_error) == pytest.approx((0, 0), abs=1e-9)
    assert str(line) == "40 ± 0 ms + n × (10.0 ± 0.0 ms)"


def test_scattered_points_give_numpys_line_and_errors() -> None:
    rng = np.random.default_rng(0)
    numbers = [1, 3, 6, 9] * 3
    seconds = [0.7 + 0.2 * n + rng.normal(0, 0.05) for n in numbers]
    (slope, start), covariance = np.polyfit(numbers, seconds, 1, cov=True)
    line = fit_line(numbers, seconds)
    assert (line.start, line.slope) == pytest.approx((start, slope))
    expected = np.sqrt(covariance.diagonal())[::-1]
    assert (line.start_error, line.slope_error) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("numbers", [[1, 2], [1, 1, 1], [1, 2, 3, 4]])
def test_too_few_points_are_refused(numbers: list[float]) -> None:
    with pytest.raises(ValueError, match="three or more"):
        fit_line(numbers, [0.1] * min(3, len(numbers)))
