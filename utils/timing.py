"""Timing that can be trusted a little on a noisy machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

# Under test each timing is taken once: the cells that show it are run, and their output is ignored.
REPEATS_VAR = "COURSE_REPEATS"


def median_seconds(function: Callable[[], object], repeats: int = 5, warmup: int = 1) -> float:
    """Median wall-clock seconds of `function()` over `repeats` runs, after `warmup` runs.

    The first run pays for caches and memory that later runs find ready, so it is not counted.
    The median ignores the odd run that something else on the machine disturbed.
    """
    return statistics.median(_seconds(function, repeats, warmup))


def fastest_seconds(function: Callable[[], object], repeats: int = 5, warmup: int = 1) -> float:
    """Seconds of the fastest of `repeats` runs of `function()`, after `warmup` runs.

    For limits of the machine: what else runs on it can only make a run slower.
    """
    return min(_seconds(function, repeats, warmup))


def _seconds(function: Callable[[], object], repeats: int, warmup: int) -> list[float]:
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}.")
    if once := os.environ.get(REPEATS_VAR):
        repeats, warmup = int(once), 0
    for _ in range(warmup):
        function()
    _finish()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        _finish()
        times.append(time.perf_counter() - start)
    return times


def _finish() -> None:
    # A GPU works on while Python goes ahead; without this we would time only the queueing.
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, as each of several processes does.

    Small tensors gain nothing from more: threads then wait for each other, and spin meanwhile.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
