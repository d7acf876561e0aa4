"""`make gpu-check`, as far as it shows without a card: steps, parcels, reports, tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.gpu import check, offline, pack, parcels, report, table
from tools.gpu.steps import PLUGIN, Step, read_cases, read_json, read_lines, read_tests, run_step
from tools.gpu.test_lines import FILE
from utils.environments.pipeline import PipelineEnvironmentError

ROOT = Path(__file__).resolve().parents[2]
RIGHT = {"base": 0.0, "merge": 0.95, "gptq": 0.9, "awq": 0.85}
REPORT: dict[str, Any] = {
    "machine": {"card": "Tesla T4", "memory_bytes": 15.8e9, "driver_cuda": "13.0"},
    "steps": {
        "tests": {"result": {"passed": 7, "failed": 1, "not_run": {"vllm": "no vLLM here"}}},
        "lessons": {"result": {"passed": 400, "failed": 0}},
        "pipeline": {
            "result": {"rows": [{"name": n, "exact_match": share} for n, share in RIGHT.items()]}
        },
        "training": {
            "result": {
                "finetune": {"seconds": 31.4, "measures": {"first_loss": 1.08, "last_loss": 0.0123}}
            }
        },
        "throughput": {
            "result": {
                "engines": {
                    "float16": {
                        "batch 64": {
                            "ours": {"tokens_per_s": 1234.5},
                            "ours, PyTorch": {"tokens_per_s": 200},
                            "HF": {"error": "out of memory"},
                        },
                        "batch 8": {"ours": {"tokens_per_s": 1}, "vLLM": {"tokens_per_s": 5000}},
                    }
                },
                "limits": {"float16": {"flops": 1.0, "batch 64": {"reached": 0.125}}},
            }
        },
        "steps": {
            "result": {
                "batch 8": {
                    "cuda_graph": {
                        "step_us": 2500.0,
                        "card_busy_share": 0.4,
                        "kernels_run": 420.0,
                        "kernel_starts": 31.0,
                        "graph_starts": 1.0,
                        "waits": 1.0,
                        "copies": {"Memcpy HtoD": 5.0, "Memcpy DtoH": 1.0},
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


def test_a_step_ends_at_its_limit_and_leaves_what_it_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"open({str(tmp_path / 'lines')!r}, 'w').write('{{\"a\": 1}}\\n{{\"b'); import time; "
    command = [sys.executable, "-c", f"{program}open('/dev/null').close(); time.sleep(600)"]
    step = Step("slow", "", command, lambda work: {"lines": read_lines(work / "lines")}, 3)
    record = run_step(step, tmp_path, "a", {"machine": "here"})
    assert record["exit_code"] is None and record["machine"] == "here"
    assert record["result"] == {"lines": [{"a": 1}]}
    assert json.loads((tmp_path / "slow.json").read_text()) == record
    assert "stopped at its limit" in capfd.readouterr().out


def test_a_step_gets_its_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['COLOR'])"]
    step = Step(
        "one",
        "",
        command,
        lambda work: {"log": (work / "one.log").read_text()},
        environment={"COLOR": "blue"},
    )
    assert run_step(step, tmp_path, "a")["result"] == {"log": "blue\n"}


TESTS = """
import pytest
def test_a(): pass
def test_b(): assert 1 == 2
@pytest.mark.skip(reason="no vLLM here")
def test_c(): pass
@pytest.fixture
def broken(): raise RuntimeError("set-up")
def test_d(broken): pass
def test_e(): import os; os._exit(3)
def test_f(): pass
"""


def test_tests_are_counted_though_the_run_is_cut_off(tmp_path: Path) -> None:
    """Without nbval, which `addopts` names: a machine without Jupyter lacks it."""
    assert read_tests(tmp_path / "lines") is None
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", PLUGIN, "-p", "no:nbval"]
    environment = os.environ | {FILE: str(tmp_path / "lines"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(tmp_path / "test_it.py")], cwd=ROOT, env=environment, capture_output=True
    )
    assert done.returncode == 3
    assert read_tests(tmp_path / "lines") == {
        "passed": 1,
        "failed": 2,
        "failures": ["test_b", "test_d"],
        "not_run": {"test_c": "no vLLM here"},
    }
    (tmp_path / "lines").write_text(
        json.dumps({"test": "a", "outcome": "skipped", "why": "no card"}) + "\n"
    )
    assert read_tests(tmp_path / "lines") is None  # nothing ran, so nothing was shown


LOST = """
import sys, types
class Cuda:
    is_initialized = staticmethod(lambda: True)
    lost = False
    def synchronize():
        if Cuda.lost: raise RuntimeError("CUDA error: device-side assert triggered")
sys.modules["torch"] = types.SimpleNamespace(cuda=Cuda)
def test_a(): pass
def test_b(): Cuda.lost = True; assert False
def test_c(): assert not Cuda.lost
def test_d(): assert not Cuda.lost
"""


def test_tests_after_a_lost_card_run_in_a_new_process(tmp_path: Path) -> None:
    """On a card, one bad index failed the twelve tests that came after it."""
    (tmp_path / "test_it.py").write_text(LOST)
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", PLUGIN, "-p", "no:nbval"]
    environment = os.environ | {FILE: str(tmp_path / "lines"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "-p", "no:hypothesispytest", str(tmp_path / "test_it.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert read_tests(tmp_path / "lines") == {
        "passed": 3,
        "failed": 1,
        "failures": ["test_b"],
        "not_run": {},
    }, done.stdout
    assert done.returncode == 1


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


# --- parcels -------------------------------------------------------------------------------------


def packed(folder: Path, limit: int, model: bytes = b"weights" * 50) -> list[Path]:
    """Parcels of an archive with one module, and of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "archive"
    with zipfile.ZipFile(archive, "w") as packages:
        packages.writestr("a_module.py", "answer = 42\n")
    (folder / "model").write_bytes(model)
    files = {parcels.PACKAGES: archive, parcels.MODEL: folder / "model"}
    return parcels.cut(files, limit, folder / "parcels")


@given(limit=st.integers(40, 700), order=st.randoms(use_true_random=False))
def test_parcels_give_the_files_back_in_whatever_order_they_come(
    limit: int, order: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("parcels")
    made = packed(folder, limit)
    assert all((parcel / parcels.CONTENT).stat().st_size <= limit for parcel in made)
    there, lacking = folder / "there", ["all"]
    order.shuffle(made)
    for parcel in made:
        assert lacking
        (there / parcel.name).parent.mkdir(exist_ok=True)
        parcel.rename(there / parcel.name)
        lacking = parcels.unpack(there, there / "site")
    assert lacking == parcels.unpack(there, there / "site") == []
    assert (there / "site" / parcels.MODEL).read_bytes() == b"weights" * 50
    assert (there / "site" / "a_module.py").read_text() == "answer = 42\n"


def test_what_is_missing_or_damaged_is_said(tmp_path: Path) -> None:
    assert parcels.unpack(tmp_path, tmp_path / "site") == [f"there are no parcels in {tmp_path}"]
    first, _, third = packed(tmp_path, 200)
    third.rename(tmp_path / "elsewhere")
    there = first.parent
    [sentence] = parcels.unpack(there, tmp_path / "site")
    assert sentence == f"{parcels.MODEL} lacks parcel 3 of 3"
    (tmp_path / "elsewhere").rename(third)
    (third / parcels.CONTENT).write_bytes(b"noise")
    with pytest.raises(parcels.ParcelError, match=r"Parcel 3 in .* is damaged"):
        parcels.unpack(there, tmp_path / "site")
    other = packed(tmp_path / "other", 200, b"other weights" * 30)[2]
    for name in (parcels.CONTENT, parcels.MANIFEST):
        (third / name).write_bytes((other / name).read_bytes())
    with pytest.raises(parcels.ParcelError, match="of another packing"):
        parcels.unpack(there, tmp_path / "site")


def test_what_travels_is_pinned_and_has_one_library_of_bitsandbytes() -> None:
    assert {pin.partition("==")[0] for pin in pack.pins()} == set(pack.TRAVEL)
    name = "bitsandbytes/libbitsandbytes_{}.so"
    libraries = ["cpu", "cuda126", "cuda130", "cuda132", "rocm70", "xpu2026"]
    assert [n for n in libraries if pack.travels(name.format(n), "130")] == ["cpu", "cuda130"]
    assert pack.travels("IPython/core/magic.py", "130")
    assert not pack.travels("IPython/core/tests/test_magic.py", "130")


# --- without internet ----------------------------------------------------------------------------


def test_a_step_that_lacks_something_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"bitsandbytes", "gguf"}
    monkeypatch.setattr(offline.importlib.util, "find_spec", lambda name: name not in missing)
    said = {name: offline.lacking(name, "no bundled model here") for name in offline.WANTED}
    assert said["card"] is None and said["tests"] is None
    assert said["training"] == "no gguf, bitsandbytes here"
    missing.clear()
    assert offline.lacking("lessons", "no bundled model here") == "no bundled model here"
    assert offline.lacking("lessons", None) is None


def test_every_step_has_a_limit_and_code_that_is_there(tmp_path: Path) -> None:
    for pretend in (False, True):
        steps = offline.steps(tmp_path, pretend)
        assert list(steps) == list(offline.WANTED) == list(report.STEPS)
        assert all(step.limit_s for step in steps.values())
    for wanted in offline.WANTED.values():
        assert all((ROOT / path).exists() for path in wanted.code)


def test_records_become_a_report(tmp_path: Path) -> None:
    machine = {"card": "Tesla T4"}
    for run, seconds in (("first", 1), ("second", 2)):
        for name in ("card", "tests")[: 3 - seconds]:
            (tmp_path / run).mkdir(exist_ok=True)
            record = {"key": "a", "machine": machine, "seconds": seconds, "result": {}}
            (tmp_path / run / f"{name}.json").write_text(json.dumps(record))
    found = report.assemble([tmp_path / "first", tmp_path / "second"])
    assert found == {
        "machine": machine,
        "steps": {"card": {"seconds": 2, "result": {}}, "tests": {"seconds": 1, "result": {}}},
    }
    with pytest.raises(ValueError, match=r"Records of one card.*found: none"):
        report.assemble([tmp_path / "nothing"])
    path = report.report_path("NVIDIA H100 80GB HBM3", "-offline")
    assert path.name == "nvidia-h100-80gb-hbm3-offline.json"


# --- what is published ---------------------------------------------------------------------------


def rows(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_the_tables_say_what_was_measured() -> None:
    assert rows(table.cards([REPORT])) == [
        [
            "Tesla T4, 15 GiB",
            "13.0",
            "7 passed, 1 failed, 1 not run",
            "400 passed, 0 failed",
            "loss 1.08 to 0.012, 31 s",
            "95%, 90%, 85%",
        ]
    ]
    unknown = "not yet measured"
    assert rows(table.speeds([REPORT])) == [
        ["Tesla T4, float16", "8", "1", "not run", "5,000", "not run", unknown],
        ["Tesla T4, float16", "64", "1,234", "200", "not run", "failed", "12%"],
    ]
    assert rows(table.shares([REPORT])) == [
        [
            "Tesla T4",
            "8",
            "PyTorch, as a CUDA graph",
            "2.50",
            "40% of it",
            "420",
            "31 calls, 1 graph",
            "6",
            "1",
        ]
    ]
    [row] = rows(table.cards([REPORT | {"steps": {"tests": {"result": None}}}]))
    assert row.count(unknown) == 4
    product = {"kernel": "4-bit product", "shape": [1, 64, 32], "us": 5.61, "floor_us": 0.1}
    found = [
        {"kernel": "attention, mixed", "dtype": "torch.float32", "error": 1e-7},  # has no time
        {"kernel": "gate", "model": "8B", "tokens": 64, "us": 2.0, "floor_us": 1.26},
        product | {"bfloat16_us": 4.0},
    ]
    steps = {"kernels": {"result": {"kernels": found}}}
    assert rows(table.kernels([REPORT | {"steps": steps}])) == [
        ["Tesla T4", "gate", "8B", "64 tokens", "2.0", "1.3", ""],
        ["Tesla T4", "4-bit product", "", "1 tokens, 64 x 32", "5.6", "0.1", "4.0"],
    ]
    for made in (table.cards, table.speeds, table.shares, table.kernels):
        assert made([]).count(unknown) == made([]).splitlines()[0].count("|") - 2


def test_the_pages_tables_are_those_of_reports_and_formulas() -> None:
    page = table.PAGE.read_text()
    assert table.with_tables(page) == page
    with pytest.raises(ValueError, match="lacks the marks <!-- cards"):
        table.with_table("no marks", "cards", "a table")
