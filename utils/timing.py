"""Timing that can be trusted a little on a noisy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(function: Callable[[], object], repeats: int = 5, warmup: int = 1) -> float:
    """Median wall-clock seconds of `function()` over `repeats` runs, after `warmup` runs.

    The first run pays for caches and memory that later runs find ready, so it is not counted.
    The median ignores the odd run that something else on the machine disturbed.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}.")
    for _ in range(warmup):
        function()
    _finish()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        _finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _finish() -> None:
    # A GPU works on while Python goes ahead; without this we would time only the queueing.
    if torch.cuda.is_available():
        torch.cuda.synchronize()
