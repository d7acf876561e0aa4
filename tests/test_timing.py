"""The clock counts what it should."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from utils import timing


@pytest.fixture(autouse=True)
def _as_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(timing.REPEATS_VAR, raising=False)  # the tests of lessons take one


def test_under_test_a_timing_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(timing.REPEATS_VAR, "1")
    calls: list[int] = []
    assert timing.median_seconds(lambda: calls.append(1), repeats=7, warmup=3) > 0
    assert calls == [1]


def test_median_of_the_counted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 9, 10, 11, 20, 22])  # three runs: 9, 1 and 2 seconds
    calls = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert timing.median_seconds(lambda: calls.append(1), repeats=3, warmup=2) == 2
    assert len(calls) == 5


def test_fastest_of_the_counted_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 9, 10, 11, 20, 22])  # three runs: 9, 1 and 2 seconds
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert timing.fastest_seconds(lambda: None, repeats=3) == 1


@pytest.mark.parametrize("clock", [timing.median_seconds, timing.fastest_seconds])
def test_no_runs_is_refused(clock: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        clock(lambda: None, repeats=0)
