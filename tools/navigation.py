"""The lines with which one goes on from a lesson to its lab, and from there to the next lesson.

    python tools/navigation.py        write them into all lessons and solutions; then `make labs`

The order is the course's: lesson, its lab, next lesson. A lab stands behind its own lesson and
those after it that have the same two digits and no lab: lab 08 comes after 08b, lab 07b after 07b.
JupyterLab and the site follow relative links; Colab needs addresses.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from urllib.parse import quote

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.notebook_files import ROOT, lessons, published, solutions
from tools.set_repository_url import configured_slug

TOP = "**Before and after.** "
END = "**Go on.** "


def course() -> list[Path]:
    """Lessons and solutions (each for its lab), in the order in which one takes them."""
    return sorted([*lessons(), *solutions()], key=_place)


def _place(path: Path) -> tuple[str, bool, str]:
    """By lab; lessons come before the lab that they lead to."""
    return leads_to(path), path.parent.name != "notebooks", path.name


def leads_to(path: Path) -> str:
    """The number of a lesson's lab: its own, or that of a lesson before it (of 08b: 08)."""
    number, *labs = (name.partition("_")[0] for name in (path.name, *(s.name for s in solutions())))
    return max((lab for lab in labs if lab[:2] == number[:2] and lab <= number), default=number)


@functools.cache
def title(path: Path) -> str:
    """A notebook's heading."""
    return str(nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# "))


def public(path: Path) -> Path:
    """What a learner opens: of a solution, its lab."""
    return ROOT / published(path)


def link(source: Path, target: Path) -> str:
    where = os.path.relpath(public(target), public(source).parent)
    return f"[{title(target)}]({where})"


def on_colab(target: Path, text: str) -> str:
    place = f"{configured_slug()}/blob/main/{published(target)}"
    return f"[{text}](https://colab.research.google.com/github/{place})"


def neighbors(path: Path) -> tuple[Path | None, list[Path]]:
    """What comes before, and what comes after: of a lesson with a lab, the lab and the next one."""
    order = course()
    place = order.index(path)
    before = order[place - 1] if place else None
    after = order[place + 1 : place + 2]
    if after and path.parent.name == "notebooks" and after[0].parent.name != "notebooks":
        after += order[place + 2 : place + 3]
    return before, after


def top_line(path: Path) -> str:
    """For the first cell."""
    before, after = neighbors(path)
    parts = [f"← {link(path, before)}"] if before else []
    return TOP + " · ".join([*parts, *(f"{link(path, one)} →" for one in after[:1])])


def end_line(path: Path) -> str:
    """For the last cell: where to go, and where to ask."""
    _, after = neighbors(path)
    ask = (
        f"https://github.com/{configured_slug()}/issues/new"
        f"?template=question.yml&place={quote(title(path))}"
    )
    unclear = f"[Something unclear? Ask.]({ask})"
    if not after:
        return f"{END}{unclear}"
    here = ", then ".join(link(path, one) for one in after)
    names = ["lab" if one.parent.name != "notebooks" else "lesson" for one in after]
    colab = ", ".join(on_colab(one, name) for one, name in zip(after, names, strict=True))
    return f"{END}{here}. On Colab: {colab}. {unclear}"


def with_lines(path: Path, first: str, last: str) -> tuple[str, str]:
    """The first and last text of a notebook, with its lines."""
    top, end = (re.escape(mark) for mark in (TOP, END))
    first = re.sub(rf"\n\n{top}[^\n]*", "", first) + f"\n\n{top_line(path)}"
    last = re.sub(rf"\n\n{end}[^\n]*", "", last) + f"\n\n{end_line(path)}"
    return first, last


def main() -> None:
    for path in course():
        notebook = nbformat.read(path, as_version=4)
        texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        before = texts[0].source, texts[-1].source
        texts[0].source, texts[-1].source = after = with_lines(path, *before)
        if after != before:
            nbformat.write(notebook, path)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
