"""Engine, quantizers and measures run on a card, as far as that shows without one.

`pretend_card.py` says what it can find: tensors on two devices, and a card that is full. The
answers are those of the CPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def report() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.device.cases"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_goes_wrong(report: list[dict[str, Any]]) -> None:
    problems = {line["case"]: line["problem"] for line in report if line["problem"]}
    assert problems == {}


def test_every_part_was_run(report: list[dict[str, Any]]) -> None:
    cases = {line["case"] for line in report}
    assert len(cases) == len(report) > 40
    assert sum(case.startswith("planted: ") for case in cases) == 10
