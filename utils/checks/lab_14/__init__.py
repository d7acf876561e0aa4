"""The checks of lab 14.

Oracles: plain and slow counterparts, a pretended engine that is told when a step ends, a simulated
server; at last the course's engine behind a real server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, exercise
from utils.checks.lab_14 import (
    admissions,
    event_streams,
    histograms,
    loop_mistakes,
    promises,
    real_server,
    writing,
)


@exercise("Exercise 1: EventReader", points=3)
def event_reader(reader_class: Callable[..., Any]) -> str | Passed:
    """Check `feed` and `done` on streams that come in any pieces."""
    return event_streams.EVENT_READER.check(reader_class)


@exercise("Exercise 2: Histogram", points=3)
def histogram(histogram_class: Callable[..., Any]) -> str | Passed:
    """Check `observe`, `buckets`, `sum`, `count` and `quantile` in random stories."""
    return histograms.HISTOGRAM.check(histogram_class)


@exercise("Exercise 3: slo_report", points=3)
def slo_report(function: Callable[..., tuple[float, float]]) -> str | Passed:
    """Check `slo_report(attempts, begin, end, ttft, tpot)`."""
    return promises.SLO_REPORT.check(function)


@exercise("Exercise 4: AsyncLLM", points=6)
def async_llm(llm_class: Callable[..., Any]) -> str | Passed:
    """Check `run` and `generate` around a pretended engine, without any clock."""
    return loop_mistakes.ASYNC_LLM.check(llm_class)


@exercise("Exercise 5: seconds_to_wait", points=4)
def seconds_to_wait(function: Callable[..., float]) -> str | Passed:
    """Check what becomes of random arrivals at a simulated server behind the learner's rule."""
    return admissions.SECONDS_TO_WAIT.check(function)


@exercise("Exercise 6: your loop behind a real server", points=4)
def engine(llm_class: Callable[..., Any], write_events: Any, reader_class: Any) -> str:
    """Check `write_events`, then all three with the course's engine and clients over HTTP."""
    parts = {1: (event_streams.EVENT_READER, reader_class), 4: (loop_mistakes.ASYNC_LLM, llm_class)}
    for number, (contract, part) in parts.items():  # before anything is started
        try:
            contract.check(part)
        except Mismatch as wrong:
            wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
            raise
    writing.WRITE_EVENTS.check(write_events)
    return real_server.serve(llm_class, write_events, reader_class)
