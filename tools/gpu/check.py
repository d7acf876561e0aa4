"""Does the course run on this machine's card? `make gpu-check`: one command, one JSON, a table.

    make gpu-check              an hour on a T4 (estimated), less on others
    make gpu-check PRETEND=1    the same steps as far as they go without a card; minutes

It looks at the driver, installs the GPU lock beside everything else, and runs four steps there: the
tests marked `gpu`, the pipeline with the bundled model, the lessons of Part I, and the benchmark
against vLLM and Hugging Face. Stop it and run it again: finished steps are not repeated, failed
ones are. The report goes to benchmarks/results/gpu/, and the table in docs/hardware.md is made
anew. Commit both, and open a pull request.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.gpu import table  # noqa: E402
from tools.notebook_files import part_one  # noqa: E402
from utils.pipeline.environment import (  # noqa: E402
    PipelineEnvironmentError,
    environment_python,
    lock_file,
    require_driver,
)
from utils.pipeline.process import stop, supervised  # noqa: E402
from utils.profiles import driver_cuda_version  # noqa: E402

WORK = ROOT / "artifacts" / "gpu-check"
LOOK = """
import json, torch
card = torch.cuda.get_device_properties(0)
print(json.dumps({"card": card.name, "memory_bytes": card.total_memory,
                  "compute_capability": f"{card.major}.{card.minor}", "torch": torch.__version__,
                  "cuda": torch.version.cuda}))
"""
ENOUGH_MEMORY = 12e9  # bytes of the card: two engines, vLLM and Hugging Face side by side


@dataclass(frozen=True)
class Step:
    """A program, and how its result is read from the folder where it wrote; None: it left none."""

    name: str
    title: str
    command: list[str]
    read: Callable[[Path], dict[str, Any] | None]


def steps_on_card(python: str, work: Path) -> list[Step]:
    """What runs on a real card."""
    tests = [python, "-m", "pytest", "-m", "gpu", "tests/device", f"--junitxml={work}/tests.xml"]
    pipeline = [python, "-m", "utils.pipeline", "--profile", "gpu-bundled"]
    lessons = [python, "-m", "pytest", *map(str, part_one()), f"--junitxml={work}/lessons.xml"]
    benchmark = [python, "benchmarks/throughput.py", "--card", str(work / "throughput.raw")]
    return [
        Step("tests", "tokens of Hugging Face and of vLLM, every feature, the memory foretold",
             tests, lambda work: read_junit(work / "tests.xml")),
        Step("pipeline", "fine-tune, merge, quantize, evaluate and serve the bundled model",
             [*pipeline, "--out", str(work / "pipeline")],
             lambda work: read_json(work / "pipeline" / "report" / "results.json")),
        Step("lessons", "every cell of Part I",
             ["env", "COURSE_PROFILE=gpu-bundled", *lessons],
             lambda work: read_junit(work / "lessons.xml")),
        Step("throughput", "the engine beside vLLM (CUDA graphs) and Hugging Face",
             benchmark, lambda work: read_json(work / "throughput.raw")),
    ]  # fmt: skip


def steps_without_card(python: str, work: Path) -> list[Step]:
    """What of it runs on a pretend card, or on the CPU."""
    dry = [python, "-m", "utils.pipeline", "--profile", "gpu-bundled", "--dry-run", "--card", "T4"]
    return [
        Step("tests", "every feature on a pretend card", [python, "-m", "tests.device.cases"],
             lambda work: read_cases(work / "tests.log")),
        Step("pipeline", "by formula, on a T4", dry, lambda work: {"dry_run": True}),
        Step("lessons", "Part I, a minute of each on a pretend card",
             [python, "-m", "tests.device.lessons"],
             lambda work: {"lessons": read_lines(work / "lessons.log")}),
        Step("throughput", "once, on the CPU", [python, "benchmarks/throughput.py", "--quick"],
             lambda work: {"quick": True}),
    ]  # fmt: skip


# --- results -------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


def read_junit(path: Path) -> dict[str, Any] | None:
    """Counts of pytest's report, and the names of failed tests; no test at all is no result."""
    if not path.is_file():
        return None
    cases = list(ElementTree.parse(path).iter("testcase"))
    bad = {"failure", "error"}
    failed = [c.get("name") for c in cases if bad & {child.tag for child in c}]
    skipped = sum(c.find("skipped") is not None for c in cases)
    passed = len(cases) - len(failed) - skipped
    if passed + len(failed) == 0:
        return None
    return {"passed": passed, "failed": len(failed), "skipped": skipped, "failures": failed}


def read_lines(log: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON objects."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def read_cases(log: Path) -> dict[str, Any] | None:
    """The same of `tests.device.cases`, which prints a line of JSON for each case."""
    lines = read_lines(log)
    failures = [line["case"] for line in lines if line["problem"]]
    if not lines:
        return None
    return {"passed": len(lines) - len(failures), "failed": len(failures), "failures": failures}


# --- running -------------------------------------------------------------------------------------


def run_step(step: Step, work: Path, key: str) -> dict[str, Any]:
    """Run a step, or take over what it gave for the same `key`; its record.

    Its output is shown and kept in a log. The record: `key`, `seconds`, `exit_code`, `result`.
    """
    file, log = work / f"{step.name}.json", work / f"{step.name}.log"
    before = read_json(file)
    if before and before["key"] == key and before["exit_code"] == 0 and before["result"]:
        print(f"{step.name}: done before, in {before['seconds']:.0f} s", flush=True)
        return before
    print(f"\n{step.name}: {step.title}", flush=True)
    begin = time.monotonic()
    with log.open("wb") as kept:
        process = subprocess.Popen(
            supervised(step.command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout is not None
            while chunk := process.stdout.read1(4096):  # type: ignore[attr-defined]
                kept.write(chunk)
                sys.stdout.write(chunk.decode(errors="replace"))
                sys.stdout.flush()
            code = process.wait()
        finally:
            stop(process)
    record = {
        "key": key,
        "seconds": round(time.monotonic() - begin, 1),
        "exit_code": code,
        "result": step.read(work),
    }
    file.write_text(json.dumps(record, indent=1))
    state = "done" if code == 0 and record["result"] else f"FAILED (exit code {code}; {log})"
    print(f"{step.name}: {state}, {record['seconds']:.0f} s", flush=True)
    return record


def revision() -> str:
    """The commit, and whether files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    commit, changes = git("rev-parse", "--short=10", "HEAD"), git("diff", "HEAD")
    return f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def look_at_card() -> tuple[str, dict[str, Any]]:
    """The Python with the GPU lock, and what it says of the card.

    Raises:
        PipelineEnvironmentError: no driver, one that is too old, a card that PyTorch cannot use or
            that is too small, no disk space, or a package that cannot be installed.
    """
    driver = driver_cuda_version()
    if driver is None:
        raise PipelineEnvironmentError(
            "No NVIDIA driver here (libcuda.so.1). On Colab choose Runtime, Change runtime type, "
            "T4 GPU. `make gpu-check PRETEND=1` shows the steps without a card."
        )
    require_driver()
    python = str(environment_python("gpu"))
    done = subprocess.run([python, "-c", LOOK], capture_output=True, text=True)
    if done.returncode:
        raise PipelineEnvironmentError(
            f"PyTorch of {lock_file('gpu').name} cannot use the card: {done.stderr.strip()[-400:]}"
        )
    machine = json.loads(done.stdout)
    if machine["memory_bytes"] < ENOUGH_MEMORY:
        raise PipelineEnvironmentError(
            f"{ENOUGH_MEMORY / 1e9:.0f} GB on the card are needed, and the {machine['card']} has "
            f"{machine['memory_bytes'] / 1e9:.1f}."
        )
    return python, machine | {"driver_cuda": "{}.{}".format(*driver)}


def report_path(machine: dict[str, Any]) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", machine["card"].lower()).strip("-")
    return table.RESULTS / f"{name}.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pretend", action="store_true", help="without a card")
    pretend = parser.parse_args().pretend
    if pretend:
        python, work = sys.executable, WORK / "pretend"
        machine: dict[str, Any] = {"card": "pretend card", "memory_bytes": 15.6e9,
                                   "driver_cuda": "none"}  # fmt: skip
    else:
        try:
            python, machine = look_at_card()
        except (PipelineEnvironmentError, OSError) as error:
            print(f"gpu-check: {error}", file=sys.stderr)
            return 1
        work = WORK / report_path(machine).stem
    work.mkdir(parents=True, exist_ok=True)
    code = revision()
    here = json.dumps([machine, code, lock_file("gpu").read_text()])
    key = hashlib.sha256(here.encode()).hexdigest()[:16]
    steps = (steps_without_card if pretend else steps_on_card)(python, work)
    records = {step.name: run_step(step, work, key) for step in steps}
    report = {
        "machine": machine,
        "revision": code,
        "date": f"{date.today()}",
        "versions": {
            name: pin for line in lock_file("gpu").read_text().splitlines()
            for name, _, pin in [line.partition("==")] if name in ("torch", "vllm", "transformers")
        },
        "steps": {
            name: {k: v for k, v in record.items() if k != "key"}
            for name, record in records.items()
        },
    }  # fmt: skip
    path = work / "report.json" if pretend else report_path(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nReport: {path.relative_to(ROOT)}")
    if not pretend:
        table.main()
        print("Commit it and docs/hardware.md, and open a pull request.")
    return int(any(r["exit_code"] or not r["result"] for r in records.values()))


if __name__ == "__main__":
    sys.exit(main())
