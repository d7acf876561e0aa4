"""`make verify` runs a learner's labs again, survives what is in them, and says what it saw.

The labs here are made up: two exercises, whose checks need nothing of the course.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat import NotebookNode, v4
from nbgrader.utils import compute_checksum

from tools.grading import isolation
from tools.verification import page, verify
from tools.verification.provenance import checks_hash, code_hash, git_state
from tools.verification.rerun import rerun, untouched, with_the_courses_cells
from tools.verification.verify import Verification, target_for
from utils.pipeline.manifests import file_hash

FIRST, SECOND = "97_first", "98_second"
GIVEN = '''\
expected = 6


class Points(float):
    """What a check gives: points, and the feedback of an exercise."""

    def of(self, title):
        self.title = title
        return self

    def _repr_html_(self):
        return f"<strong>{self.title}</strong>"
'''


def cell(kind: str, name: str, source: str, points: float | None = None) -> NotebookNode:
    """A cell of nbgrader's: "text" and "given" are locked, so is "check"; "answer" is not."""
    made = v4.new_markdown_cell(source) if kind == "text" else v4.new_code_cell(source)
    made.metadata["nbgrader"] = {
        "grade_id": name,
        "grade": kind == "check",
        "solution": kind == "answer",
        "locked": kind != "answer",
        "schema_version": 3,
        "task": False,
        "cell_type": made.cell_type,
    }
    if points is not None:
        made.metadata.nbgrader["points"] = points
    return made


def lab(double: str = "return 2 * x", square: str = "return x * x") -> NotebookNode:
    """The made-up lab; its solution, if nothing else is asked for."""
    cells = [
        cell("text", "title", "# Lab 97: numbers"),
        cell("given", "given", GIVEN),
        cell("text", "about_double", "## Exercise 1: `double`"),
        cell("answer", "double", f"def double(x):\n    {double}"),
        cell(
            "check",
            "check_double",
            'Points(2 * (double(3) == expected)).of("Exercise 1: double")',
            points=2,
        ),
        cell("text", "about_square", "Something more.\n\n## Exercise 2: `square`"),
        cell("answer", "square", f"def square(x):\n    {square}"),
        cell("check", "check_square", 'Points(square(3) == 9).of("Exercise 2: square")', points=1),
    ]
    return v4.new_notebook(cells=cells)


def stubs() -> NotebookNode:
    """The lab as it is handed out."""
    made = lab("raise NotImplementedError", "raise NotImplementedError")
    for one in made.cells:
        one.metadata.nbgrader["checksum"] = compute_checksum(one)
    return made


def named(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.nbgrader.grade_id == name)


def write(folder: Path, name: str, notebook: NotebookNode) -> Path:
    path = folder / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def verification(root: Path, **settings: Any) -> Verification:
    """With two made-up labs, whose copies are in `root`/labs."""
    for name in (FIRST, SECOND):
        write(root / "solutions", name, lab())
    settings = {"isolated": False} | settings
    return Verification(root / "labs", root / "solutions", root / "out", **settings)


def rows(root: Path) -> dict[str, dict[str, Any]]:
    return json.loads((root / "out" / verify.RESULTS).read_text())["labs"]


# --- what a run sees ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
def test_a_solved_lab_has_its_points_and_one_that_is_untouched_is_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], isolated: bool
) -> None:
    if isolated and (reason := isolation.unavailable()):
        pytest.skip(f"code cannot be shut in here: {reason}")
    solved = lab()
    solved.cells.append(v4.new_code_cell("import pathlib\npathlib.Path('x').write_text('x')"))
    path = write(tmp_path / "labs", FIRST, solved)
    write(tmp_path / "labs", SECOND, stubs())
    before = sorted((tmp_path / "labs").rglob("*")), path.read_bytes()
    written = verification(tmp_path, isolated=isolated).run()
    first, second = rows(tmp_path)[FIRST], rows(tmp_path)[SECOND]
    assert (first["points"], first["of"], first["not_run"]) == (3, 3, "")
    assert [(e["title"], e["said"]) for e in first["exercises"]] == [
        ("Exercise 1: `double`", "passed"),
        ("Exercise 2: `square`", "passed"),
    ]
    assert first["notes"] == ["names what no exercise needs: cell 8, line 1: import pathlib"]
    assert (second["points"], second["of"]) == (0, 3)
    assert second["not_run"] == "nothing is written yet"
    assert (sorted((tmp_path / "labs").rglob("*")), path.read_bytes()) == before
    text = written.read_text()
    assert "3 of 6 points" in text and "1 of 2 labs are complete" in text
    assert ("not shut in" in text) is not isolated
    said = capsys.readouterr().out
    assert "1 lab to run, " in said and "; 1 lab with nothing to run." in said


@pytest.mark.slow
def test_what_hangs_is_ended_and_what_was_changed_is_the_courses_again() -> None:
    copy = lab(double="return 3 * x")
    named(copy, "given").source = "expected = 9"
    named(copy, "check_square").source = "1.0"
    named(copy, "square").source = "while True:\n    pass"
    copy.cells.insert(5, v4.new_code_cell("import os\nos._exit(1)"))
    before = dict(os.environ)
    done = rerun(copy, lab(), isolated=False, cell_limit=8)
    assert dict(os.environ) == before  # or all later tests would find the course on their path
    double, square = done.exercises
    assert (double.points, double.said) == (0, "not yet right")
    assert square.points == 0 and "NameError" in square.said
    notes = "\n".join(done.notes)
    assert "`given` had been changed" in notes and "`check_square` had been changed" in notes
    assert "cell 7 was not done after 8 seconds" in notes
    assert "cell 5 ended Python" in notes


def test_the_courses_cells_are_run_once_each() -> None:
    copy = lab()
    copy.cells.append(named(copy, "check_double"))
    copy.cells.remove(named(copy, "check_square"))
    named(copy, "title").source = "# My own title"
    notebook, notes = with_the_courses_cells(copy, lab())
    ids = [c.metadata.nbgrader.grade_id for c in notebook.cells]
    assert ids.count("check_double") == 1 and "check_square" not in ids
    assert notes == [
        "`check_double` stands more than once: only the first was run",
        "`check_square` is missing",
    ]


def test_a_lab_is_untouched_until_something_is_written() -> None:
    copy = stubs()
    assert untouched(copy)
    copy.cells.append(v4.new_code_cell("1 + 1"))
    assert untouched(copy)  # nothing of it is an answer
    named(copy, "double").source += "\n"
    assert not untouched(copy)


def test_what_takes_too_long_or_is_no_notebook_stops_nobody(tmp_path: Path) -> None:
    write(tmp_path / "labs", FIRST, lab()).write_text("my answers")
    write(tmp_path / "labs", SECOND, lab())
    verification(tmp_path, patience=0.1).run()
    assert "is no notebook" in rows(tmp_path)[FIRST]["not_run"]
    assert rows(tmp_path)[SECOND]["not_run"] == "was not done after 0.1 seconds"
    assert [row["of"] for row in rows(tmp_path).values()] == [3, 3]
    (tmp_path / "labs" / FIRST / f"{FIRST}.ipynb").unlink()
    verification(tmp_path, patience=0.1).run([FIRST])
    assert rows(tmp_path)[FIRST]["not_run"] == "there is no notebook"


@pytest.mark.slow
def test_an_interruption_ends_all_that_runs_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """Also what the lab started: a kernel notices by itself that it is alone, a server does not."""
    pid = tmp_path / "pid"
    write(tmp_path / "labs", FIRST, stubs())
    endless = lab()
    named(endless, "double").source = (
        "import os, subprocess\n"
        "server = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pid)!r}, 'w').write(f'{{os.getpid()}} {{server.pid}} ')\n"
        "while True:\n    pass"
    )
    write(tmp_path / "labs", SECOND, endless)

    def interrupt() -> None:
        give_up = time.monotonic() + 240
        while not (pid.is_file() and pid.read_text()) and time.monotonic() < give_up:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    # A shell starts what runs in the background, perhaps this test, deaf to interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            verification(tmp_path).run()
    finally:
        waiting.join()
        signal.signal(signal.SIGINT, before)
    assert set(rows(tmp_path)) == {FIRST}
    kernel, server = map(int, pid.read_text().split())
    deadline = time.monotonic() + 20
    while (_runs(kernel) or _runs(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(kernel) and not _runs(server)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- interrupted and resumed --------------------------------------------------------------------


class Counting(Verification):
    """Runs nothing: notes which labs it was asked to, and stops at one as if interrupted."""

    def __init__(self, root: Path, stop_at: str = "") -> None:
        super().__init__(root / "labs", root / "solutions", root / "out", isolated=False)
        self.asked: list[str] = []
        self.stop_at = stop_at

    def _in_a_program_of_its_own(self, name: str) -> tuple[dict[str, Any], str]:
        if name == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(name)
        exercise = {"title": "Exercise 1: <b>", "points": 2.0, "of": 3.0, "said": "not yet right"}
        return {"exercises": [exercise], "notes": ["`given` & more"]}, ""


@pytest.fixture
def two_labs(tmp_path: Path) -> Path:
    for name in (FIRST, SECOND):
        write(tmp_path / "labs", name, lab(square="return x"))
        write(tmp_path / "solutions", name, lab())
    return tmp_path


def asked(root: Path, *wanted: str, stop_at: str = "") -> list[str]:
    work = Counting(root, stop_at)
    try:
        work.run(wanted)
    except KeyboardInterrupt:
        assert stop_at
    return work.asked


def test_an_interrupted_run_goes_on_and_a_complete_one_begins_anew(
    two_labs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(two_labs, stop_at=SECOND) == [FIRST]
    text = (two_labs / "out" / page.NAME).read_text()
    assert f"Not measured yet, and not in these points: {SECOND}." in text
    assert asked(two_labs) == [SECOND]
    assert "Going on after an interruption: 1 lab had been run." in capsys.readouterr().out
    assert asked(two_labs) == [FIRST, SECOND]
    assert "minutes left" in capsys.readouterr().out
    assert asked(two_labs, SECOND) == [SECOND]


def test_what_has_changed_since_is_run_again(two_labs: Path) -> None:
    assert asked(two_labs, stop_at=SECOND) == [FIRST]
    write(two_labs / "labs", FIRST, lab(double="return x + x"))
    assert asked(two_labs) == [FIRST, SECOND]


def test_the_page_says_what_is_out_of_date(two_labs: Path) -> None:
    asked(two_labs)
    assert "out of date" not in (two_labs / "out" / page.NAME).read_text()
    write(two_labs / "labs", FIRST, lab(double="return x + x"))
    asked(two_labs, SECOND)
    text = (two_labs / "out" / page.NAME).read_text()
    assert f"What was measured of {FIRST} is out of date" in text


def test_damaged_results_count_as_none(two_labs: Path) -> None:
    asked(two_labs)
    (two_labs / "out" / verify.RESULTS).write_text('{"labs": ')
    assert asked(two_labs) == [FIRST, SECOND]


# --- the page -----------------------------------------------------------------------------------


class Reader(HTMLParser):
    """The tags that are open, the addresses that something would be loaded from, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_escapes_all_and_can_be_checked(two_labs: Path) -> None:
    asked(two_labs)
    text = (two_labs / "out" / page.NAME).read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == [] and reader.loads == [] and "<script" not in text
    assert "url(" not in text and "@import" not in text
    assert "Exercise 1: <b>: 2 of 3, not yet right" in reader.text
    assert "given & more" in reader.text
    said = " ".join(reader.text.split())
    assert "It is no certificate." in said and "make verify LABS=" in said
    for name in (FIRST, SECOND):
        notebook = two_labs / "labs" / name / f"{name}.ipynb"
        command = ["sha256sum", str(notebook)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert found.split()[0] in text
    assert checks_hash(verify.ROOT, FIRST) in text
    assert re.search(r"Python \d+\.\d+\.\d+, torch \d", said)
    assert str(two_labs) not in text  # whoever reads it need not know this machine


def test_it_says_whether_the_checks_are_those_that_were_committed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    check = tmp_path / "utils" / "checks" / "lab_97" / "__init__.py"
    check.parent.mkdir(parents=True)
    check.write_text("RIGHT = 9\n")
    assert git_state(tmp_path / "utils").commit == ""
    assert "cannot be told" in page._checks(git_state(tmp_path))
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "the course")
    course, before = git("rev-parse", "HEAD"), checks_hash(tmp_path, FIRST)
    write(tmp_path / "labs", FIRST, lab())
    git("add", ".")
    git("commit", "--quiet", "-m", "my own lab")
    state = git_state(tmp_path)
    assert (state.commit, state.changed) == (course, ())
    assert course in page._checks(state) and "unchanged" in page._checks(state)
    check.write_text("RIGHT = 8\n")
    (check.parent / "more.py").touch()
    state = git_state(tmp_path)
    assert state.changed == ("utils/checks/lab_97/__init__.py", "utils/checks/lab_97/more.py")
    assert "They differ from what was committed" in page._checks(state)
    assert checks_hash(tmp_path, FIRST) != before


def test_a_hash_covers_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("2")
    first = code_hash(tmp_path, [tmp_path])
    assert code_hash(tmp_path, [tmp_path, tmp_path]) == first  # each file once
    (tmp_path / "b.py").rename(tmp_path / "c.py")  # the same contents, in the same order
    assert code_hash(tmp_path, [tmp_path]) != first
    empty = tmp_path / "empty"
    empty.touch()
    # Of nothing at all, as FIPS 180-4 has it.
    assert file_hash(empty) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# --- the command --------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def says(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["verify", *arguments])
        with pytest.raises(SystemExit) as stopped:
            verify.main()
        assert stopped.value.code == 2
        return capsys.readouterr().err

    assert "no such lab: 99. Labs are: 01_prefill_and_decode" in says("99")
    assert "no such lab: 0." in says("0")  # which of them?
    assert "there is no folder" in says("--labs", str(tmp_path / "none"))
    monkeypatch.setattr(isolation, "unavailable", lambda: "no namespaces")
    said = says("02")
    assert "no namespaces" in said and "make verify TRUST=1" in said


def test_somebody_elses_labs_do_not_mix_with_your_own(tmp_path: Path) -> None:
    targets = {target_for(path) for path in (verify.ROOT / "labs", tmp_path, tmp_path / "labs")}
    assert len(targets) == 3 and verify.TARGET in targets
