"""One person can hold a lab's checks: the lines of its checks and its zoo are limited."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils.checks.kit.lab.words import WORDS

ROOT = Path(__file__).parents[2]
LABS = sorted(file.parent for file in (ROOT / "utils" / "checks").glob(f"lab_*/{WORDS}"))
MOST_PYTHON, MOST = 1300, 1700  # lines of Python, and with words and edits
# Labs that came before the limit, and bring a simulator, an experiment or an engine of their own.
# They may shrink.
LARGER = {
    "lab_03": (1950, 2170),
    "lab_04": (2000, 2290),
    "lab_05": (1810, 2130),
    "lab_06": (2430, 2830),
    "lab_07": (2190, 2490),
    "lab_08": (2815, 3300),
    "lab_09": (2075, 2526),
    "lab_10": (1716, 2150),
    "lab_11": (1690, 1950),
    "lab_12": (1545, 1785),
    "lab_14": (2010, 2296),
    "lab_15": (1410, 1710),
    "lab_16": (1550, 1840),
}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_a_labs_checks_and_zoo_have_no_more_lines(lab: Path) -> None:
    zoo = ROOT / "tests" / "labs" / "bug_zoo" / lab.name
    python = lines_of([*lab.rglob("*.py"), zoo.with_suffix(".py")])
    data = lines_of([lab / WORDS, zoo.with_suffix(".yaml")])
    most_python, most = LARGER.get(lab.name, (MOST_PYTHON, MOST))
    assert python <= most_python
    assert python + data <= most


def lines_of(files: list[Path]) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)
