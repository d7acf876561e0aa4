"""The glossary is true: links, names in vLLM and here, and no lesson is ahead of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

from tools.glossary import Term, linked, terms, unlinked
from tools.notebook_files import QUIZ, lessons
from tools.notebook_rules import problems
from tools.vllm_names import check

ROOT = Path(__file__).parents[2]
OLD_ROW = re.compile(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# A lesson may look ahead, if it says where to.
LOOKS_AHEAD = re.compile(r"[^.\n]{0,60}\(notebook \d\d[a-z]?\)")


def text() -> str:
    return (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")


@cache
def prose() -> dict[str, str]:
    """What each lesson says, by its number; without code, links and lines of tables."""
    paths = [path for path in lessons() if path != QUIZ]
    return {path.name.partition("_")[0]: "\n".join(_prose_of(path)) for path in paths}


def _prose_of(path: Path) -> Iterator[str]:
    for cell in nbformat.read(path, as_version=4).cells[1:]:
        if cell.cell_type == "markdown" and not cell.source.startswith("### Read on"):
            plain = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
            plain = plain.partition("### Read on")[0].partition("**Next:**")[0]
            yield re.sub(r"`[^`]*`|\]\([^)]*\)", "", plain)


def test_every_entry_is_read() -> None:
    assert len(re.findall("^### ", text(), re.MULTILINE)) == len(terms()) > 60
    assert len({term.anchor for term in terms()}) == len(terms())
    rows = [line for line in text().splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(OLD_ROW.findall(text()))


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.name)
def test_no_lesson_uses_a_term_that_a_later_one_explains(term: Term) -> None:
    assert Path(term.link).name.startswith(term.lesson) and (ROOT / term.link).is_file()
    assert term.uses.search(prose()[term.lesson]), f"lesson {term.lesson} does not mention it"
    for earlier in (prose()[other] for other in sorted(prose()) if other < term.lesson):
        for match in term.uses.finditer(earlier):
            around = earlier[max(0, match.start() - 60) : match.end() + 60]
            assert LOOKS_AHEAD.match(earlier, match.end()), around


def test_the_first_use_of_a_term_is_a_link() -> None:
    texts = [
        "## Slots and prefill\n\nThe `slot` and | a table\n| prefill | x |\n\n"
        "*Prefill* fills slots; prefill again. [A slot](x.md), a KV cache.",
        "One more slot and one more prefill.",
        "### Read on\n\nA block table.",
    ]
    expected = [
        texts[0]
        .replace("*Prefill*", "*[Prefill](../GLOSSARY.md#prefill)*")
        .replace("fills slots", "fills [slots](../GLOSSARY.md#slot)")
        .replace("KV cache", "[KV cache](../GLOSSARY.md#KV-cache)"),
        *texts[1:],
    ]
    assert linked(texts, "05") == expected
    assert linked(expected, "05") == expected
    assert linked(expected, "01") == texts  # explained there, or later


def test_links_lead_to_headings() -> None:
    headings = re.findall("^### (.+)$", text(), re.MULTILINE)
    anchors = {re.sub(r"[^A-Za-z0-9 -]", "", name).replace(" ", "-") for name in headings}
    found = [
        anchor
        for path in lessons()
        for cell in nbformat.read(path, as_version=4).cells
        for anchor in re.findall(r"\]\(\.\./GLOSSARY\.md#([^)]*)\)", cell.source)
    ]
    assert set(found) <= anchors and len(found) > 80


def test_a_lesson_without_its_links_breaks_a_rule(tmp_path: Path) -> None:
    path = tmp_path / "notebooks" / "08_the_engine.ipynb"
    path.parent.mkdir()
    notebook = nbformat.read(ROOT / "notebooks" / path.name, as_version=4)
    cell = next(cell for cell in notebook.cells if "GLOSSARY.md#logits" in cell.source)
    cell.source = unlinked(cell.source)
    nbformat.write(notebook, path)
    assert any("tools/glossary.py" in problem for problem in problems(path))


def test_names_in_vllm_exist() -> None:
    columns = [term.vllm for term in terms()] + [row[1] for row in OLD_ROW.findall(text())]
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
