"""How long a lesson takes: counted from its words and those of its code, main line and optional.

    python tools/reading_time.py [NOTEBOOK ...]

The two rates were fitted to the minutes that readers needed who tried everything. What runs while
one reads is not counted.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

WORDS_PER_MINUTE = 200
CODE_WORDS_PER_MINUTE = 30  # of code, however it is laid out: about four lines
TOLERANCE = 0.15
SLACK = 2.5  # minutes, since those stated end with 0 or 5
STATED = re.compile(r"\*\*Time\.\*\* (\d+) minutes")
OPTIONAL = r"(\d+) more for (?:what is marked|the) \*optional\*"
STATED_OPTIONAL = re.compile(rf"\*\*Time\.\*\*[^*]*?{OPTIONAL}")
# Lines of links: to be clicked on, not read.
LINKS = re.compile(r"^\*\*(In the cloud|Before and after|Go on)\.\*\*.*$", re.MULTILINE)
CODE_WORD = re.compile(r"\w+")
HEADING = re.compile(r"^(#+) +(.*)$", re.MULTILINE)
SECTIONS = re.compile(r"^(?=#+ )", re.MULTILINE)


@dataclass
class Minutes:
    """Of a lesson: what everybody reads, and the sections whose heading says *optional*."""

    main: float = 0.0
    optional: float = 0.0


def counted(notebook: NotebookNode) -> Minutes:
    """The minutes that its cells take. The first code cell, the same in each, is left out."""
    minutes, optional_level = Minutes(), 0
    first_code = next((cell for cell in notebook.cells if cell.cell_type == "code"), None)
    for cell in notebook.cells:
        code = cell.cell_type == "code"
        if cell is first_code:
            continue
        for part in [cell.source] if code else SECTIONS.split(cell.source):
            if not code and (heading := HEADING.match(part)):
                level, title = len(heading[1]), heading[2]
                if not optional_level or level <= optional_level:
                    optional_level = level if "optional" in title.lower() else 0
            if code:
                taken = len(CODE_WORD.findall(part)) / CODE_WORDS_PER_MINUTE
            else:
                taken = len(LINKS.sub("", part).split()) / WORDS_PER_MINUTE
            if optional_level:
                minutes.optional += taken
            else:
                minutes.main += taken
    return minutes


def stated(notebook: NotebookNode) -> Minutes:
    """The minutes that its first cell names."""
    text = notebook.cells[0].source
    found = [pattern.search(text) for pattern in (STATED, STATED_OPTIONAL)]
    return Minutes(*(float(match[1]) if match else 0.0 for match in found))


def problems(notebook: NotebookNode) -> list[str]:
    """A sentence for each number of minutes that is stated wrongly."""
    says, takes = stated(notebook), counted(notebook)
    found = []
    for part in ("main", "optional"):
        said, counts = getattr(says, part), getattr(takes, part)
        if abs(said - counts) > max(TOLERANCE * counts, SLACK):
            name = "its minutes" if part == "main" else "the minutes of what is marked *optional*"
            found.append(f"{name} are stated as {said:.0f}; its words and code take {counts:.0f}")
    return found


def main() -> None:
    for name in sys.argv[1:] or sorted(map(str, Path("notebooks").glob("*.ipynb"))):
        notebook = nbformat.read(name, as_version=4)
        says, takes = stated(notebook), counted(notebook)
        print(
            f"{Path(name).stem:36} main {takes.main:4.0f} (stated {says.main:.0f})"
            f"   optional {takes.optional:3.0f} (stated {says.optional:.0f})"
        )


if __name__ == "__main__":
    main()
