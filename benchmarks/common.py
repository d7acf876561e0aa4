"""What every benchmark writes beside its numbers: the machine, the versions, the seed."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def cpu_instructions(info: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Which wide instructions this processor has: speed depends on who uses them."""
    lines = info.read_text().splitlines() if info.is_file() else []
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]


def write_report(name: str, results: dict[str, Any], packages: list[str], **settings: Any) -> Path:
    """Write `results/NAME.json` and return its path."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    report = {
        **settings,
        "machine": {
            "cpu": cpu_name(),
            "instructions": cpu_instructions(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
            # Above the number of threads, others were using the machine: don't trust the numbers.
            "load_average": os.getloadavg()[0],
        },
        "versions": versions,
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path
