"""Errors that the page on troubleshooting explains lead to it, and its headings answer them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/troubleshooting.md"
# The file that raises an error -> what the page says about it.
EXPLAINED = {
    "tools/setup.py": "## Set-up stops",
    "utils/bootstrap.py": "## Colab and Kaggle",
    "utils/engine/kernels/fast_ops.py": "sudo apt install g++",
    "utils/processes/ranks.py": '**A program "was killed"',
    "utils/hub.py": "pip config set global.proxy",
    "utils/processes/supervised.py": '**A program "was killed"',
    "utils/pipeline/runner.py": '**A program "was killed"',
    "utils/pipeline/quantizers/tool_process.py": '**A program "was killed"',
    "utils/environments/virtual.py": "## Set-up stops",
}


@pytest.mark.parametrize("file", EXPLAINED)
def test_an_error_leads_to_its_explanation(file: str) -> None:
    assert PAGE in (ROOT / file).read_text(encoding="utf-8")
    assert EXPLAINED[file] in (ROOT / PAGE).read_text(encoding="utf-8")


def test_every_file_that_leads_there_is_listed() -> None:
    leading = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tools", "utils")
        for path in (ROOT / folder).rglob("*.py")
        if PAGE in path.read_text(encoding="utf-8")
    }
    assert leading == EXPLAINED.keys()
