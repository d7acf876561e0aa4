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
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.gpu import table  # noqa: E402
from tools.gpu.report import report_path  # noqa: E402
from tools.gpu.steps import (  # noqa: E402
    PLUGIN,
    Step,
    read_cases,
    read_json,
    read_lines,
    read_tests,
    revision,
    run_step,
)
from tools.gpu.test_lines import FILE  # noqa: E402
from tools.notebook_files import part_one  # noqa: E402
from utils.environments.pipeline import (  # noqa: E402
    PipelineEnvironmentError,
    environment_python,
    lock_file,
    require_driver,
)
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


def steps_on_card(python: str, work: Path) -> list[Step]:
    """What runs on a real card."""
    pytest = [python, "-m", "pytest", "-p", PLUGIN]
    pipeline = [python, "-m", "utils.pipeline", "--profile", "gpu-bundled"]
    benchmark = [python, "benchmarks/throughput.py", "--card", str(work / "throughput.raw")]
    return [
        Step(
            "tests",
            "tokens of Hugging Face and of vLLM, every feature, the memory foretold",
            [*pytest, "-m", "gpu", "tests/device"],
            lambda work: read_tests(work / "tests.lines"),
            environment={FILE: str(work / "tests.lines")},
        ),
        Step(
            "pipeline",
            "fine-tune, merge, quantize, evaluate and serve the bundled model",
            [*pipeline, "--out", str(work / "pipeline")],
            lambda work: read_json(work / "pipeline" / "report" / "results.json"),
        ),
        Step(
            "lessons",
            "every cell of Part I",
            [*pytest, *map(str, part_one())],
            lambda work: read_tests(work / "lessons.lines"),
            environment={FILE: str(work / "lessons.lines"), "COURSE_PROFILE": "gpu-bundled"},
        ),
        Step(
            "throughput",
            "the engine beside vLLM (CUDA graphs) and Hugging Face",
            benchmark,
            lambda work: read_json(work / "throughput.raw"),
        ),
    ]


def steps_without_card(python: str, work: Path) -> list[Step]:
    """What of it runs on a pretend card, or on the CPU."""
    dry = [python, "-m", "utils.pipeline", "--profile", "gpu-bundled", "--dry-run", "--card", "T4"]
    return [
        Step(
            "tests",
            "every feature on a pretend card",
            [python, "-m", "tests.device.cases"],
            lambda work: read_cases(work / "tests.log"),
        ),
        Step("pipeline", "by formula, on a T4", dry, lambda work: {"dry_run": True}),
        Step(
            "lessons",
            "Part I, a minute of each on a pretend card",
            [python, "-m", "tests.device.lessons", "--pretend=said"],
            lambda work: {"lessons": read_lines(work / "lessons.log")},
        ),
        Step(
            "throughput",
            "once, on the CPU",
            [python, "benchmarks/throughput.py", "--quick"],
            lambda work: {"quick": True},
        ),
    ]


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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pretend", action="store_true", help="without a card")
    pretend = parser.parse_args().pretend
    if pretend:
        python, work = sys.executable, WORK / "pretend"
        machine: dict[str, Any] = {
            "card": "pretend card",
            "memory_bytes": 15.6e9,
            "driver_cuda": "none",
        }
    else:
        try:
            python, machine = look_at_card()
        except (PipelineEnvironmentError, OSError) as error:
            print(f"gpu-check: {error}", file=sys.stderr)
            return 1
        work = WORK / report_path(machine["card"]).stem
    work.mkdir(parents=True, exist_ok=True)
    code = revision() or "unknown"
    here = json.dumps([machine, code, lock_file("gpu").read_text()])
    key = hashlib.sha256(here.encode()).hexdigest()[:16]
    steps = (steps_without_card if pretend else steps_on_card)(python, work)
    records = {step.name: run_step(step, work, key) for step in steps}
    report = {
        "machine": machine,
        "revision": code,
        "date": f"{date.today()}",
        "versions": {
            name: pin
            for line in lock_file("gpu").read_text().splitlines()
            for name, _, pin in [line.partition("==")]
            if name in ("torch", "vllm", "transformers")
        },
        "steps": {
            name: {k: v for k, v in record.items() if k != "key"}
            for name, record in records.items()
        },
    }
    path = work / "report.json" if pretend else report_path(machine["card"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nReport: {path.relative_to(ROOT)}")
    if not pretend:
        table.main()
        print("Commit it and docs/hardware.md, and open a pull request.")
    return int(any(r["exit_code"] or not r["result"] for r in records.values()))


if __name__ == "__main__":
    sys.exit(main())
