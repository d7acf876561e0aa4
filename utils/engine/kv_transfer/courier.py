"""A thread that talks to the store, so that the engine never waits longer than it wants to."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from utils.engine.kv_transfer.store import StoreError, StoreTimeout

T = TypeVar("T")


class Courier:
    """Runs errands to a store, one after the other, in a thread of its own.

    A store that failed is left alone for a while: otherwise every request would pay for finding out
    once more. One that is still busy with an old errand is left alone until it is done.

    Args:
        timeout: the most seconds to wait for an errand.
        retry_after: how long to leave a store alone that failed, in seconds.
        failures: counts "timeout" and "error".
    """

    def __init__(self, timeout: float, retry_after: float, failures: Counter[str]) -> None:
        if not timeout > 0 or not retry_after >= 0:
            raise ValueError(
                f"timeout must be above 0 and retry_after at least 0 seconds, got {timeout} and "
                f"{retry_after}."
            )
        self.timeout, self.retry_after, self.failures = timeout, retry_after, failures
        self.last_error: BaseException | None = None
        self._errands: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._down_until = 0.0
        self._overdue: Future[Any] | None = None

    @property
    def is_down(self) -> bool:
        """Whether the store is being left alone."""
        stuck = self._overdue is not None and not self._overdue.done()
        return stuck or time.monotonic() < self._down_until

    def send(self, errand: Callable[[], T]) -> Future[T] | None:
        """Start an errand. None: the store is being left alone."""
        if self.is_down:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-courier", daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._errands.put((future, errand))
        return future

    def result(self, future: Future[T] | None) -> T | None:
        """Wait for an errand: what it brought, or None if it failed, whatever the reason.

        Errors that are no trouble with a store (a bug in it, for instance) are raised.
        """
        if future is None or future.cancelled():
            return None
        if self.is_down:  # another errand failed meanwhile
            future.cancel()
            return None
        try:
            return future.result(self.timeout)
        except (TimeoutError, StoreTimeout) as error:
            self._give_up("timeout", future, error)
        except (StoreError, OSError) as error:
            self._give_up("error", future, error)
        return None

    def ask(self, errand: Callable[[], T]) -> T | None:
        """Send and wait."""
        return self.result(self.send(errand))

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._down_until = float("inf")
        self._errands.put(None)

    def _give_up(self, reason: str, future: Future[Any], error: BaseException) -> None:
        future.cancel()
        self.failures[reason] += 1
        self.last_error, self._overdue = error, future
        self._down_until = max(self._down_until, time.monotonic() + self.retry_after)

    def _run(self) -> None:
        while (item := self._errands.get()) is not None:
            future, errand = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(errand())
            except BaseException as error:
                future.set_exception(error)
