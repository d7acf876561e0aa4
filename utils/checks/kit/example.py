"""The check that notebook 00 shows. No lab asks for this function, so nothing is given away."""

from __future__ import annotations

import math
from collections.abc import Callable

from utils.checks.kit.runner import Mismatch, call, exercise

TRIED = ([3.0], [2.0, 2.0], [1.0, -1.0], [1.0, 2.0, 3.0])


@exercise("An example: mean_of_squares", points=1)
def mean_of_squares(function: Callable[[list[float]], float]) -> str:
    """Check `mean_of_squares(numbers)`: square each, then take the mean."""
    for numbers in TRIED:
        expected = sum(x * x for x in numbers) / len(numbers)
        got = call(function, list(numbers), given=f"numbers {numbers}")
        if not isinstance(got, int | float) or not math.isclose(got, expected, rel_tol=1e-9):
            raise Mismatch(
                "This is not the mean of the squares.",
                input=f"numbers {numbers}",
                expected=f"{expected:g}",
                got=repr(got),
                look="Square each number first. The mean of all comes last.",
            )
    return f"Right for all {len(TRIED)} inputs."
