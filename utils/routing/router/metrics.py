"""What our router counts, in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

COUNTERS = {
    "requests": "Requests sent to a replica, retries included.",
    "retries": "Requests sent to another replica, because one failed before the first byte.",
    "lost": "Answers that broke off after the first byte.",
    "rejected": "Requests refused: no replica alive, or too many requests.",
    "policy_errors": "Requests refused because the policy raised an error.",
}


class Counted(Protocol):
    """A replica, as far as metrics show it."""

    url: str
    alive: bool
    num_running: int
    num_waiting: int


class RouterMetrics:
    """Counters and gauges of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"course:router_{name}", text, _labels(name), registry=self.registry)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(f"course:router_{name}", text, ("replica",), registry=self.registry)
            for name, text in (
                ("alive", "1: answers health checks."),
                ("running", "Answers whose first byte has come."),
                ("waiting", "Requests without a first byte yet."),
            )
        }

    def count(self, name: str, replica: str | None = None) -> None:
        """Raise a counter of `COUNTERS`; "requests" is counted for each replica's URL."""
        counter = self._counters[name]
        (counter.labels(replica) if replica is not None else counter).inc()

    def text(self, replicas: Iterable[Counted]) -> str:
        """All metrics as `/metrics` shows them."""
        for replica in replicas:
            self._gauges["alive"].labels(replica.url).set(replica.alive)
            self._gauges["running"].labels(replica.url).set(replica.num_running)
            self._gauges["waiting"].labels(replica.url).set(replica.num_waiting)
            self._counters["requests"].labels(replica.url)  # so that it is there, as 0
        return generate_latest(self.registry).decode()


def _labels(name: str) -> tuple[str, ...]:
    return ("replica",) if name == "requests" else ()
