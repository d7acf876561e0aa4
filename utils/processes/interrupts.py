"""Interrupts that come between messages, never within one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Let an interrupt come after the block, not within."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is None:
        yield  # interrupts come to the main thread only
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            signal.raise_signal(signal.SIGINT)
