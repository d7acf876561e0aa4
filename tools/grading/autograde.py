"""`nbgrader autograde` for one student, with a kernel that is shut in. `grade.py` starts it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode, v4
from nbgrader.apps import AutogradeApp
from nbgrader.converters import Autograde
from nbgrader.preprocessors import Execute
from nbgrader.utils import is_grade

from tools.grading.trained import drafts
from utils.model_folder import cache_dir

ROOT = Path(__file__).resolve().parent.parent.parent
ISOLATION = Path(__file__).with_name("isolation.py")
SHOWN = ("utils", "benchmarks")  # of the course: not solutions/, not tests/, nobody's answers
MOST = 2**20  # characters that one cell may say


class Execute(Execute):  # type: ignore[no-redef]  # its name is that of the settings: c.Execute
    """nbgrader's, for notebooks that nobody has read.

    A cell that ends the kernel, or does not end itself, costs what it is worth and no more: all
    others run again, in a new kernel, without it. A cell says at most `MOST` characters. And a
    check that reports no points gives none: nbgrader would give all of them. Nor do points count
    that come without the feedback of their exercise.
    """

    numbers: Mapping[str, str] = MappingProxyType({})  # see `exercise_numbers`

    def preprocess(self, nb: NotebookNode, resources: Any = None, km: Any = None) -> Any:
        self.fatal: dict[int, str] = {}  # cell -> what it did
        while True:
            self.running, self.said = -1, 0
            try:
                done = super().preprocess(nb, resources, km)
                break
            except CellTimeoutError:
                self.fatal[self.running] = f"was not done after {self.timeout} seconds"
            except DeadKernelError:
                if self.running < 0:
                    raise
                self.fatal[self.running] = "ended Python, or used too much memory or processes"
        for cell in nb.cells:
            if is_grade(cell) and cell.cell_type == "code":
                number = self.numbers.get(cell.metadata.nbgrader.grade_id, "")
                cell.outputs = _only_points(cell.outputs, number)
        return done

    def preprocess_cell(self, cell: NotebookNode, resources: Any, index: int) -> Any:
        self.running, self.said = index, 0
        if index in self.fatal:
            cell.outputs = [_error(f"This cell {self.fatal[index]}. The others ran without it.")]
            return cell, resources
        return super().preprocess_cell(cell, resources, index)

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> Any:
        content = msg["content"]
        self.said += len(str(content)) if msg["msg_type"] != "status" else 0
        if self.said > MOST and msg["msg_type"] not in ("status", "execute_result"):
            return None
        return super().process_message(msg, cell, cell_index)


def graded(notebook: NotebookNode) -> Iterator[tuple[str, str, float]]:
    """Name, title and points of each exercise: its heading is the last one above its check."""
    title = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = [line for line in cell.source.splitlines() if line.startswith("## ")]
            title = headings[-1].removeprefix("## ") if headings else title
        if is_grade(cell):
            yield cell.metadata.nbgrader.grade_id, title, float(cell.metadata.nbgrader.points)


def exercise_numbers(notebook: NotebookNode) -> dict[str, str]:
    """How the feedback of each check begins, such as "Exercise 3:", by the check's `grade_id`."""
    return {name: "".join(title.partition(":")[:2]) for name, title, _ in graded(notebook)}


def _only_points(outputs: list[NotebookNode], number: str) -> list[NotebookNode]:
    """What a check returned: points, and feedback with the number of its exercise.

    What else was said during it, on whatever channel, has no points.
    """
    results = [output for output in outputs if output.output_type == "execute_result"]
    errors = [output for output in outputs if output.output_type == "error"]
    if errors or len(results) != 1:
        return errors or [_error(f"The check gave points {len(results)} times, not once.")]
    try:
        float(results[0].data["text/plain"])
    except (KeyError, ValueError):
        return [_error("The check gave no number of points.")]
    if f"<strong>{number}" not in results[0].data.get("text/html", ""):
        return [_error("These points did not come with the check's own feedback.")]
    return results


def _error(words: str) -> NotebookNode:
    return v4.new_output("error", ename="NotGraded", evalue=words, traceback=[words])


def kernel(folder: Path) -> dict[str, str]:
    """Describe an isolated kernel to Jupyter, in a folder: the variables that make it found."""
    runtime = folder / "r"  # a short name: sockets have paths of at most 107 characters
    runtime.mkdir()
    described = folder / "kernels" / "isolated" / "kernel.json"
    described.parent.mkdir(parents=True)
    shown = [*(ROOT / name for name in SHOWN), cache_dir(), drafts()]
    seen = [f"--read={path}" for path in shown if path.exists()]
    inside = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    argv = [sys.executable, str(ISOLATION), f"--home={ROOT / 'learner'}", *seen]
    argv += [f"--write={runtime}", "--", *inside]
    described.write_text(json.dumps({"argv": argv, "display_name": "", "language": "python"}))
    return {
        "JUPYTER_PATH": str(folder),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "COURSE_CACHE": str(cache_dir()),
        "COURSE_ARTIFACTS": str(drafts().parent),
    }


def autograde(lab: str, student: str, isolated: bool) -> None:
    """Run in the course's folder: nbgrader reads its settings there."""
    Execute.numbers = exercise_numbers(nbformat.read(Path("labs", lab, f"{lab}.ipynb"), 4))
    app = AutogradeApp.instance()
    app.initialize([lab, f"--student={student}"])
    steps: list[Callable[..., Any]] = Autograde.autograde_preprocessors.default()
    app.config.Autograde.autograde_preprocessors = [
        Execute if step.__name__ == "Execute" else step for step in steps
    ]
    if isolated:  # sockets that are files: there is no network between the kernel and us
        app.config.Execute.kernel_name = "isolated"
        app.config.KernelManager.transport = "ipc"
        app.config.KernelManager.connection_file = f"{os.environ['JUPYTER_RUNTIME_DIR']}/k.json"
    app.config.Execute.interrupt_on_timeout = False
    app.config.Execute.error_on_timeout = {}
    app.start()


if __name__ == "__main__":
    autograde(sys.argv[1], sys.argv[2], isolated=sys.argv[3] == "isolated")
