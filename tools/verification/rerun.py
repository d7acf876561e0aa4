"""Run one lab from a learner's copy, in a fresh kernel, with the course's own checks.

`verify.py` starts this as a program of its own, which it can end: `rerun.py COPY SOLUTION RESULT`.
It runs as grading runs it (`tools/grading`): a cell that hangs or ends Python costs what it is
worth, and all others run without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution
from traitlets.config import Config, PyFileConfigLoader

from tools.grading.autograde import Execute, exercise_numbers, graded, kernel
from tools.grading.screen import suspicious
from tools.grading.trained import train_for
from tools.make_labs import ROOT

SHOWN = 4  # places to read that are named


@dataclass(frozen=True)
class Exercise:
    """What a lab's check gave. `said` is its word: passed, not yet right, or why there is none."""

    title: str
    points: float
    of: float
    said: str


@dataclass(frozen=True)
class Rerun:
    """What one lab gave, and what a reader of the numbers should know."""

    exercises: tuple[Exercise, ...]
    notes: tuple[str, ...]


def untouched(notebook: NotebookNode) -> bool:
    """Whether nothing was written: every cell for an answer is as nbgrader handed it out."""
    answers = [cell for cell in notebook.cells if is_solution(cell)]
    return all(cell.metadata.nbgrader.get("checksum") == compute_checksum(cell) for cell in answers)


def nothing_earned(solution: NotebookNode, said: str) -> tuple[Exercise, ...]:
    """All exercises of a lab that was not run."""
    return tuple(Exercise(title, 0.0, points, said) for _, title, points in graded(solution))


def with_the_courses_cells(
    submitted: NotebookNode, solution: NotebookNode
) -> tuple[NotebookNode, list[str]]:
    """The notebook to run, and what was put right: locked cells are the course's, each once."""
    own = {cell.metadata.nbgrader.grade_id: cell for cell in solution.cells if is_locked(cell)}
    cells, notes, seen = [], [], set()
    for cell in submitted.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name not in own:
            cells.append(cell)
            continue
        if name in seen:
            notes.append(f"`{name}` stands more than once: only the first was run")
            continue
        seen.add(name)
        if cell.cell_type == "code" and cell.source != own[name].source:
            notes.append(f"`{name}` had been changed: the course's own cell was run in its place")
        cells.append(own[name])
    gone = [name for name in own if name not in seen and own[name].cell_type == "code"]
    notes += [f"`{name}` is missing" for name in gone]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=solution.metadata)
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook, notes


def rerun(
    submitted: NotebookNode, solution: NotebookNode, isolated: bool, cell_limit: int | None = None
) -> Rerun:
    """Run a learner's copy and read what its checks gave.

    Args:
        submitted: the learner's copy.
        solution: the lab's source, which has the course's cells and the points of each.
        isolated: whether its code runs shut in; if not, it can do what you can.
        cell_limit: seconds for one cell; None: what grading allows.
    """
    notebook, notes = with_the_courses_cells(submitted, solution)
    if places := suspicious(notebook, solution):
        more = f", and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        notes.append(f"names what no exercise needs: {'; '.join(places[:SHOWN])}{more}")
    with tempfile.TemporaryDirectory(prefix="v", dir="/tmp" if isolated else None) as folder:
        # Found also from a folder that is not the course's. An isolated kernel does not see it.
        variables = {"PYTHONPATH": str(ROOT)}
        config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
        config.merge(_runs(cell_limit))
        train_for(solution)
        if isolated:
            variables |= kernel(Path(folder))
            config.merge(_shut_in(variables["JUPYTER_RUNTIME_DIR"]))
        execute = Execute(config=config)
        execute.numbers = exercise_numbers(solution)
        with _in_the_environment(variables):
            done, _ = execute.preprocess(notebook, {"metadata": {"path": folder}})
    notes += [
        f"cell {place} {what}"
        for place, what in execute.fatal.items()
        if not is_grade(done.cells[place])
    ]
    return Rerun(tuple(_earned(done, solution)), tuple(notes))


@contextlib.contextmanager
def _in_the_environment(variables: dict[str, str]) -> Iterator[None]:
    """Kernels inherit the variables; whoever called gets its own environment back."""
    before = dict(os.environ)
    os.environ |= variables
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def _runs(cell_limit: int | None) -> Config:
    """The same as for grading: a cell that is not done in time ends its kernel."""
    execute = Config(interrupt_on_timeout=False)
    if cell_limit is not None:
        execute.timeout = cell_limit
    return Config(Execute=execute)


def _shut_in(runtime: str) -> Config:
    """Sockets that are files: there is no network between the kernel and us."""
    manager = Config(transport="ipc", connection_file=f"{runtime}/k.json")
    return Config(Execute=Config(kernel_name="isolated"), KernelManager=manager)


def _earned(done: NotebookNode, solution: NotebookNode) -> Iterator[Exercise]:
    outputs = {
        cell.metadata.nbgrader.grade_id: cell.outputs for cell in done.cells if is_grade(cell)
    }
    for name, title, of in graded(solution):
        points, said = 0.0, "its check is missing from the notebook"
        for output in outputs.get(name, []):
            if output.output_type == "error":
                said = f"{output.ename}: {output.evalue}"[:200]
            else:
                points = float(output.data["text/plain"])
                said = "not written yet" if _not_written(output) else "not yet right"
        if not math.isfinite(points) or not 0 <= points <= of:
            points, said = 0.0, f"the check gave {points:g} points, of {of:g}"
        yield Exercise(title, points, of, "passed" if points == of else said)


def _not_written(output: NotebookNode) -> bool:
    return "Not written yet" in output.data.get("text/html", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("submitted", type=Path)
    parser.add_argument("solution", type=Path)
    parser.add_argument("result", type=Path, help="where to write what came of it, as JSON")
    parser.add_argument("--trust", action="store_true", help="run the code as yourself")
    parser.add_argument("--cell-limit", type=int, help="seconds for one cell")
    told = parser.parse_args()
    submitted, solution = (nbformat.read(f, as_version=4) for f in (told.submitted, told.solution))
    done = rerun(submitted, solution, not told.trust, told.cell_limit)
    told.result.write_text(json.dumps(asdict(done)))


if __name__ == "__main__":
    sys.exit(main())
