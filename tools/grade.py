"""Grade what came back of a lab, student by student. Behind `make grade LAB=02_kv_cache`.

`nbgrader autograde` takes all students at once, and stops at the first notebook that it cannot
read: one cell pasted twice, and nobody after it is graded. Here each student is a run of its own,
and has `PATIENCE` seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
from tqdm import tqdm

from tools.make_labs import ROOT, lab_names, nbgrader

PATIENCE = 1800.0  # seconds for one student's notebook: checks may load the model


def grade(lab: str, course: Path, patience: float = PATIENCE) -> dict[str, str]:
    """Grade each student's notebook: student -> why it could not be graded, or "".

    Args:
        lab: such as "02_kv_cache"; its students' notebooks are `submitted/STUDENT/LAB/LAB.ipynb`.
        course: the folder with `nbgrader_config.py`, where the lab was generated.

    Raises:
        ValueError: nobody has submitted anything.
    """
    found = sorted(course.glob(f"submitted/*/{lab}/{lab}.ipynb"))
    if not found:
        raise ValueError(f"There is no {course}/submitted/STUDENT/{lab}/{lab}.ipynb.")
    problems = {}
    for path in tqdm(found, desc=lab, unit="student"):
        student = path.parents[1].name
        problems[student] = _unreadable(path)
        if not problems[student]:
            try:
                nbgrader(course, "autograde", lab, "--student", student, timeout=patience)
            except subprocess.TimeoutExpired:
                problems[student] = f"was not done after {patience:g} seconds"
            except RuntimeError as error:
                problems[student] = str(error).strip().splitlines()[-1]
    return problems


def _unreadable(path: Path) -> str:
    """What nbgrader would stumble over, in words for the instructor."""
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception as error:  # whatever a student's file is, it must not stop the others
        return f"is no notebook: {type(error).__name__}"
    ids = Counter(cell.metadata.get("nbgrader", {}).get("grade_id") for cell in cells)
    twice = [name for name, times in ids.items() if name and times > 1]
    return f"has cells more than once: {', '.join(twice)}. Delete the copies" if twice else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lab", choices=lab_names(), metavar="NN_name")
    lab = parser.parse_args().lab
    try:
        problems = grade(lab, ROOT)
    except ValueError as error:
        parser.error(str(error))
    for student, problem in problems.items():
        print(f"{student}: {problem or 'graded'}")
    sys.exit(any(problems.values()))


if __name__ == "__main__":
    main()
