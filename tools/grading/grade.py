"""Grade what came back of a lab, student by student. Behind `make grade LAB=02_kv_cache`.

`nbgrader autograde` takes all students at once, and stops at the first notebook that it cannot
read: one cell pasted twice, and nobody after it is graded. Here each student is a run of its own,
and has `PATIENCE` seconds. It is read before it runs (`screen.py`), and runs shut in
(`isolation.py`): without network, solutions, grade book or other students' work.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import nbformat
from tqdm import tqdm

from tools.grading import isolation
from tools.grading.autograde import kernel
from tools.grading.returned import otherwise
from tools.grading.screen import suspicious
from tools.grading.trained import train_for
from tools.make_labs import ROOT, lab_names, run_in_course
from utils.hub import resolve_model

PATIENCE = 1800.0  # seconds for one student's notebook: checks may load the model
EVERYBODY = "all"
SHOWN = 4  # places to read that are named, of one submission


def grade(
    lab: str,
    course: Path,
    patience: float = PATIENCE,
    accepted: Collection[str] = (),
    isolated: bool = True,
) -> dict[str, str]:
    """Grade each student's notebook: student -> why it was not graded, or "".

    Args:
        lab: such as "02_kv_cache"; its students' notebooks are `submitted/STUDENT/LAB/LAB.ipynb`.
        course: the folder with `nbgrader_config.py`, where the lab was generated.
        accepted: students whose notebooks somebody has read; `EVERYBODY` stands for all.
        isolated: whether their code runs shut in. If not, it can do what you can.

    Raises:
        ValueError: nobody has submitted anything, or the lab was not generated.
        RuntimeError: code cannot be shut in here.
    """
    handed_out = course / "labs" / lab / f"{lab}.ipynb"
    if not handed_out.is_file():
        raise ValueError(f"There is no {handed_out}: run `nbgrader generate_assignment {lab}`.")
    found = sorted(course.glob(f"submitted/*/{lab}/{lab}.ipynb"))
    if not found:
        said = [f"\n{student}: {words}" for student, words in otherwise(lab, course).items()]
        missing = f"There is no {course}/submitted/STUDENT/{lab}/{lab}.ipynb."
        raise ValueError("".join([missing, *said]))
    if isolated and (reason := isolation.unavailable()):
        raise RuntimeError(
            f"Learners' code cannot be shut in here: {reason}\nGrade in a container or a virtual "
            "machine that holds nothing of value, and say so: make grade LAB=... TRUST=1"
        )
    released = nbformat.read(handed_out, as_version=4)
    # Learners' code finds what is derived from the model, or trained, and can write nothing there.
    resolve_model()
    train_for(released)
    problems = {}
    for path in tqdm(found, desc=lab, unit="student"):
        student = path.parents[1].name
        read = EVERYBODY in accepted or student in accepted
        problems[student] = _unfit(path, released, read)
        if not problems[student]:
            problems[student] = _autograde(lab, course, student, patience, isolated)
    return problems


def _autograde(lab: str, course: Path, student: str, patience: float, isolated: bool) -> str:
    module = ["tools.grading.autograde", lab, student, "isolated" if isolated else "trusted"]
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        variables = {"PYTHONPATH": str(ROOT)} | (kernel(Path(folder)) if isolated else {})
        try:
            run_in_course(course, *module, timeout=patience, variables=variables)
        except subprocess.TimeoutExpired:
            return f"was not done after {patience:g} seconds"
        except RuntimeError as error:
            return str(error).strip().splitlines()[-1]
    return ""


def _unfit(path: Path, released: nbformat.NotebookNode, read: bool) -> str:
    """Why a notebook is not graded, in words for the instructor, or ""."""
    try:
        notebook = nbformat.read(path, as_version=4)
        ids = Counter(cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells)
        places = [] if read else suspicious(notebook, released)
    except Exception as error:  # whatever a student's file is, it must not stop the others
        return f"is no notebook: {type(error).__name__}"
    if twice := [name for name, times in ids.items() if name and times > 1]:
        return f"has cells more than once: {', '.join(twice)}. Delete the copies"
    if places:
        more = f", and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        return (
            f"names what no exercise needs: {'; '.join(places[:SHOWN])}{more}. Read it; if it is "
            f"honest: make grade LAB={path.stem} ACCEPT={path.parents[1].name}"
        )
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab", choices=lab_names(), metavar="NN_name")
    parser.add_argument("--accept", default="", help="students, with commas between; or `all`")
    parser.add_argument("--trust", action="store_true", help="run their code as your own")
    told = parser.parse_args()
    try:
        accepted = [name for name in told.accept.split(",") if name]
        problems = grade(told.lab, ROOT, accepted=accepted, isolated=not told.trust)
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    # Each folder has a line, also those in which nothing was found to grade.
    for student, note in otherwise(told.lab, ROOT).items():
        said = [problems[student] or "graded"] if student in problems else []
        print(f"{student}: {'; '.join([*said, *filter(None, [note])])}")
    sys.exit(any(problems.values()))


if __name__ == "__main__":
    main()
