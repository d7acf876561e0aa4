"""A class that cheats and breaks things: nobody stops another, or gets points that are not earned.

The lab is the first two exercises of lab 01. Those that are held back to be read are graded all the
same, as if they had been accepted: then it is the isolation that must hold. At the small size one
submission for each way of isolation is graded; all of them are read by the screen.
"""

from __future__ import annotations

import copy
import csv
import importlib
import inspect
import json
import os
import shutil
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from traitlets.config import PyFileConfigLoader

from tests.labs.hostile import BREAKS_THINGS, CHEATS, EVERYBODY, HONEST, RIGHT, WAYS_ROUND
from tests.scale import FULL, SCALE
from tools import make_labs
from tools.grading import isolation, trained
from tools.grading.autograde import Execute, _only_points, exercise_numbers, kernel
from tools.grading.grade import EVERYBODY as ALL
from tools.grading.grade import grade
from tools.grading.returned import otherwise
from tools.grading.screen import suspicious
from utils.checks.kit.feedback import Feedback

LAB = "01_prefill_and_decode"
POINTS = 2.0  # of each of the two exercises
# Nothing protects a check from code that runs beside it: reading is what stops it. Accepted all the
# same, some of these have points that are not earned; but only they.
NOT_ISOLATED = {
    "patches_the_check",
    "patches_a_module",
    "patches_feedback",
    "patches_torch",
    "patches_a_module_that_the_lab_imported",
    "patches_torch_by_another_name",
    "hides_in_awaiting",
    "uses_the_engine",
    "speaks_for_the_check",
    "says_yes",
    "reads_frames",
    "searches_memory",
    "patches_a_module_that_another_imported",
}
# One for each thing that isolation bounds: time, memory, processes, disk, network, files outside,
# the solutions; and one that is right.
ONE_OF_A_KIND = (
    "right",
    "loops_and_cannot_be_interrupted",
    "memory",
    "forks",
    "fills_the_disk",
    "talks_to_the_net",
    "writes_outside",
    "copies_by_command",
)
GRADED = [name for name in EVERYBODY if SCALE == FULL or name in ONE_OF_A_KIND]
JUDGED = [name for name in GRADED if name not in NOT_ISOLATED]
# Those that loop do so in the first exercise: in its answer, which otherwise takes no time, or when
# its check calls it. All other cells, the first of which imports torch, have as long as a busy
# machine needs.
SETTINGS = """
def seconds_for(cell):
    name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    return {"rms_norm": 30, "check_rms_norm": 90}.get(name, 900)

c.Execute.timeout_func = seconds_for
"""


def small(folder: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(make_labs.ROOT / folder / LAB / f"{LAB}.ipynb", as_version=4)
    notebook.cells = notebook.cells[:12]
    return notebook


def cells_of(notebook: nbformat.NotebookNode, name: str) -> list[nbformat.NotebookNode]:
    return [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name]


def cell_of(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    return cells_of(notebook, name)[0]


def answered(source: str) -> nbformat.NotebookNode:
    notebook = small("solutions")
    cell_of(notebook, "rms_norm").source = source
    return notebook


def submit(course: Path, student: str, notebook: nbformat.NotebookNode) -> Path:
    path = course / "submitted" / student / LAB / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


@contextmanager
def listening() -> Iterator[tuple[int, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1], server


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("class")
    shutil.copy(make_labs.ROOT / "nbgrader_config.py", root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(SETTINGS)
    (root / "solutions" / LAB).mkdir(parents=True)
    nbformat.write(small("solutions"), root / "solutions" / LAB / f"{LAB}.ipynb")
    make_labs.nbgrader(root, "generate_assignment", LAB)
    return root


@pytest.fixture(scope="module")
def graded(course: Path) -> dict[str, tuple[float, float]]:
    """Everybody's points for the two exercises, with what the isolation let through."""
    outside = course / "outside"
    with listening() as (port, server):
        for name in GRADED:
            values = {"{outside}": outside, "{port}": port, "{course}": course}
            source = EVERYBODY[name].source
            for place, value in values.items():
                source = source.replace(place, str(value))
            submit(course, name, answered(source))
        own = submit(course, "brings_its_own_checks", answered("def rms_norm(*a):\n    return 0\n"))
        for file, text in {
            "hub.py": "",
            "bootstrap.py": "def ready(): pass\n",
            "engine.py": "LLM = LlamaOps = ModelConfig = SamplingParams = 1\n",
            "checks/lab_01.py": "def rms_norm(f):\n    return 2.0\napply_rotary = rms_norm\n",
        }.items():
            (own.parent / "utils" / file).parent.mkdir(parents=True, exist_ok=True)
            (own.parent / "utils" / file).write_text(text)
        richer = answered("def rms_norm(x, weight, eps):\n    return x\n")
        cell_of(richer, "check_rms_norm").metadata.nbgrader.points = 1000
        cell_of(richer, "check_apply_rotary").source = "1000.0"
        submit(course, "writes_its_own_points", richer)
        silent = answered("raise KeyError\n")
        silent.cells.remove(cell_of(silent, "check_rms_norm"))
        submit(course, "has_no_check", silent)
        double = answered(RIGHT)
        double.cells.append(copy.deepcopy(cell_of(double, "check_rms_norm")))
        submit(course, "a_double", double)
        submit(course, "b_text", answered(RIGHT)).write_text("my answers")
        problems = grade(LAB, course, accepted=[ALL])
        with pytest.raises(BlockingIOError):
            server.accept()
    assert {name for name, problem in problems.items() if problem} == {"a_double", "b_text"}
    assert "more than once: check_rms_norm" in problems["a_double"]
    assert "is no notebook" in problems["b_text"]
    assert not outside.exists()
    make_labs.nbgrader(course, "export")
    with open(course / "grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    return {
        name: _points(course, name, score)
        for name, score in scores.items()
        if problems.get(name) == ""
    }


def _points(course: Path, student: str, score: float) -> tuple[float, float]:
    """Of each exercise, from the graded notebook; their sum is in the grade book."""
    path = course / "autograded" / student / LAB / f"{LAB}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    found = []
    for name in ("check_rms_norm", "check_apply_rotary"):
        outputs = [output for cell in cells_of(notebook, name) for output in cell.outputs]
        found.append(sum(float(o.data["text/plain"]) for o in outputs if o.output_type != "error"))
    assert sum(found) == score
    return found[0], found[1]


def test_a_user_whose_path_has_no_sbin_is_shut_in_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's users have none, and `pivot_root` lies there."""
    if reason := isolation.unavailable():
        pytest.skip(reason)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert isolation.unavailable() == ""


@pytest.mark.parametrize(
    "source",
    [
        "kept = bytearray(big)\nkept[::4096] = bytes(len(kept[::4096]))",
        "kept = mmap.mmap(-1, big)\nfor at in range(0, big, 4096): kept[at] = 1",
        "files = [os.memfd_create('a') for _ in range(4)]\n"
        "for file in files: os.write(file, bytes(big // 4))",
        "file = os.memfd_create('a')\nos.truncate(file, 2 * 2**30)",  # by the file's own limit
        "call = ctypes.CDLL(None, use_errno=True).shmget\n"
        "if int(open('/proc/sys/kernel/shmall').read()) > 2**40:\n"
        "    raise SystemExit('an older kernel: its administrator has to set this')\n"
        "parts = [call(0, ctypes.c_size_t(2**28), 0o600) for _ in range(5)]\n"
        "assert -1 not in parts, os.strerror(ctypes.get_errno())",  # of 1 GiB in all
    ],
    ids=["own", "shared", "no_name", "no_name_long", "system_v"],
)
def test_memory_is_bounded_whatever_it_is_called(source: str) -> None:
    head = f"import ctypes, mmap, os, time\nbig = {300 * 2**20}\n"
    command = [sys.executable, "-c", f"{head}{source}\ntime.sleep(20)"]
    room = isolation.Room("/home", isolation._system())
    before = os.getpriority(os.PRIO_PROCESS, 0), signal.getsignal(signal.SIGINT)
    # Unbounded, it would sleep and end well.
    assert isolation.run(room, command, isolation.Limits(memory=150 * 2**20)) != 0
    # Else all later tests of this process would push those of others aside.
    assert (os.getpriority(os.PRIO_PROCESS, 0), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("name", [*BREAKS_THINGS, *CHEATS, *HONEST])
def test_what_needs_a_look_is_held_back(name: str) -> None:
    found = suspicious(answered(EVERYBODY[name].source), small("labs"))
    assert bool(found) == EVERYBODY[name].held, found
    assert all(place.startswith("cell 5, line ") for place in found)


@pytest.mark.parametrize("source", WAYS_ROUND)
def test_another_way_to_the_same_place_is_found(source: str) -> None:
    assert suspicious(answered(f"{source}\n{RIGHT}"), small("labs")) != []


@pytest.mark.parametrize(
    ("first", "second"),
    [("import numpy as n", "n.ctypeslib"), ("T = Tensor", "T.equal = lambda *a: True")],
)
def test_a_way_through_two_cells_is_found(first: str, second: str) -> None:
    notebook = answered(RIGHT)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in (first, second)]
    assert suspicious(notebook, small("labs")) == [f"cell 13, line 1: {second}"]


@pytest.mark.parametrize("lab", make_labs.lab_names())
def test_no_solution_and_no_right_answer_is_held_back(lab: str) -> None:
    folders = [make_labs.ROOT / folder / lab / f"{lab}.ipynb" for folder in ("solutions", "labs")]
    solution, released = (nbformat.read(path, as_version=4) for path in folders)
    assert suspicious(solution, released) == []
    zoo = importlib.import_module(f"tests.labs.bug_zoo.lab_{make_labs.number_of(lab)}").zoo
    answers = [
        part
        for specimen in zoo.right_answers
        for part in getattr(specimen.answer, "arguments", (specimen.answer,))
    ]
    sources = list(filter(None, map(_source, answers)))
    assert len(sources) > len(answers) / 2
    for source in sources:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        places = suspicious(notebook, released)
        # To import the course's engine, or to call something `check`, is held back on purpose.
        assert [p for p in places if "import " not in p and "def check" not in p] == [], source


def test_what_a_lab_needs_trained_is_trained_before_learners_code_is_shut_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[str] = []
    monkeypatch.setattr(trained, "ensure_eagle", lambda: called.append("trained"))
    for lab, times in (("01_prefill_and_decode", 0), ("07b_medusa_eagle_mtp", 1)):
        path = make_labs.ROOT / "labs" / lab / f"{lab}.ipynb"
        trained.train_for(nbformat.read(path, as_version=4))
        assert len(called) == times
    monkeypatch.setenv("COURSE_ARTIFACTS", str(tmp_path))
    drafts = tmp_path / "drafts"
    for is_there in (False, True):
        folder = tmp_path / str(is_there)
        folder.mkdir()
        assert kernel(folder)["COURSE_ARTIFACTS"] == str(tmp_path)
        [described] = folder.rglob("kernel.json")
        assert (f"--read={drafts}" in json.loads(described.read_text())["argv"]) == is_there
        drafts.mkdir(exist_ok=True)


def _source(answer: object) -> str:
    """An answer as a learner would write it; "" if the zoo's code makes it."""
    try:
        lines = textwrap.dedent(inspect.getsource(answer)).splitlines()  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
    return "\n".join(line for line in lines if not line.startswith("@"))


def test_the_one_who_is_held_back_is_named_and_not_graded(course: Path) -> None:
    path = submit(course, "z_held", answered("import sys\n" + RIGHT))
    others = course / "elsewhere"
    (course / "submitted").rename(others)
    submitted = course / "submitted" / "z_held" / LAB
    submitted.mkdir(parents=True)
    shutil.copy(others / path.relative_to(course / "submitted"), submitted)
    try:
        problem = grade(LAB, course)["z_held"]
        assert "cell 5, line 1: import sys" in problem
        assert f"make grade LAB={LAB} ACCEPT=z_held" in problem
        assert not (course / "autograded" / "z_held").exists()
        assert grade(LAB, course, accepted=["z_held"]) == {"z_held": ""}
    finally:
        shutil.rmtree(course / "submitted")
        shutil.rmtree(others / "z_held")
        others.rename(course / "submitted")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JUDGED if name in HONEST])
def test_honest_work_has_all_its_points(graded: dict[str, tuple[float, float]], name: str) -> None:
    assert graded[name] == (POINTS, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JUDGED if name not in HONEST])
def test_nobody_gets_points_that_are_not_earned_nor_loses_those_that_are(
    graded: dict[str, tuple[float, float]], name: str
) -> None:
    assert graded[name] == (POINTS * EVERYBODY[name].first, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("brings_its_own_checks", (0, POINTS)),
        ("writes_its_own_points", (0, POINTS)),
        ("has_no_check", (0, POINTS)),
    ],
)
def test_a_submission_does_not_bring_its_own_points(
    graded: dict[str, tuple[float, float]], name: str, points: tuple[float, float]
) -> None:
    assert graded[name] == points


def _rooms() -> Iterator[dict[str, Any]]:
    """The rooms of the isolated programs that run on this machine, whoever started them.

    Those of this class had a folder that is gone; those of another run still have theirs.
    """
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(isolation.ENTER) in line:
            yield json.loads(line[line.index(str(isolation.ENTER)) + 1])


@pytest.mark.slow
def test_nothing_of_the_class_is_left(course: Path, graded: object) -> None:
    assert [room for room in _rooms() if not all(map(os.path.exists, room["write"]))] == []
    big = [path for path in course.rglob("*") if path.is_file() and path.stat().st_size > 5 * 2**20]
    assert big == []  # 50 MB were printed


def test_outputs_may_come_late() -> None:
    """What nbgrader itself waits is too short for a busy machine; see `late` in `HONEST`, too."""
    loader = PyFileConfigLoader("nbgrader_config.py", path=str(make_labs.ROOT))
    assert Execute(config=loader.load_config()).iopub_timeout == 120


def test_a_check_that_says_no_points_or_several_gives_none() -> None:
    def result(text: str, title: str = "Exercise 3: mask") -> nbformat.NotebookNode:
        html = Feedback(title, "passed", 2.0, 2.0, "Right.").to_html()
        data = {"text/plain": text} | ({"text/html": html} if title else {})
        return nbformat.v4.new_output("execute_result", data=data)

    noise = nbformat.v4.new_output("stream", name="stderr", text="a warning")
    right = result("2.0")
    assert _only_points([noise, right], "Exercise 3:") == [right]
    for outputs in (
        [],
        [noise],
        [right, right],
        [result("many")],
        [result("2.0", "")],
        [result("2.0", "Exercise")],
        [result("2.0", "Exercise 33: mask")],
    ):
        (output,) = _only_points(outputs, "Exercise 3:")
        assert output.output_type == "error"


@pytest.mark.parametrize("lab", make_labs.lab_names())
def test_each_saved_feedback_has_the_number_of_its_exercise(lab: str) -> None:
    folders = [make_labs.ROOT / folder / lab / f"{lab}.ipynb" for folder in ("solutions", "labs")]
    solution, released = (nbformat.read(path, as_version=4) for path in folders)
    numbers = exercise_numbers(released)
    for cell in solution.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            points = _only_points(cell.outputs, numbers[cell.metadata.nbgrader.grade_id])
            assert [output.output_type for output in points] == ["execute_result"]
    assert all(number.startswith("Exercise ") for number in numbers.values())


def test_what_came_back_otherwise_is_said_for_each_student(course: Path, tmp_path: Path) -> None:
    (tmp_path / "labs").symlink_to(course / "labs", target_is_directory=True)
    whole = small("labs")
    submit(tmp_path, "as_it_was", whole)
    submit(tmp_path, "downloaded_twice", whole).rename(
        tmp_path / "submitted" / "downloaded_twice" / LAB / f"{LAB} (1).ipynb"
    )
    own_name = tmp_path / "submitted" / "own_name" / "my_lab.ipynb"
    submit(tmp_path, "own_name", whole).rename(own_name)
    other = tmp_path / "submitted" / "other_lab" / "02_kv_cache" / "02_kv_cache.ipynb"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    for name in ("check_rms_norm", "apply_rotary"):
        without = small("labs")
        without.cells.remove(cell_of(without, name))
        submit(tmp_path, f"without_{name}", without)
    submit(tmp_path, "text", whole).write_text("my answers")
    moved = small("labs")
    moved.cells.reverse()
    submit(tmp_path, "moved", moved)
    said = otherwise(LAB, tmp_path)
    assert {student for student, words in said.items() if not words} == {
        "as_it_was",
        "text",
        "moved",  # of the text `grade` says that it is no notebook
    }
    assert f"but '{LAB}/{LAB} (1).ipynb'. Rename it" in said["downloaded_twice"]
    assert "but 'my_lab.ipynb'. Rename it" in said["own_name"]
    assert said["other_lab"] == "handed in nothing for this lab"
    assert "without check_rms_norm, which costs" in said["without_check_rms_norm"]
    assert "without apply_rotary, which costs" in said["without_apply_rotary"]
    shutil.rmtree(tmp_path / "submitted" / "as_it_was" / LAB)
    for student in ("text", "moved", "without_check_rms_norm", "without_apply_rotary"):
        shutil.rmtree(tmp_path / "submitted" / student)
    with pytest.raises(ValueError, match=r"(?s)There is no .*\ndownloaded_twice: .*Rename it"):
        grade(LAB, tmp_path)


def test_jupyter_leaves_nothing_in_the_courses_folder(course: Path) -> None:
    assert not (course / "migrated").exists()


def test_without_namespaces_it_says_what_to_do(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    submit(course, "y_only", answered(RIGHT))
    try:
        with pytest.raises(RuntimeError, match="container or a virtual machine") as caught:
            grade(LAB, course)
        assert "TRUST=1" in str(caught.value)
        with pytest.raises(ValueError, match="There is no"):
            grade("99_none", course)
    finally:
        shutil.rmtree(course / "submitted" / "y_only")
