"""One decode step of the engine under PyTorch's profiler: which operations run, and how long.

    python benchmarks/step_profile.py [--out FILE]

For 1 and 32 requests and both ways through the layers on a processor (`torch`, the readable one,
and `cpp`, the engine's kernels): the median time of a step that nobody watches, and what the
profiler counts in steps that it watches, a line per operation with its own time, without that of
the operations that it calls. The profiler's own work makes a watched step slower, above all where
there are many operations. So its times are for comparing operations.
Writes `results/step_profile.json`, which lesson 08d reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.common import write_report  # noqa: E402
from utils.engine import LLM  # noqa: E402
from utils.hub import load_tokenizer  # noqa: E402
from utils.pipeline.studies.mixed_prompts import chats  # noqa: E402
from utils.pipeline.studies.profiled import profiled  # noqa: E402
from utils.viz.engine.step_time import decoding  # noqa: E402

BATCHES, WAYS = (1, 32), ("torch", "cpp")
TIMED, WATCHED, LISTED = 15, 5, 12  # steps, steps, operations


def steps_profile(llm: LLM, batch: int) -> dict[str, Any]:
    """A step's milliseconds, and of each operation the calls and own microseconds in a step."""
    engine = decoding(llm, batch, chats(load_tokenizer("bundled")))
    engine.step_trace = []
    for _ in range(TIMED):
        engine.step()
    seconds = [step.end - step.start for step in engine.step_trace]
    engine.step_trace = None
    with profiled() as profiler:
        for _ in range(WATCHED):
            engine.step()
    rows = sorted(
        (
            {
                "operation": row.key,
                "calls": row.count / WATCHED,
                "own_us": row.self_cpu_time_total / WATCHED,
            }
            for row in profiler.key_averages()
        ),
        key=lambda row: -row["own_us"],
    )
    rest = rows[LISTED:]
    return {
        "step_ms": 1e3 * statistics.median(seconds),
        "operations": sum(row["calls"] for row in rows),
        "own_us": sum(row["own_us"] for row in rows),
        "longest": rows[:LISTED],
        "rest": {
            "kinds": len(rest),
            "calls": sum(row["calls"] for row in rest),
            "own_us": sum(row["own_us"] for row in rest),
        },
    }


def measure() -> dict[str, dict[str, Any]]:
    """Of each batch size and way: see `steps_profile`."""
    results: dict[str, dict[str, Any]] = {f"batch {batch}": {} for batch in BATCHES}
    for way in WAYS:
        llm = LLM("bundled", dtype="float32", device="cpu", kernels=way, max_model_len=256)
        for batch in BATCHES:
            results[f"batch {batch}"][way] = steps_profile(llm, batch)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="another file than the committed one")
    options = parser.parse_args()
    results = measure()
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        return
    print(write_report("step_profile", results, [], model="SmolLM2-135M-Instruct", dtype="float32"))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
