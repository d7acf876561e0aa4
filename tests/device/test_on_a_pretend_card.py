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

from tests.device.cases import training_cases

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


def test_a_lesson_runs_on_it() -> None:
    name = "00b_what_may_i_skip"
    command = [sys.executable, "-m", "tests.device.lessons", name, "--pretend=said"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lesson"] == name and found["ran"] == found["cells"] and not found["stopped"]


def test_gradients_are_compared_on_a_processor_too(tmp_path: Path) -> None:
    """Otherwise the case for a card would not follow what is renamed in the pipeline."""
    assert training_cases(tmp_path)["LoRA, bfloat16"]("cpu") > 0.99


RUN_CELLS = """
import json, sys
from dataclasses import asdict
from tests.device.lessons import run_cells
print(json.dumps(asdict(run_cells(json.loads(sys.argv[1]), 60, {"tired": "no strength"}))))
"""


def run(*cells: str) -> dict[str, Any]:
    command = [sys.executable, "-c", RUN_CELLS, json.dumps(cells)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_cells_without_their_package_are_passed_over_and_so_is_what_needs_them() -> None:
    found = run(
        "a = 1",
        "import no_such_package; b = a",
        "print(b)",
        "c = a + 1",
        "d = b\ndef f(): pass",
        "f()",
        "assert c == 2",
        "print(e)",
        "c = 3",
    )
    why = "no no_such_package here"
    assert found["not_run"] == {"1": why, "2": why, "4": why, "5": why}
    assert found["ran"] == 3
    assert found["stopped"] == "cell 7: NameError: name 'e' is not defined"
    assert run("raise ValueError('tired')")["stopped"] == "no strength"
