"""Two sizes of one suite: `make test` runs the small one, `make test-full` the full one.

Every number that differs between the two is either here or marked in its test by `sized` or
`only_full`; nothing else may look at the scale. `tests/house/test_scale.py` proves that the small
suite is a part of the full one.

What lessons and solutions run at the small size is listed in `tests/scaled_cells.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

VARIABLE = "COURSE_SCALE"
SMALL, FULL = "small", "full"
SCALE = os.environ.get(VARIABLE) or SMALL
if SCALE not in (SMALL, FULL):
    raise ValueError(f"{VARIABLE} is {SCALE!r}; expected {SMALL!r} or {FULL!r}.")

# How each skip begins that the small size makes. The summary counts them.
ONLY_FULL = "full size:"


def sized(small: int, full: int) -> int:
    """The number that a test uses at this scale. A small number must not exceed the full one."""
    assert small <= full, f"the small size, {small}, exceeds the full size, {full}"
    return full if SCALE == FULL else small


def only_full(why: str) -> Callable[[Any], Any]:
    """Mark a test that runs at full size alone; `why` says what it adds to the small size."""
    return pytest.mark.skipif(SCALE != FULL, reason=f"{ONLY_FULL} {why}")


# The pipeline that the tests run, and that the notebooks read: see `utils/profiles.py`.
PIPELINE_PROFILE = "cpu" if SCALE == FULL else "cpu-small"
