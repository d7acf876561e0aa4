"""Minutes are counted from words and lines, and optional sections apart."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.navigation import leads_to
from tools.notebook_files import ROOT, lessons, solutions
from tools.reading_time import CODE_WORDS_PER_MINUTE, WORDS_PER_MINUTE, counted, problems

TEN_MINUTES = "word " * (10 * WORDS_PER_MINUTE)
FIVE_MINUTES_OF_CODE = "x = 1 + 2\n\n" * (5 * CODE_WORDS_PER_MINUTE // 3)


def lesson(time: str) -> NotebookNode:
    """20 minutes for everybody, and 15 marked as optional."""
    return new_notebook(
        cells=[
            new_markdown_cell(f"# Title\n\n**Time.** {time}"),
            new_code_cell("bootstrap()\n" * 100),
            new_markdown_cell(TEN_MINUTES),
            new_code_cell(FIVE_MINUTES_OF_CODE),
            new_markdown_cell("## More (*optional*)\n\n" + TEN_MINUTES),
            new_markdown_cell("### Deeper in"),
            new_code_cell(FIVE_MINUTES_OF_CODE),
            new_markdown_cell("## *Optional:* more still\n\n## Recap"),
            new_code_cell(FIVE_MINUTES_OF_CODE),
        ]
    )


def test_words_and_lines_are_counted() -> None:
    minutes = counted(lesson("20 minutes."))
    assert minutes.main == pytest.approx(20, abs=0.1)
    assert minutes.optional == pytest.approx(15, abs=0.1)


OPTIONAL = "more for what is marked *optional*"


@pytest.mark.parametrize(
    ("time", "wrong"),
    [
        (f"20 minutes, 15 {OPTIONAL}.", []),
        (f"22 minutes, 13 {OPTIONAL}, and 90 more for the lab.", []),
        (f"25 minutes, 15 {OPTIONAL}.", ["its minutes are stated as 25;"]),
        ("20 minutes, and 15 more for the lab.", ["the minutes of what is marked *optional*"]),
        (f"35 minutes, 40 {OPTIONAL}.", ["its minutes", "the minutes of what"]),
    ],
)
def test_stated_minutes_are_within_15_percent(time: str, wrong: list[str]) -> None:
    found = problems(lesson(time))
    assert len(found) == len(wrong)
    assert all(said.startswith(begins) for said, begins in zip(found, wrong, strict=True))


@pytest.mark.parametrize("path", solutions(), ids=lambda path: path.stem)
def test_a_labs_minutes_are_those_of_its_exercises(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    said = re.search(r"\*\*Time\.\*\* (\d+) minutes", cells[0].source)
    assert said
    exercises = re.compile(r"^## Exercise .*\n\nDifficulty .* · (\d+) minutes$", re.MULTILINE)
    minutes = [int(m) for cell in cells[1:] for m in exercises.findall(cell.source)]
    assert len(minutes) >= 4 and abs(sum(minutes) - int(said[1])) <= 0.1 * int(said[1])
    number = path.name.partition("_")[0]
    titles = [
        " ".join(nbformat.read(lesson, as_version=4).cells[0].source.split())
        for lesson in lessons()
        if leads_to(lesson) == number  # 09 and 09b share one
    ]
    [title] = [title for title in titles if "more for the lab" in title]
    assert f"and {said[1]} more for the lab" in title
    assert f"[{said[1]}](labs/{path.stem}/{path.name})" in (ROOT / "README.md").read_text("utf-8")
