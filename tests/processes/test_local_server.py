"""A server that doesn't start says why: its last lines in the message, everything in `log`."""

from __future__ import annotations

import os
import sys

import pytest

from utils.processes.server import LocalServer
from utils.processes.supervised import TAIL_LINES, WorkerError

FAILS = "print('the root cause')\nfor i in range(100): print('line', i)\nraise SystemExit(3)"


def test_the_error_keeps_the_whole_log() -> None:
    with pytest.raises(WorkerError, match="The end of its output") as caught:
        LocalServer([sys.executable, "-c", FAILS], dict(os.environ), "none")
    assert "the root cause" not in str(caught.value) and "line 99" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= TAIL_LINES + 1
    assert caught.value.log.startswith("the root cause\n") and "line 99" in caught.value.log
    assert WorkerError("short").log == ""
