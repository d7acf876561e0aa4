"""The glossary is true: links, names in vLLM and here, and no lesson is ahead of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

from tools.notebook_files import lessons
from tools.vllm_names import check

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"^\| ([^|]+?) \| ([^|]+?) \| \[(\d\d\w?)\]\(([^)]+)\) \| (.*?) ?\|$", re.MULTILINE
)
OLD_ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# A lesson may look ahead, if it says where to.
LOOKS_AHEAD = re.compile(r"[^.\n]{0,60}\(notebook \d\d[a-z]?\)")


def text() -> str:
    return (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")


ROWS = ROW.findall(text())


@cache
def prose() -> dict[str, str]:
    """What each lesson says, by its number; without code, links and lines of tables."""
    return {path.name.partition("_")[0]: "\n".join(_prose_of(path)) for path in lessons()}


def _prose_of(path: Path) -> Iterator[str]:
    for cell in nbformat.read(path, as_version=4).cells[1:]:
        if cell.cell_type == "markdown" and not cell.source.startswith("### Read on"):
            plain = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
            plain = plain.partition("### Read on")[0].partition("**Next:**")[0]
            yield re.sub(r"`[^`]*`|\]\([^)]*\)", "", plain)


def uses(term: str) -> re.Pattern[str]:
    """The term as a word; words of small letters also at the beginning of a sentence."""
    words = r"\s".join(re.escape(word) for word in term.split())
    flags = re.IGNORECASE if term.islower() else re.NOFLAG
    return re.compile(rf"(?<![\w-]){words}s?(?![\w])", flags)


def test_every_row_is_read() -> None:
    lines = [line for line in text().splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line.startswith(("| term ", "| before V1 "))]
    assert len(lines) - len(heads) == len(ROWS) + len(OLD_ROW.findall(text()))
    assert len(ROWS) > 60 and len({term for term, *_ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("term", "number", "link"), [(row[0], row[2], row[3]) for row in ROWS])
def test_no_lesson_uses_a_term_that_a_later_one_explains(term: str, number: str, link: str) -> None:
    assert Path(link).name.startswith(number) and (ROOT / link).is_file()
    pattern = uses(term)
    assert pattern.search(prose()[number]), f"lesson {number} does not mention it"
    for earlier in (prose()[other] for other in sorted(prose()) if other < number):
        for match in pattern.finditer(earlier):
            around = earlier[max(0, match.start() - 60) : match.end() + 60]
            assert LOOKS_AHEAD.match(earlier, match.end()), around


def test_names_in_vllm_exist() -> None:
    columns = [row[4] for row in ROWS] + [row[1] for row in OLD_ROW.findall(text())]
    names = [name for column in columns for name in re.findall(r"`([^`]+)`", column)]
    assert len(names) > 50
    for name in names:
        check(name)


def test_names_of_ours_exist() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "utils").rglob("*.py"))
    for _, _, here in OLD_ROW.findall(text()):
        for name in re.findall(r"`([^`]+)`", here):
            for part in name.rstrip("=").split("."):
                assert re.search(rf"\b{re.escape(part)}\b", code), name
