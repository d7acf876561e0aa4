"""What a run says: a failure when it happens, what took long, and a record for `tools/proof`."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# Where `tools/proof` asks a run to write down what it did.
RECORD = "COURSE_PROOF_RECORD"
_EXPLAINED = 3000  # characters of a failure that are shown at once; all of it comes at the end


class Record:
    """Outcome of each test, and seconds of each file."""

    def __init__(self) -> None:
        self.collected = 0
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}  # of what was skipped
        self.seconds: Counter[str] = Counter()

    def add(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
        before = self.outcomes.get(report.nodeid)
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif before is None and (report.skipped or report.when == "call"):
            self.outcomes[report.nodeid] = report.outcome
            if report.skipped:
                text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else ""
                self.reasons[report.nodeid] = str(text).removeprefix("Skipped: ")


_RECORD = Record()


def _is_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_finish(session: pytest.Session) -> None:
    if not _is_worker():
        _RECORD.collected = len(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _RECORD.collected = len(ids)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failure at once: `-q -n 2` alone prints an "F", and its text after the last test."""
    if _is_worker():
        return
    _RECORD.add(report)
    if report.failed:
        text = report.longreprtext[-_EXPLAINED:]
        print(f"\n\nFAILED just now: {report.nodeid} ({report.when})\n{text}\n", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    place = os.environ.get(RECORD)
    if place and not _is_worker():
        record = {
            "collected": _RECORD.collected,
            "outcomes": _RECORD.outcomes,
            "reasons": _RECORD.reasons,
            "seconds": {name: round(total, 1) for name, total in _RECORD.seconds.items()},
        }
        Path(place).write_text(json.dumps(record, indent=1))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the ten files that took longest, below pytest's ten slowest tests."""
    seconds = _RECORD.seconds
    if len(seconds) > 1:
        terminalreporter.section("slowest 10 files")
        for name, total in seconds.most_common(10):
            terminalreporter.line(f"{total:8.1f}s {name}")
        terminalreporter.line(f"{sum(seconds.values()):8.1f}s all {len(seconds)} files")
