"""A plugin for pytest: a line of JSON for each test, written as soon as the test ends.

`-p tools.gpu.test_lines` writes into the file that $COURSE_TEST_LINES names. pytest's own reports
are written at the end, and a run that is cut off leaves none.
"""

from __future__ import annotations

import json
import os

import pytest

FILE = "COURSE_TEST_LINES"


def pytest_sessionstart() -> None:
    with open(os.environ[FILE], "w"):
        pass


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line a test: its call, or the set-up or tear-down that failed or skipped it."""
    if report.when != "call" and report.passed:
        return
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    line = {
        "test": report.nodeid.partition("::")[2] or report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
        "why": str(why).removeprefix("Skipped: ")[-2000:],
    }
    with open(os.environ[FILE], "a") as file:
        file.write(json.dumps(line) + "\n")
