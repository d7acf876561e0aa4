"""The glossary's terms, and the links to them in the lessons.

    python tools/glossary.py        write the links into all lessons

In each lesson the first use of a term that an earlier lesson explains is a link. Headings, tables,
code, formulas and what is a link already are left alone.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.notebook_files import QUIZ, ROOT, lessons

GLOSSARY = ROOT / "GLOSSARY.md"
ENTRY = re.compile(
    r"^### (?P<name>.+)\n\n(?P<what>.+?)\. Lesson \[(?P<lesson>\d\d\w?)\]\((?P<link>[^)]+)\)\."
    r"(?: In vLLM: (?P<vllm>.+)\.)?$",
    re.MULTILINE,
)
OURS = re.compile(r"\[([^\]]+)\]\(\.\./GLOSSARY\.md#[^)]*\)")
# What stays as it is: blocks of code, HTML, headings, tables, heads of paragraphs; in a line code,
# formulas and links; words that mean another thing (llama.cpp's slots), and longer names.
KEPT = re.compile(
    r"^(?:```|~~~).*?^(?:```|~~~)|<summary>.*?</summary>|\$\$.*?\$\$"
    r"|^#+ [^\n]*|^\|[^\n]*|^\*\*[^*\n]+\.\*\*"
    r"|`[^`]*`|\$[^$\n]+\$|!?\[[^\]]*\]\([^)]*\)|<[^>]+>|https?://\S+"
    r"|this kernel|\*slots\*|each slot|time\sto\sfirst\stoken|time\sper\soutput\stoken",
    re.MULTILINE | re.DOTALL,
)
END = "### Read on"  # lines of links follow


@dataclass(frozen=True)
class Term:
    """An entry.

    Attributes:
        lesson: number of the one that explains it, such as "09b".
        link: that lesson's path in the repository.
        vllm: where vLLM has it, as Markdown; "" nowhere.
    """

    name: str
    what: str
    lesson: str
    link: str
    vllm: str

    @property
    def anchor(self) -> str:
        """Of its heading, as JupyterLab names it. (GitHub and the site: in small letters.)"""
        return self.name.replace(" ", "-")

    @functools.cached_property
    def uses(self) -> re.Pattern[str]:
        """The term as a word; one of small letters also at the beginning of a sentence."""
        words = r"\s".join(re.escape(word) for word in self.name.split())
        flags = re.IGNORECASE if self.name.islower() else re.NOFLAG
        return re.compile(rf"(?<![\w-]){words}s?(?![\w])", flags)


@functools.cache
def terms() -> tuple[Term, ...]:
    """All entries, in order."""
    entries = ENTRY.finditer(GLOSSARY.read_text(encoding="utf-8"))
    return tuple(Term(**{k: v or "" for k, v in entry.groupdict().items()}) for entry in entries)


def unlinked(text: str) -> str:
    """Without the links to the glossary."""
    return OURS.sub(r"\1", text)


def linked(texts: Sequence[str], lesson: str) -> list[str]:
    """A lesson's texts, in order, with a link at the first use of each earlier lesson's terms.

    Args:
        lesson: its number.
    """
    wanted = [term for term in terms() if term.lesson < lesson]
    wanted.sort(key=lambda term: -len(term.name))  # of "KV cache" and "cache", the longer one
    done: list[str] = []
    for text in map(unlinked, texts):
        text, end, rest = text.partition(END)
        for term in list(wanted):
            found = next(_free(term.uses, text), None)
            if found:
                link = f"[{found[0]}](../GLOSSARY.md#{term.anchor})"
                text = text[: found.start()] + link + text[found.end() :]
                wanted.remove(term)
        done.append(text + end + rest)
        if end:
            return [*done, *map(unlinked, texts[len(done) :])]
    return done


def _free(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Matches outside of what is kept as it is."""
    matches = [*pattern.finditer(text)]
    kept = [match.span() for match in KEPT.finditer(text)] if matches else []  # takes long
    for match in matches:
        if not any(start < match.end() and match.start() < end for start, end in kept):
            yield match


def texts_of(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells in which terms are linked: all of Markdown but the head."""
    return [cell for cell in notebook.cells[1:] if cell.cell_type == "markdown"]


def with_links(notebook: NotebookNode, path: Path) -> list[str]:
    """The texts of a lesson as they should be. In the quiz a link would tell the answer."""
    if path == QUIZ:
        return [unlinked(cell.source) for cell in texts_of(notebook)]
    number = path.name.partition("_")[0]
    return linked([cell.source for cell in texts_of(notebook)], number)


def main() -> None:
    for path in lessons():
        notebook = nbformat.read(path, as_version=4)
        cells = texts_of(notebook)
        before, after = [cell.source for cell in cells], with_links(notebook, path)
        for cell, text in zip(cells, after, strict=True):
            cell.source = text
        if before != after:
            nbformat.write(notebook, path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
