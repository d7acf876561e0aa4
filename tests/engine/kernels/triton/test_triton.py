"""The Triton kernels without a card: right in the interpreter, compiled for three cards.

`tests/device/test_on_cuda.py` runs them on one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.kernels.triton.limits import CARDS
from utils.environments.kernels import environment

ROOT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux")


def lines(module: str, interpret: bool) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", f"tests.engine.kernels.triton.{module}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(interpret), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_they_agree_with_the_references_and_wrong_ones_do_not() -> None:
    found = lines("cases", interpret=True)
    assert [line for line in found if line["problem"]] == []
    names = [line["case"] for line in found]
    assert sum(name.startswith("attention, ") for name in names) > 30
    assert sum(name.startswith("wrong: ") for name in names) == 8
    assert sum(name.startswith("engine") for name in names) == 5


def test_they_compile_for_each_card_and_fit_into_it() -> None:
    """Hardly a number has to leave the registers, no program asks for more memory than there is,
    and in float32 nothing is multiplied with fewer digits (TF32)."""
    found = lines("compiled", interpret=False)
    assert {line["card"] for line in found} == set(CARDS)
    assert len({line["kernel"] for line in found}) == 8
    wrong = [
        line
        for line in found
        if line["spilled_bytes"] > 64
        or line["shared_bytes"] > CARDS[line["card"]]
        or (line["dtype"] == "fp32" and line["tf32"])
        or not 0 < line["registers"] <= 255
    ]
    assert wrong == []
