"""A straight line through measured times, and how sure one can be of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """Seconds that grow with a number: `start + slope * n`, each with its standard error.

    Printed in milliseconds.
    """

    start: float
    slope: float
    start_error: float
    slope_error: float

    def __str__(self) -> str:
        start, slope, start_error, slope_error = (
            1e3 * value for value in (self.start, self.slope, self.start_error, self.slope_error)
        )
        return f"{start:.0f} ± {start_error:.0f} ms + n × ({slope:.1f} ± {slope_error:.1f} ms)"


def fit_line(numbers: Sequence[float], seconds: Sequence[float]) -> Line:
    """The line with the least squares of what is left.

    Args:
        numbers: at least two different ones, three values or more in all.
        seconds: what was measured at each of them.

    Raises:
        ValueError: too few values, or they are not one for each number.
    """
    if len(numbers) != len(seconds) or len(numbers) < 3 or len(set(numbers)) < 2:
        raise ValueError(
            f"Got {len(numbers)} numbers and {len(seconds)} times. A line and its error need three "
            "or more of both, at two or more different numbers."
        )
    x, y = np.asarray(numbers, float), np.asarray(seconds, float)
    spread = x - x.mean()
    slope = float(spread @ y / (spread @ spread))
    start = float(y.mean() - slope * x.mean())
    left = y - (start + slope * x)
    variance = float(left @ left) / (len(x) - 2)
    slope_error = (variance / float(spread @ spread)) ** 0.5
    start_error = (variance * (1 / len(x) + x.mean() ** 2 / float(spread @ spread))) ** 0.5
    return Line(start, slope, float(start_error), slope_error)
