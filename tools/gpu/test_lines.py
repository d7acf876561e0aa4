"""A plugin for pytest: a line of JSON for each test, written as soon as the test ends.

`-p tools.gpu.test_lines` writes into the file that $COURSE_TEST_LINES names. pytest's own reports
are written at the end, and a run that is cut off leaves none.

A test can lose the card: after a bad access CUDA refuses this process all further work. The tests
that are left then run in a new process.
"""

from __future__ import annotations

import json
import os
import sys

import pytest

FILE, GOES_ON = "COURSE_TEST_LINES", "COURSE_TESTS_GO_ON"


class Lines:
    """Writes the lines, and sees whether the card still answers after a test that failed."""

    def __init__(self, file: str, goes_on: bool) -> None:
        self.file, self.goes_on, self.lost = file, goes_on, False
        self.session: pytest.Session | None = None
        with open(file, "a" if goes_on else "w"):
            pass
        with open(file) as lines:
            self.done = {json.loads(line)["test"] for line in lines}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if name_of(item.nodeid) not in self.done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line a test: its call, or the set-up or tear-down that failed or skipped it."""
        if report.when != "call" and report.passed:
            return
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        line = {
            "test": name_of(report.nodeid),
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "why": str(why).removeprefix("Skipped: ")[-2000:],
        }
        with open(self.file, "a") as file:
            file.write(json.dumps(line) + "\n")
        if report.failed and not card_answers():
            self.lost = True
            assert self.session is not None
            self.session.shouldstop = "the card is lost; the tests that are left get a new process"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.goes_on:  # a test of the process before has failed
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self.lost:
            os.environ[GOES_ON] = "1"
            sys.stdout.flush()
            arguments = [str(argument) for argument in config.invocation_params.args]
            os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


def name_of(nodeid: str) -> str:
    return nodeid.partition("::")[2] or nodeid


def card_answers() -> bool:
    """Whether the card still does what it is asked for, or has never been asked."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Lines(os.environ[FILE], GOES_ON in os.environ))
