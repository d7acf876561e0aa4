"""The formatter, the linter (notebooks included) and the type checker have nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "--quiet"], ["ruff", "format", "--check", "--quiet"], ["mypy"]],
    ids=["linter", "formatter", "types"],
)
def test_nothing_to_say(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
