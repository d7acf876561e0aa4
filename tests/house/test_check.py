"""`make check` finds the tests of what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import check


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("utils/engine/core/sched/scheduler.py", ["tests/engine/core/test_scheduler.py"]),
        ("utils/engine/sample/sampler.py", ["tests/engine/sample/test_sampler.py"]),
        ("utils/pipeline/task/data.py", ["tests/pipeline/task/test_data.py"]),
        ("utils/pipeline/runner.py", ["tests/pipeline/test_runner.py"]),
        ("utils/checks/lab_06/memory.py", ["tests/checks/test_lab_06.py"]),
        ("utils/checks/lab_01/__init__.py", ["tests/checks/lab_01"]),
        ("utils/checks/lab_05/pool_story.py", ["tests/checks/lab_05"]),
        ("utils/checks/kit/runner.py", ["tests/checks/kit"]),
        ("notebooks/02_kv_cache.ipynb", ["notebooks/02_kv_cache.ipynb"]),
        ("notebooks/99_gone.ipynb", []),
        (
            "solutions/02_kv_cache/02_kv_cache.ipynb",
            ["solutions/02_kv_cache/02_kv_cache.ipynb", "tests/labs/test_labs.py"],
        ),
        ("tools/release.py", ["tests/house/test_release.py"]),
        ("utils/hub.py", ["tests/test_hub.py"]),
        ("tests/sim/test_traces.py", ["tests/sim/test_traces.py"]),
        ("tests/sim/test_deleted.py", []),
        ("tests/conftest.py", []),
        ("README.md", []),
        ("utils/pipeline/task/texts/emma.txt", []),
    ],
)
def test_a_changed_file_has_these_tests(changed: str, tests: list[str]) -> None:
    assert check.tests_of(changed) == tests


def test_tools_and_site_have_the_tests_that_name_them() -> None:
    assert "tests/labs/test_grading.py" in check.tests_of("tools/grading/grade.py")
    assert "tests/house/test_environments.py" in check.tests_of("tools/lock.py")
    assert all(test.startswith("tests/site/") for test in check.tests_of("site/build.py"))


@pytest.mark.parametrize(
    ("file", "lab"),
    [
        ("utils/checks/lab_05/pool_story.py", "lab_05"),
        ("tests/labs/bug_zoo/lab_06.py", "lab_06"),
        ("tests/checks/test_lab_11.py", "lab_11"),
        ("utils/checks/lab_07b/trees.py", "lab_07b"),
        ("utils/checks/kit/runner.py", None),
        ("labs/02_kv_cache/02_kv_cache.ipynb", None),
    ],
)
def test_the_answers_of_a_lab_judge_its_checks_and_its_zoo(file: str, lab: str | None) -> None:
    assert check.lab_of(file) == lab


def test_a_file_without_a_test_of_its_name_has_those_of_its_folder() -> None:
    tests = check.tests_of("utils/engine/core/swap_space.py")
    assert "tests/engine/core/test_kv_cache_manager.py" in tests
    assert all(test.startswith("tests/engine/core/") for test in tests)


def test_every_file_with_code_has_tests() -> None:
    files = [file for file in check.git("ls-files", "utils") if file.endswith(".py")]
    without = [
        file for file in files if not check.tests_of(file) and not file.endswith("__init__.py")
    ]
    assert without == []


def test_what_is_not_committed_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ROOT", tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    check.git("init", "--quiet")
    for name in ("same", "edited", "deleted"):
        (tmp_path / name).write_text("before")
    check.git("add", ".")
    check.git(*identity, "commit", "--quiet", "-m", "first")
    (tmp_path / "edited").write_text("after")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").touch()
    assert check.changed_files() == ["deleted", "edited", "new"]


def test_a_failure_is_named_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        ran.append(command[2:])
        return subprocess.CompletedProcess(command, int(command[2] == "mypy"))

    monkeypatch.setattr(check, "changed_files", lambda: ["tests/labs/bug_zoo/lab_06.py"])
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit, match="Failed: mypy"):
        check.main()
    assert [command[0] for command in ran] == ["ruff", "ruff", "mypy", "pytest", "pytest"]
    assert ran[-1][-2 - len(check.ANSWERS) :] == ["-k", "lab_06", *check.ANSWERS]
