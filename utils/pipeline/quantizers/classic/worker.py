"""What every quantizer subprocess does: read its job, report progress, report what it used.

This file runs in two environments, the course's own and that of the archived tools. So it imports
the standard library and torch alone.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PROGRESS = "@progress"


def run_job(route: Callable[[dict[str, Any]], None]) -> None:
    """Run `route` on the job file named on the command line, then write its report.

    A job has the keys `model_dir`, `out_dir` (exists, empty), `calibration` (token ids, [N, L]),
    `group_size`, `seed` and `report` (where the measures go, as JSON).
    """
    job = json.loads(Path(sys.argv[1]).read_text())
    random.seed(job["seed"])
    torch.manual_seed(job["seed"])
    route(job)
    report = {"peak_memory_bytes": peak_memory_bytes()}
    if torch.cuda.is_available():
        report["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
    Path(job["report"]).write_text(json.dumps(report))


def report_layers(model: torch.nn.Module) -> None:
    """Print a progress line whenever a further decoder layer of `model` is reached.

    All four tools work through the model layer by layer, and run a layer to collect its inputs.
    """
    layers = list(model.get_submodule("model.layers").children())
    reached = -1

    def hook(index: int) -> Callable[..., None]:
        def on_forward(*_: Any) -> None:
            nonlocal reached
            if index > reached:
                reached = index
                print(f"{PROGRESS} {index} {len(layers)}", flush=True)

        return on_forward

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(hook(index))


def peak_memory_bytes() -> int:
    """Peak resident memory of this process.

    Not `getrusage`: its maximum survives `exec`, so a child would report its parent's peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM line.")
