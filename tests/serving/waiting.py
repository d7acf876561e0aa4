"""How tests wait: for what must happen, never for a time in which it should have happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60.0  # seconds until something that must happen counts as failed, on the busiest machine


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.01)


@contextmanager
def hang_limit(wake: Callable[[], object]) -> Iterator[None]:
    """Wake what waits in this block for something that must not come, when it waits for too long.

    Then it gets what it waited for, and the test sees it and fails, instead of waiting for ever.
    """
    timer = threading.Timer(PATIENCE, wake)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
