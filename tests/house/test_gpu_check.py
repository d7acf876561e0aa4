"""`make gpu-check`, as far as it shows without a card: steps, report, and the published table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import check, table
from tools.gpu.check import Step, read_cases, read_json, read_junit, run_step
from utils.pipeline.environment import PipelineEnvironmentError

REPORT: dict[str, Any] = {
    "machine": {"card": "Tesla T4", "memory_bytes": 15.8e9, "driver_cuda": "13.0"},
    "steps": {
        "tests": {"result": {"passed": 7, "failed": 1}},
        "lessons": {"result": {"passed": 400, "failed": 0}},
        "pipeline": {
            "result": {
                "rows": [
                    {"name": name, "exact_match": share}
                    for name, share in (
                        ("base", 0.0),
                        ("merge", 0.95),
                        ("gptq", 0.9),
                        ("awq", 0.85),
                    )
                ]
            }
        },
        "throughput": {
            "result": {
                "engines": {
                    "float16": {
                        "batch 8": {"ours": {"tokens_per_s": 1}},
                        "batch 64": {
                            "ours": {"tokens_per_s": 1234.5},
                            "vLLM": {"tokens_per_s": 5000},
                            "HF": {"error": "out of memory"},
                        },
                    }
                }
            }
        },
    },
}


def counting(folder: Path, code: int = 0) -> Step:
    """A step that notes each time it runs, and ends with `code`."""
    program = f"open('runs', 'a').write('x'); print('seen'); raise SystemExit({code})"
    command = ["sh", "-c", f'cd {folder} && {sys.executable} -c "{program}"']
    return Step("one", "a step", command, lambda work: {"runs": len((work / "runs").read_text())})


def test_a_finished_step_is_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = run_step(counting(tmp_path), tmp_path, "a")
    assert first["result"] == {"runs": 1} and first["exit_code"] == 0
    assert (tmp_path / "one.log").read_text() == "seen\n"
    assert run_step(counting(tmp_path), tmp_path, "a") == first
    assert "done before" in capfd.readouterr().out
    assert run_step(counting(tmp_path), tmp_path, "another card")["result"] == {"runs": 2}


def test_a_failed_step_is_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for runs in (1, 2):
        record = run_step(counting(tmp_path, code=3), tmp_path, "a")
        assert record["exit_code"] == 3 and record["result"] == {"runs": runs}
    assert "FAILED (exit code 3" in capfd.readouterr().out


def test_a_step_that_leaves_nothing_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    step = Step("two", "", ["true"], lambda work: read_json(work / "nothing"))
    assert run_step(step, tmp_path, "a")["result"] is None
    assert "FAILED" in capfd.readouterr().out


def test_pytests_report_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "tests.xml"
    assert read_junit(file) is None
    case = '<testcase name="{}">{}</testcase>'
    cases = [("a", ""), ("b", '<failure message="no">x</failure>'), ("c", "<skipped/>"),
             ("d", '<error message="no">x</error>'), ("e", "<error/>")]  # fmt: skip
    text = "".join(case.format(*pair) for pair in cases)
    file.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    found = read_junit(file)
    assert found == {"passed": 1, "failed": 3, "skipped": 1, "failures": ["b", "d", "e"]}
    file.write_text('<testsuites><testcase name="a"><skipped/></testcase></testsuites>')
    assert read_junit(file) is None  # nothing ran, so nothing was shown


def test_cases_are_counted(tmp_path: Path) -> None:
    lines = [{"case": "a", "problem": None}, {"case": "b", "problem": "two devices"}]
    (tmp_path / "log").write_text("a warning\n" + "\n".join(map(json.dumps, lines)))
    assert read_cases(tmp_path / "log") == {"passed": 1, "failed": 1, "failures": ["b"]}
    (tmp_path / "log").write_text("Traceback")
    assert read_cases(tmp_path / "log") is None


@pytest.mark.parametrize(
    ("driver", "said"),
    [(None, r"No NVIDIA driver here.*PRETEND=1"), ((12, 4), r"supports CUDA 12\.4.*R580")],
)
def test_what_is_missing_is_said_before_anything_is_installed(
    driver: tuple[int, int] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr("utils.profiles.driver_cuda_version", lambda: driver)
    monkeypatch.setattr(check, "environment_python", lambda _: pytest.fail("installed"))
    with pytest.raises(PipelineEnvironmentError, match=said):
        check.look_at_card()


def test_a_card_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"card": "GTX 1650", "memory_bytes": 4.2e9}
    monkeypatch.setattr(check, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr("utils.profiles.driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(check, "environment_python", lambda _: Path(sys.executable))
    monkeypatch.setattr(check, "LOOK", f"print({json.dumps(json.dumps(card))})")
    with pytest.raises(PipelineEnvironmentError, match=r"12 GB .* GTX 1650 has 4\.2"):
        check.look_at_card()
    monkeypatch.setattr(check, "LOOK", "raise SystemExit('no kernel for sm_50')")
    with pytest.raises(PipelineEnvironmentError, match="cannot use the card: no kernel"):
        check.look_at_card()


def test_the_table_says_what_was_measured() -> None:
    [_, _, row] = table.table([REPORT]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["Tesla T4, 15 GiB", "13.0", "7 passed, 1 failed",
                     "400 passed, 0 failed", "95%, 90%, 85%",
                     "1,234, 5,000, failed (batch 64)"]  # fmt: skip
    [_, _, row] = table.table([REPORT | {"steps": {"tests": {"result": None}}}]).splitlines()
    assert row.count("not yet measured") == 4
    assert table.table([]).count("not yet measured") == 5


def test_the_pages_tables_are_those_of_reports_and_formulas() -> None:
    page = table.PAGE.read_text()
    assert table.with_tables(page) == page
    with pytest.raises(ValueError, match="lacks the marks <!-- cards"):
        table.with_table("no marks", "cards", "a table")
