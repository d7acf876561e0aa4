"""What is known within a minute: style, types, and the rules of the house."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STYLE = (["ruff", "check", "--quiet"], ["ruff", "format", "--check", "--quiet"], ["mypy"])
HOUSE = ("tests/house", "tests/notebooks/test_notebook_rules.py")


def broken_style() -> list[str]:
    """Run linter, formatter and type checker; each says itself what is wrong. Those that failed."""
    return [
        " ".join(command)
        for command in STYLE
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode
    ]
