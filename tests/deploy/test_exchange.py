"""A class of two through nbgrader's exchange, with the hub's own settings, outside the repository.

Everybody has a home folder and nbgrader's real commands; nothing but the exchange lies between
them. One hands in the solution's answers, the other the lab as it was handed out.
The lab is the first two exercises of lab 01, which load no model.
"""

from __future__ import annotations

import csv
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.scale import only_full
from tools import make_labs
from tools.grading.grade import grade
from utils.model_folder import cache_dir

pytestmark = only_full("nbgrader's commands one after the other, through a real exchange")
ROOT = make_labs.ROOT
SETTINGS = ROOT / "deploy" / "jupyterhub" / "jupyter"
LAB = "01_prefill_and_decode"
CELLS = 12  # its first two exercises
COURSE_ID = "from_kv_cache_to_vllm"
ROWS = ("student_id", "score", "max_score")


@dataclass
class Person:
    """Somebody on the hub: a name, a home folder, and the variables that the hub sets."""

    name: str
    home: Path
    exchange: Path

    @property
    def labs(self) -> Path:
        return self.home / "course" / "labs"

    @property
    def variables(self) -> dict[str, str]:
        programs = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        kept = {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "KMP_"))}
        return kept | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join(programs),
            "LANG": "C.UTF-8",
            "JUPYTER_CONFIG_PATH": str(SETTINGS),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "COURSE_EXCHANGE": str(self.exchange),
            "COURSE_CACHE": str(cache_dir()),
        }

    def nbgrader(self, *arguments: str, folder: Path | None = None) -> str:
        """Run a command as this person, in a folder; what it said."""
        command = [sys.executable, "-m", "nbgrader", *arguments]
        done = subprocess.run(
            command, cwd=folder or self.home, env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def as_student(self, command: str) -> str:
        """All tests are one user of the system; on a hub nbgrader takes the user's own name."""
        return self.nbgrader(command, LAB, f"--CourseDirectory.student_id={self.name}")


@dataclass
class Classroom:
    instructor: Person
    ana: Person  # hands in the right answers
    ben: Person  # hands in nothing of his own
    course: Path
    ran: nbformat.NotebookNode  # Ana's lab as she ran it
    problems: dict[str, str]
    grades: dict[str, dict[str, str]]


def open_course(instructor: Person) -> Path:
    """The instructor's course folder: settings and one lab, as in a clone of the repository."""
    course = instructor.home / "course"
    (course / "solutions" / LAB).mkdir(parents=True)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    nbformat.write(first_cells("solutions"), course / "solutions" / LAB / f"{LAB}.ipynb")
    return course


def first_cells(folder: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(ROOT / folder / LAB / f"{LAB}.ipynb", as_version=4)
    notebook.cells = notebook.cells[:CELLS]
    return notebook


def solve(student: Person, solution: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Write the solution's answers into the fetched lab, and run it where it lies."""
    path = student.labs / LAB / f"{LAB}.ipynb"
    lab = nbformat.read(path, as_version=4)
    answers = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in solution.cells}
    for cell in lab.cells:
        nbgrader = cell.metadata.get("nbgrader", {})
        if nbgrader.get("solution"):
            cell.source = answers[nbgrader["grade_id"]].source
    client = NotebookClient(
        lab,
        kernel_name="python3",
        timeout=300,
        startup_timeout=300,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=student.variables)
    nbformat.write(lab, path)
    return lab


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Classroom:
    root = tmp_path_factory.mktemp("hub")
    exchange = root / "exchange"
    exchange.mkdir()
    exchange.chmod(0o1777)
    people = [Person(name, root / "home" / name, exchange) for name in ("instructor", "ana", "ben")]
    for person in people:
        person.labs.mkdir(parents=True)
    instructor, ana, ben = people
    course = open_course(instructor)

    instructor.nbgrader("generate_assignment", LAB, folder=course)
    instructor.nbgrader("release_assignment", LAB, folder=course)
    for student in (ana, ben):
        student.nbgrader("fetch_assignment", LAB)
    ran = solve(ana, first_cells("solutions"))
    for student in (ana, ben):
        student.as_student("submit")

    # All are one user here, and a submission's owner is not its student: see `as_student`.
    instructor.nbgrader("collect", LAB, "--ExchangeCollect.check_owner=False", folder=course)
    problems = grade(LAB, course)  # what `make grade` does, in the repository's own folder
    instructor.nbgrader("generate_feedback", LAB, folder=course)
    instructor.nbgrader("release_feedback", LAB, folder=course)
    instructor.nbgrader("export", folder=course)
    for student in (ana, ben):
        student.as_student("fetch_feedback")
    with open(course / "grades.csv", newline="") as file:
        grades = {row["student_id"]: row for row in csv.DictReader(file)}
    return Classroom(instructor, ana, ben, course, ran, problems, grades)


def test_what_is_fetched_is_the_lab_that_learners_have(room: Classroom) -> None:
    fetched = nbformat.read(room.ben.labs / LAB / f"{LAB}.ipynb", as_version=4)
    handed_out = first_cells("labs")
    assert [cell.source for cell in fetched.cells] == [cell.source for cell in handed_out.cells]


def test_a_lab_runs_in_a_students_folder(room: Classroom) -> None:
    """The first cell finds the installed course; nothing was fetched or put beside the lab."""
    first = next(cell for cell in room.ran.cells if cell.cell_type == "code")
    assert "bootstrap" in first.metadata.tags
    assert "Ready." in "".join(output.get("text", "") for output in first.outputs)
    assert [
        o for cell in room.ran.cells for o in cell.get("outputs", ()) if o.output_type == "error"
    ] == []
    assert sorted(path.name for path in (room.ana.labs / LAB).iterdir()) == [
        f"{LAB}.ipynb",
        "feedback",
    ]


def test_one_has_all_points_and_the_other_none(room: Classroom) -> None:
    assert room.problems == {"ana": "", "ben": ""}
    cells = first_cells("solutions").cells
    most = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in cells)
    scores = {
        name: (float(row["score"]), float(row["max_score"])) for name, row in room.grades.items()
    }
    assert most > 0
    assert scores == {"ana": (most, most), "ben": (0, most)}


def test_each_gets_feedback_of_their_own(room: Classroom) -> None:
    for student in (room.ana, room.ben):
        [page] = (student.labs / LAB / "feedback").rglob("*.html")
        assert (
            page.read_bytes()
            == (room.course / "feedback" / student.name / LAB / f"{LAB}.html").read_bytes()
        )
        assert ("Not written yet" in page.read_text()) == (student is room.ben)


def test_nobody_can_list_what_others_hand_in(room: Classroom) -> None:
    inbound = room.instructor.exchange / COURSE_ID / "inbound"
    assert stat.S_IMODE(inbound.stat().st_mode) & 0o077 == 0o033
    assert {path.name.split("+")[0] for path in inbound.iterdir()} == {"ana", "ben"}
