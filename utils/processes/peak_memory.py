"""The most memory that this process and its descendants hold together."""

from __future__ import annotations

import threading

import psutil


class PeakMemory:
    """Context manager: the peak memory of this process and its descendants, sampled.

    `peak` is in bytes, the sum of the resident sets. Pages that processes share count in each of
    them, so the true peak is a little lower.
    """

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while True:
            total = 0
            for process in (this, *this.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # it ended meanwhile
            self.peak = max(self.peak, total)
            if self._done.wait(self.interval):
                return
