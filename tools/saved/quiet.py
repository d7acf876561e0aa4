"""Is the machine quiet enough to record timings? Measured beside every timed cell.

It judges the machine, never a result, and it never fails: a notebook that was recorded on a busy
machine says so, and is listed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

# A cell counts as measured on a quiet machine if both stay below these, in percent.
OTHERS_PERCENT = 5.0  # what other programs took of all cores while the cell ran
SPREAD_PERCENT = 25.0  # how much slower than at best the fixed work beside the cell was
# In all, a notebook's record waits for a quiet machine, and is repeated, for at most this long.
PATIENCE_S = 600.0
PAUSE_S = 2.0
REST_S, TICK_S = 5.0, 0.2

# The shapes of SmolLM2-135M: a decode step reads each of its matrices once.
LAYERS = 30
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))


class FixedWork:
    """The same work each time: a product, a copy, and the matrices of a decode step."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal(1_000_000, dtype=np.float32)
        self.square = np.resize(values, (512, 512))
        self.source, self.target = np.zeros(1 << 25, np.uint8), np.empty(1 << 25, np.uint8)
        self.matrices = [np.resize(values, shape) for _ in range(LAYERS) for shape in SHAPES]
        self.best: dict[str, float] = {}

    def slower_percent(self) -> float:
        """How much slower than at best the slowest of the three is now, in percent."""
        _wait_for_our_own()
        times = {
            "product": _seconds(lambda: self.square @ self.square),
            "copy": _seconds(lambda: np.copyto(self.target, self.source)),
            "decode step": _seconds(self._decode_step),
        }
        for name, seconds in times.items():
            self.best[name] = min(seconds, self.best.get(name, seconds))
        return 100 * max(times[name] / best - 1 for name, best in self.best.items())

    def _decode_step(self) -> None:
        for matrix in self.matrices:
            matrix.T @ matrix[:, 0]


def _wait_for_our_own() -> None:
    """Let a kernel or server of ours finish what it does after a cell, such as sending output."""
    end = time.perf_counter() + REST_S
    while time.perf_counter() < end:
        before = own_seconds()
        time.sleep(TICK_S)
        if own_seconds() - before < TICK_S / 10:
            return


def _seconds(work: Callable[[], Any]) -> float:
    """Median of five runs."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def busy_seconds() -> float:
    """CPU seconds that this machine has worked since it was started; stolen ones count, too."""
    now = psutil.cpu_times()
    idle = now.idle + getattr(now, "iowait", 0.0)
    # Guests' time is in the user's already.
    return sum(now) - idle - getattr(now, "guest", 0.0) - getattr(now, "guest_nice", 0.0)


def own_seconds() -> float:
    """CPU seconds of this process and of all that it started."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and of children that have ended
        except psutil.NoSuchProcess:
            continue
    return total


@dataclass
class Watch:
    """Watches the machine while a notebook runs.

    Attributes:
        patience_s: seconds of waiting that are left.
        others: cell id -> percent of all cores that other programs took while it ran.
        spread: cell id -> by how many percent fixed work was slower than at best, beside it.
    """

    patience_s: float = PATIENCE_S
    work: FixedWork = field(default_factory=FixedWork)
    others: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)

    def before(self, cell: str) -> None:
        """Wait until the machine is quiet, as long as there is patience; then the cell begins."""
        slower = self.work.slower_percent()
        while slower > SPREAD_PERCENT and self.patience_s > 0:
            began = time.monotonic()
            time.sleep(PAUSE_S)
            slower = self.work.slower_percent()  # takes as long as the pause, or longer
            self.patience_s -= time.monotonic() - began
        self.spread[cell] = slower
        self._began = time.monotonic(), busy_seconds(), own_seconds()

    def after(self, cell: str) -> None:
        """The cell has ended."""
        began, busy, own = self._began
        wall = time.monotonic() - began
        others = (busy_seconds() - busy) - (own_seconds() - own)
        # The clock ticks in hundredths of a second: nothing can be said of a shorter cell.
        share = 0.0 if wall < 0.2 else 100 * others / (wall * (psutil.cpu_count() or 1))
        self.others[cell] = max(0.0, share)
        self.spread[cell] = max(self.spread[cell], self.work.slower_percent())

    @property
    def busy(self) -> list[str]:
        """The cells that ran while the machine was busy."""
        return [
            cell
            for cell in self.others
            if self.others[cell] > OTHERS_PERCENT or self.spread[cell] > SPREAD_PERCENT
        ]

    def unrest(self) -> tuple[int, float]:
        """How unsteady the run was: the fewer busy cells the better, then the smaller spread."""
        return len(self.busy), max(self.spread.values(), default=0.0)

    def record(self) -> dict[str, Any]:
        """What the notebook says of it."""
        return {
            "others_percent": round(max(self.others.values(), default=0.0), 1),
            "spread_percent": round(max(self.spread.values(), default=0.0), 1),
            "busy_cells": self.busy,
        }
