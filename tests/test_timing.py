"""The clock counts what it should."""

from __future__ import annotations

import pytest

from utils import timing


def test_median_of_the_counted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 9, 10, 11, 20, 22])  # three runs: 9, 1 and 2 seconds
    calls = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert timing.median_seconds(lambda: calls.append(1), repeats=3, warmup=2) == 2
    assert len(calls) == 5


def test_no_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        timing.median_seconds(lambda: None, repeats=0)
