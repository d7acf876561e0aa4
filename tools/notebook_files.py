"""Which notebooks the course has, and the metadata that all of them are committed with."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = r"\d\d[a-z]?_[a-z0-9_]+"  # 09b comes after 09
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# The cell that finds the course is folded away: it is plumbing, and the same in every notebook.
FOLDED = {"source_hidden": True}
# What an executed notebook has beside: from which code and on which machine its outputs come.
RECORDED = "recorded"


def lessons() -> list[Path]:
    """The notebooks of the course."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


# Between the lessons, but none: it asks what the reader knows, and explains nothing.
QUIZ = ROOT / "notebooks" / "00b_what_may_i_skip.ipynb"


def part_one() -> list[Path]:
    """Those of Part I: they need no stage of the pipeline."""
    return [path for path in lessons() if path.name < "09"]


def code_cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def solutions() -> list[Path]:
    """The source of each lab."""
    return sorted((ROOT / "solutions").glob("*/*.ipynb"))


def labs() -> list[Path]:
    """What learners fill in. Generated, and never executed."""
    return sorted((ROOT / "labs").glob("*/*.ipynb"))


def translations() -> list[Path]:
    """The lessons in other languages. Built from the English ones, and never executed."""
    return sorted((ROOT / "translations").glob("*/notebooks/*.ipynb"))


def published(path: Path) -> str:
    """Where a learner finds a lesson or lab in the repository; of a solution, its lab."""
    is_lab = path.parent.parent.name in ("labs", "solutions")
    return f"{f'labs/{path.stem}' if is_lab else 'notebooks'}/{path.name}"


def executed_notebooks() -> list[Path]:
    """The notebooks that are committed with their outputs."""
    return lessons() + solutions()
