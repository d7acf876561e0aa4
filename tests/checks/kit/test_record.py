"""A check leaves a line, and only where it should; whatever is wrong with the file, it answers."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from utils.checks.kit import example, record
from utils.checks.kit.feedback import Feedback
from utils.checks.kit.runner import Mismatch, NotWritten, exercise

ROOT = Path(__file__).resolve().parents[3]
SECRET = "the learner's own code"


def made_up(lab: str = "utils.checks.lab_99") -> Callable[[Any], Feedback]:
    """A lab's check: 2 is right, None is not written, all else is wrong."""

    def twice(answer: Any) -> str:
        if answer is None:
            raise NotWritten(f"not written: {SECRET}")
        if answer != 2:
            raise Mismatch(f"wrong: {SECRET}", got=SECRET)
        return f"right: {SECRET}"

    twice.__module__ = lab
    return exercise("Exercise 1: twice", points=4)(twice)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for the record, and somebody who runs cells."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setattr(record, "_somebody_is_there", lambda: True)
    return tmp_path / "state" / "from-kv-cache-to-vllm" / "progress.jsonl"


def test_each_check_leaves_what_it_said_and_nothing_of_the_code(file: Path) -> None:
    check = made_up()
    for answer in (None, 1, 2):
        check(answer)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["status"], line["points"], line["of"]) for line in lines] == [
        ("not written yet", 0, 4),
        ("failed", 0, 4),
        ("passed", 4, 4),
    ]
    assert {(line["lab"], line["exercise"]) for line in lines} == {("99", "twice")}
    assert all(set(line) == {"at", "lab", "exercise", "status", "points", "of"} for line in lines)
    age = datetime.now(UTC) - datetime.fromisoformat(lines[-1]["at"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=5)
    assert SECRET not in file.read_text()
    assert [entry.points for entry in record.read_record()] == [0, 0, 4]


def test_nobody_else_may_read_it(file: Path) -> None:
    made_up()(2)
    assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(file.parent.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("word", ["off", "OFF", " no", "false", "0"])
def test_it_can_be_switched_off(file: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("COURSE_PROGRESS", word)
    made_up()(2)
    assert not file.parent.exists()
    monkeypatch.setenv("COURSE_PROGRESS", "on")
    made_up()(2)
    assert file.exists()


def test_what_is_no_lab_or_a_solution_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example.answer(lambda ask, token_ids, eos, limit: [])  # notebook 00's
    monkeypatch.setenv("JPY_SESSION_NAME", "solutions/99_name/99_name.ipynb")
    made_up()(2)
    assert not file.exists()
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/99_name/99_name.ipynb")
    made_up()(2)
    assert len(record.read_record()) == 1


def test_neither_a_plain_program_nor_a_test_leaves_anything(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(file.parents[1]))
    made_up()(2)
    assert not file.exists()


# --- what can be wrong with the place -----------------------------------------------------------


def no_folder(file: Path) -> None:
    file.parent.parent.write_text("a file where a folder should be")


def a_folder_in_its_place(file: Path) -> None:
    file.mkdir(parents=True)


def a_full_disk(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.symlink_to("/dev/full")


def bytes_that_are_no_text(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(4096) + b"\xff\xfe{")


@pytest.mark.parametrize("answer", [None, 1, 2])
@pytest.mark.parametrize(
    "damage", [no_folder, a_folder_in_its_place, a_full_disk, bytes_that_are_no_text]
)
def test_a_check_answers_the_same_whatever_the_record_is(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    answer: int | None,
) -> None:
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    without = made_up()(answer), capsys.readouterr()
    monkeypatch.delenv("COURSE_PROGRESS")
    damage(file)
    assert (made_up()(answer), capsys.readouterr()) == without


def test_without_a_home_a_check_answers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "relative/does/not/count")
    monkeypatch.setattr(Path, "home", no_home)
    assert made_up()(2).passed
    assert not Path("relative").exists()
    with pytest.raises(RuntimeError, match="home"):
        record.read_record()


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"at": "2026-01-01T00:00:00+00:00", "lab": "9',
        b"\n\n",
        b"[]\n",
        b"17\n",
        b"[" * 9999,
        b'{"at": 1, "lab": "99", "exercise": "e", "status": "s", "points": 1, "of": 1}\n',
        b'{"at": "2026-01-01", "lab": [], "exercise": "e", "status": "s", "points": 1, "of": 1}\n',
        b'{"at": "2026-01-01", "lab": "9", "exercise": "e", "status": "s", "points": NaN, "of": 1}',
        b'{"at": "2026-01-01", "lab": "99", "exercise": "e", "status": "s", "points": 9, "of": 1}',
        b'{"at": "2026-01-01", "lab": "99", "exercise": "e", "status": "s", "points": 1}',
        "half of an é".encode()[:-1],
    ],
)
def test_a_damaged_line_costs_itself_alone(file: Path, damaged: bytes) -> None:
    made_up()(1)
    with open(file, "ab") as stream:
        stream.write(damaged)
    made_up()(2)
    assert [entry.points for entry in record.read_record()] == [0, 4]


def test_several_programs_at_once_lose_nothing(file: Path) -> None:
    code = (
        "import sys\n"
        "from utils.checks.kit import record\n"
        "from utils.checks.kit.feedback import Feedback\n"
        "record._somebody_is_there = lambda: True\n"
        "def check(): pass\n"
        "check.__module__, check.__name__ = 'utils.checks.lab_99', sys.argv[1]\n"
        "for n in range(300):\n"
        "    record.note(check, Feedback('', 'failed', n, 300, ''))\n"
    )
    programs = [subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT) for name in "abcd"]
    assert [program.wait(timeout=120) for program in programs] == [0] * 4
    found = sorted((entry.exercise, entry.points) for entry in record.read_record())
    assert found == [(name, n) for name in "abcd" for n in range(300)]


# --- in a real kernel ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BlockingKernelClient, Path]]:
    """A kernel as JupyterLab starts it, and where its record lies."""
    state = tmp_path_factory.mktemp("state")
    hidden = {"PYTEST_VERSION", "PYTEST_CURRENT_TEST", "COURSE_PROGRESS", "JPY_SESSION_NAME"}
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    variables |= {"XDG_STATE_HOME": str(state), "PYTHONPATH": str(ROOT)}
    manager, client = start_new_kernel(startup_timeout=120, env=variables, cwd=str(ROOT))
    run(client, "from utils.checks import lab_02\nimport os\n")
    run(client, "def wrong(*numbers, **named):\n    return 0\n")
    yield client, state / "from-kv-cache-to-vllm" / "progress.jsonl"
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client: BlockingKernelClient, code: str, somebody: bool = True) -> list[dict[str, Any]]:
    """The data of what a cell shows. A frontend lets the kernel ask; nbclient does not."""
    shown: list[dict[str, Any]] = []

    def keep(message: dict[str, Any]) -> None:
        content = message["content"]
        assert message["msg_type"] != "error", content
        if "data" in content:
            shown.append(content["data"])

    client.execute_interactive(code, allow_stdin=somebody, output_hook=keep, timeout=300)
    return shown


def test_a_kernel_records_what_a_person_runs_and_no_program(
    kernel: tuple[BlockingKernelClient, Path],
) -> None:
    client, file = kernel
    cell = "lab_02.latent_cache_bytes(wrong)"
    unattended = run(client, cell, somebody=False)  # as nbgrader, nbconvert and nbval do
    assert not file.exists()
    run(client, "os.environ['COURSE_PROGRESS'] = 'off'")
    off = run(client, cell)
    assert not file.exists()
    run(client, "del os.environ['COURSE_PROGRESS']")
    recorded = run(client, cell)
    (line,) = file.read_text().splitlines()
    kept = {name: value for name, value in json.loads(line).items() if name != "at"}
    assert kept == {
        "lab": "02",
        "exercise": "latent_cache_bytes",
        "status": "failed",
        "points": 0.0,
        "of": 1.0,
    }
    file.unlink()
    file.mkdir()
    assert unattended == off == run(client, cell)
    assert recorded[0]["text/plain"] == unattended[0]["text/plain"] == "0.0"
    in_lab = "; 0 of 16 in this lab"
    assert recorded[0]["text/html"].replace(in_lab, "", 1) == unattended[0]["text/html"]
    assert in_lab in recorded[0]["text/html"]
