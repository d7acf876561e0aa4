"""The page of published results says what the lessons say, and where."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAD = "| claim | source | lesson |"
LINES = (ROOT / "site" / "claims.md").read_text().splitlines()
ROWS = [line for line in LINES if line.startswith("| ") and not line.startswith(HEAD)]
BOLD, LESSON = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"\[(\w+)\]\((notebooks/[\w.]+)\)")


def said(lesson: str) -> str:
    """The prose of a lesson, on one line, with no blank before a percent sign."""
    notebook = nbformat.read(ROOT / lesson, as_version=4)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return re.sub(r"\s+", " ", "\n".join(prose)).replace(" %", "%")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_the_lesson_says_what_its_row_says(row: str) -> None:
    claim, _, lesson, check = (cell.strip() for cell in row.split("|")[1:-1])
    number, path = LESSON.fullmatch(lesson).groups()
    assert Path(path).name.startswith(f"{number}_")
    figures = BOLD.findall(f"{claim} {check}")
    assert BOLD.search(claim)
    text = said(path)
    missing = [figure for figure in figures if figure.replace(" %", "%") not in text]
    assert not missing, f"lesson {number} does not say {missing}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_the_lesson_names_the_same_source(row: str) -> None:
    _, source, lesson, _ = (cell.strip() for cell in row.split("|")[1:-1])
    text = said(LESSON.fullmatch(lesson)[2])
    addresses = re.findall(r"\((https://[^)]+)\)", source)
    assert addresses
    assert [a for a in addresses if a not in text] == []


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 10
