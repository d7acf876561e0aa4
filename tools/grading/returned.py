"""What came back otherwise than it was handed out: renamed files, and cells that are gone.

A browser calls a second download `02_kv_cache (1).ipynb`, and grading looks for
`02_kv_cache.ipynb`: without a word here, that student would have no grade. A cell that was deleted
costs its points.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.make_labs import lab_names


def otherwise(lab: str, course: Path) -> dict[str, str]:
    """By student, what is not as it was handed out, and what to do; all who have a folder.

    Args:
        lab: such as "02_kv_cache".
        course: the folder that holds `submitted/STUDENT/` and `labs/`.

    Returns:
        "" for a student of whom there is nothing to say.
    """
    handed_out = nbformat.read(course / "labs" / lab / f"{lab}.ipynb", as_version=4)
    folders = sorted(path for path in course.glob("submitted/*") if path.is_dir())
    return {folder.name: _otherwise(lab, folder, handed_out) for folder in folders}


def _otherwise(lab: str, folder: Path, handed_out: NotebookNode) -> str:
    path = folder / lab / f"{lab}.ipynb"
    if path.is_file():
        return _gone(path, handed_out)
    found = [file for file in sorted(folder.rglob("*.ipynb")) if _may_be(lab, file)]
    if not found:
        return "handed in nothing for this lab"
    named = ", ".join(repr(str(file.relative_to(folder))) for file in found)
    return f"has no {lab}/{lab}.ipynb, but {named}. Rename it, and grade again"


def _may_be(lab: str, file: Path) -> bool:
    """Whether a notebook may be this lab's under another name; one with another lab's is not."""
    if ".ipynb_checkpoints" in file.parts:
        return False
    others = [name for name in lab_names() if name != lab]
    return not any(name in part for name in others for part in (file.name, file.parent.name))


def _gone(path: Path, handed_out: NotebookNode) -> str:
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception:  # whatever it is: `grade` says that it is no notebook
        return ""
    here = {cell.metadata.get("nbgrader", {}).get("grade_id") for cell in cells}
    gone = [
        settings.grade_id
        for cell in handed_out.cells
        if (settings := cell.metadata.get("nbgrader"))
        and (settings.grade or settings.solution)
        and settings.grade_id not in here
    ]
    if not gone:
        return ""
    return (
        f"came back without {', '.join(gone)}, which costs the points. Copy what is missing from "
        f"labs/{path.stem}, and grade again, or ask for the notebook once more"
    )
