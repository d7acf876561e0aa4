"""Ticks by hand, for what must hold on any machine: no test waits for a processor, or races it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from utils.checks.kit import patience


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """One tick of computing. The timers never fire, and the processor's clock counts ticks alone.

    That the real timers fire is shown in test_patience.py.
    """
    clock = 0.0

    def one_tick() -> None:
        nonlocal clock
        clock += patience.COMPUTING_S
        signal.raise_signal(signal.SIGVTALRM)

    monkeypatch.setattr(signal, "setitimer", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(time, "process_time", lambda: clock)
    return one_tick
