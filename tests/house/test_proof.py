"""`make test` stops early where it can, hides nothing, and gives what failed a second look."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.plugins import clean_room
from tools.proof import run, second_look, style, table, times
from tools.proof.second_look import look_again, quarantined

ROOT = Path(__file__).resolve().parents[2]
QUARANTINE = """
[[test]]
id = "{test}"
reason = "a port was taken"
until = {until}
"""


def entry(test: str = "tests/serving/test_launch.py::test_it", days: int = 5) -> str:
    until = datetime.date.today() + datetime.timedelta(days=days)
    return QUARANTINE.format(test=test, until=until)


# --- a second look ------------------------------------------------------------------------------


def test_what_passes_alone_is_unsteady_and_what_fails_twice_is_broken() -> None:
    failed = ["tests/sim/test_a.py::x", "tests/sim/test_a.py::y", "notebooks/b.ipynb::Cell 3"]
    seen = []

    def run_alone(file: str) -> bool:
        seen.append(file)
        return file.endswith(".ipynb")

    verdict = look_again(failed, run_alone)
    assert seen == ["tests/sim/test_a.py", "notebooks/b.ipynb"]  # whole files: cells need others
    assert (verdict.unsteady, verdict.broken) == (["notebooks/b.ipynb"], ["tests/sim/test_a.py"])


@pytest.mark.parametrize(
    "failed",
    [
        ["tests/sim/test_a.py::x", "tests/house/test_links.py::test_it"],  # one must be exact
        [f"tests/sim/test_{number}.py::x" for number in range(second_look.MOST_UNSTEADY + 1)],
    ],
)
def test_neither_exact_tests_nor_many_files_get_a_second_look(failed: list[str]) -> None:
    verdict = look_again(failed, lambda file: pytest.fail("it was run again"))
    assert len(verdict.broken) == len(failed) and verdict.unsteady == []


def test_what_is_in_quarantine_is_counted_and_not_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "unsteady.toml"
    file.write_text(entry("tests/sim/test_a.py::x"))
    monkeypatch.setattr(second_look, "quarantined", lambda: quarantined(file))
    verdict = look_again(["tests/sim/test_a.py::x"], lambda file: pytest.fail("it was run again"))
    assert (verdict.quarantined, verdict.broken) == (["tests/sim/test_a.py::x"], [])
    verdict = look_again(["tests/sim/test_a.py::x", "tests/sim/test_a.py::y"], lambda file: False)
    assert verdict.broken == ["tests/sim/test_a.py"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (entry(days=-1), "was over"),
        (entry("tests/house/test_links.py::test_it"), "is exact"),
        ("".join(entry(f"tests/sim/test_{n}.py::x") for n in range(6)), "at most 5"),
        ('[[test]]\nid = "a"\nreason = "b"\n', "lacks until"),
    ],
)
def test_a_quarantine_has_an_end_and_few_inmates(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "unsteady.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=says):
        quarantined(file)


def test_the_committed_quarantine_is_in_order() -> None:
    tests = quarantined()
    for test in tests:
        assert (ROOT / test.partition("::")[0]).is_file(), f"{test} is in quarantine and is gone"


# --- the whole command, on suites that are made up ----------------------------------------------


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a suite of its own, that the course's command runs."""
    (tmp_path / "tests" / "house").mkdir(parents=True)
    (tmp_path / "tests" / "house" / "test_rules.py").write_text("def test_rule():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -p tests.plugins.reports\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a pytest that starts at once
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "OUT", tmp_path / "build")
    monkeypatch.setattr(run, "HOUSE", ("tests/house",))
    monkeypatch.setattr(run, "broken_style", list)
    return tmp_path


def write(suite: Path, name: str, source: str) -> None:
    (suite / "tests" / name).write_text(textwrap.dedent(source))


def test_a_green_suite_is_green(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(suite, "test_a.py", "def test_a():\n    pass\n")
    assert run.run(2, ["tests"], "run") == 0
    said = capfd.readouterr().out
    assert "proof: 2 passed, 0 failed, 0 skipped" in said
    assert "NOT PROVEN" not in said and "UNSTEADY" not in said
    assert set(json.loads((suite / "build" / "times.json").read_text())["seconds"]) == {
        "tests/house/test_rules.py",
        "tests/test_a.py",
    }


def test_a_planted_flake_is_named_and_green(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It fails beside another worker and passes alone."""
    write(
        suite,
        "test_flake.py",
        """
        import os
        def test_flake():
            assert "PYTEST_XDIST_WORKER" not in os.environ, "the port is taken"
        """,
    )
    write(suite, "test_b.py", "def test_b():\n    pass\n")
    assert run.run(2, ["tests"], "run") == 0
    said = capfd.readouterr().out
    # Shown when it happens, before pytest's own summary.
    assert said.index("FAILED just now: tests/test_flake.py") < said.index("= FAILURES =")
    assert "UNSTEADY: tests/test_flake.py" in said
    assert "unsteady files: 1" in said
    assert "proof: 3 passed, 0 failed, 0 skipped" in said


def test_what_fails_twice_is_red(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(suite, "test_a.py", "def test_a():\n    assert False\n")
    assert run.run(2, ["tests"], "run") == 1
    said = capfd.readouterr().out
    assert "BROKEN: tests/test_a.py" in said and "proof: 1 passed, 1 failed" in said


def test_a_run_that_was_cut_off_is_not_green(
    suite: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even if its exit status says that all is well."""
    write(suite, "test_a.py", "def test_a():\n    pass\n")
    write(
        suite,
        "conftest.py",
        """
        import os, pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish(session):
            if "PYTEST_XDIST_WORKER" not in os.environ and not session.config.option.quiet:
                os._exit(0)
        """,
    )
    assert run.run(1, ["tests"], "run") == 1
    assert "NOT PROVEN" in capfd.readouterr().out


def test_a_planted_hole_is_found(suite: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that stops before its last test, and would be green by its exit status."""
    write(suite, "test_a.py", "def test_a():\n    pass\n\ndef test_b():\n    pass\n")
    write(
        suite,
        "conftest.py",
        """
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            if item.name == "test_b":
                return True  # "done", without a report
            return (yield)
        """,
    )
    assert run.run(2, ["tests"], "run") == 1
    # One test or both: the workers may have ended before the first one was reported.
    assert re.search(r"NOT PROVEN: .*[12] tests were not run", capfd.readouterr().out)


def test_style_and_house_come_first_and_end_a_run(
    suite: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(suite, "test_a.py", "def test_a():\n    open('was_run', 'w')\n")
    write(suite, "house/test_rules.py", "def test_rule():\n    assert False\n")
    assert run.run(2, ["tests"], "run") == 1
    assert "the rules of the house are broken" in capfd.readouterr().out
    monkeypatch.setattr(run, "broken_style", lambda: ["mypy"])
    assert run.run(2, ["tests"], "run") == 1
    assert "style or types: mypy" in capfd.readouterr().out
    assert not (suite / "was_run").exists()


def test_the_full_size_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = tmp_path / "full.json"
    proof.write_text('{"parts": {}}')
    monkeypatch.setattr(run, "FULL_PROOF", proof)
    monkeypatch.setattr(run, "OUT", tmp_path / "build")
    monkeypatch.setattr(run, "full_proof", lambda: json.loads(proof.read_text())["parts"])
    monkeypatch.setattr(run, "_git", lambda *words: "a" * 40 if words[0] == "rev-parse" else "")
    ran: list[str] = []
    broken = {"run-lessons"}

    def fake_run(workers: int, files: list[str], name: str) -> int:
        ran.append(name)
        assert files
        (run.OUT / f"{name}.json").write_text('{"outcomes": {"a": "passed"}}')
        return int(name in broken)

    monkeypatch.setattr(run, "run", fake_run)
    assert run.run_full(2, None) == 1
    assert ran == ["run-pipeline", "run-labs", "run-lessons"]
    assert set(json.loads(proof.read_text())["parts"]) == {"pipeline", "labs"}
    ran.clear()
    broken.clear()
    assert run.run_full(2, None) == 0
    assert ran == ["run-lessons", "run-engine", "run-rest"]  # not again what this commit has proven
    row = json.loads(proof.read_text())["parts"]["rest"]
    assert row["commit"] == "a" * 40 and row["tests"] == 1 and row["recipe"]
    monkeypatch.setattr(run, "_git", lambda *words: " M utils/hub.py")
    with pytest.raises(SystemExit, match="commit or undo"):
        run.run_full(2, "labs")


def test_a_terminated_run_says_so() -> None:
    command = [
        sys.executable,
        "-c",
        (
            "import signal, os\nfrom tools.proof import run\n"
            "signal.signal(signal.SIGTERM, run._cut_off)\nos.kill(os.getpid(), signal.SIGTERM)\n"
        ),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 1
    assert "NOT PROVEN: the run was cut off by SIGTERM" in done.stdout


# --- style and table ----------------------------------------------------------------------------


def test_broken_style_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, int("mypy" in command))

    monkeypatch.setattr(style.subprocess, "run", ran)
    assert style.broken_style() == ["mypy"]


def test_the_table_names_each_part_and_a_changed_recipe() -> None:
    rows = table.full_proof()
    rows["labs"] = {**rows["labs"], "recipe": "another"}
    outcomes = {"tests/engine/test_a.py::x": "passed", "notebooks/01_a.ipynb::Cell 1": "failed"}
    lines = table.table(outcomes, {"tests/engine/test_a.py": 90.0}, rows).splitlines()
    by_part = {line.split()[0]: line for line in lines}
    assert "1 passed, 0 failed" in by_part["engine"] and " 1.5 " in by_part["engine"]
    assert "0 passed, 1 failed" in by_part["lessons"]
    assert "RECIPE CHANGED: run make test-full PART=labs" in by_part["labs"]
    assert "RECIPE" not in by_part["engine"] and rows["engine"]["when"] in by_part["engine"]


def test_the_guides_table_of_times_is_that_of_a_run() -> None:
    kept = json.loads(times.TIMES.read_text())
    guide = times.GUIDE.read_text(encoding="utf-8")
    assert times.with_table(guide, kept) == guide, "run python -m tools.proof.times"
    assert {"notebooks", "solutions", "tests/engine"} <= set(map(times.folder_of, kept["seconds"]))
    with pytest.raises(ValueError, match="0 places"):
        times.with_table("no marks", kept)


def test_the_clean_room_asks_only_for_variables_that_a_file_of_ours_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library that is imported within a test may set what nobody here has heard of."""
    unknown = "_".join(["SOME", "LIBRARYS", "SWITCH"])  # in one piece it would be named here
    monkeypatch.setenv(unknown, "1")
    assert unknown not in clean_room._environment()
    monkeypatch.setenv("COURSE_PROFILE", "cpu")
    assert clean_room._environment()["COURSE_PROFILE"] == "cpu"


def test_pytest_runs_without_its_cache(suite: Path) -> None:
    """As the tests on an emulated processor do: they run beside another pytest."""
    write(suite, "test_a.py", "def test_a():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "tests.plugins.schedule", "tests"]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
