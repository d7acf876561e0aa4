"""Where a decode step's time goes on a card: the card's own work, and what it waits for.

    python benchmarks/card_steps.py [--out FILE] [--device cuda]

For each way through the layers (kernel by kernel, and as CUDA graphs) and for 1 and 64 requests: a
step's time, the share of it in which the card computes, how many kernels, copies and waits there
are, and how long the processor needs to schedule, to prepare and to sample. Times are medians of
steps that nobody watches; counts and the card's own time come from PyTorch's profiler afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.throughput import shared_prefix  # noqa: E402
from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.engine.worker import model_runner  # noqa: E402
from utils.profiles import half_dtype  # noqa: E402

WARM, TIMED, WATCHED = 12, 24, 8  # steps
# What the profiler calls a wait of the processor for the card.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def busy_us(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans: kernels that run side by side count once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def watched(engine: Any, steps: int, device: str) -> dict[str, Any]:
    """Counts and microseconds of one step, by PyTorch's profiler."""
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as profiler:
        for _ in range(steps):
            engine.step()
    calls: Counter[str] = Counter()
    spans, kernels, copies, by_name = [], 0, Counter[str](), Counter[str]()
    waiting = 0.0
    for event in profiler.events():
        begin, end = event.time_range.start, event.time_range.end
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spans.append((begin, end))
            if event.name.startswith("Mem"):
                copies[event.name] += 1
            else:
                kernels += 1
                by_name[event.name[:80]] += end - begin
        else:
            calls[event.name] += 1
            waiting += (end - begin) if event.name in WAITS else 0.0
    return {
        "card_busy_us": busy_us(spans) / steps,
        "kernels_run": kernels / steps,
        "copies": {name: count / steps for name, count in copies.items()},
        "kernel_starts": calls["cudaLaunchKernel"] / steps + calls["cudaLaunchKernelExC"] / steps,
        "graph_starts": calls["cudaGraphLaunch"] / steps,
        "waits": sum(calls[name] for name in WAITS) / steps,
        "waiting_us": waiting / steps,
        "longest_kernels_us": {name: us / steps for name, us in by_name.most_common(6)},
    }


def sections(engine: Any, steps: int, device: str) -> dict[str, float]:
    """Microseconds of one step's parts, the card's work of each included: it is waited for."""
    runner, spent = engine.executor, Counter[str]()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **options)
            if device == "cuda":
                torch.cuda.synchronize()
            spent[name] += 1e6 * (time.perf_counter() - start)
            return result

        return run

    with (
        patch.object(runner, "execute_model", timed("execute", runner.execute_model)),
        patch.object(runner, "_batch", timed("batch", runner._batch)),
        patch.object(runner, "_sample", timed("sample", runner._sample)),
        patch.object(model_runner, "forward_pass", timed("forward", model_runner.forward_pass)),
    ):
        for _ in range(steps):
            engine.step()
    spent["send"] = 2 * spent["execute"] - spent.total()  # the rest: ids and positions to the card
    return {name: us / steps for name, us in spent.items()}


def measure(kernels: str, batch: int, device: str) -> dict[str, Any]:
    """A decode step of `batch` requests with 256 tokens of context and more."""
    llm = LLM(
        dtype=half_dtype() if device == "cuda" else "float32",
        device=device,
        kernels=kernels,
        max_model_len=512,
        max_num_seqs=batch,
    )
    engine = llm.llm_engine
    total = WARM + TIMED + 2 * WATCHED + 8
    params = SamplingParams(temperature=0, max_tokens=total, ignore_eos=True)
    for number, prompt in enumerate(shared_prefix(batch, ()).prompts):
        engine.add_request(str(number), prompt, params)
    engine.step_trace = []
    while engine.has_unfinished_requests():
        engine.step()
        if len(decodes := decode_steps(engine, batch)) == WARM + TIMED:
            break
    timed = decodes[WARM:]
    found = {
        "step_us": 1e6 * statistics.median(t.end - t.start for t in timed),
        "schedule_us": 1e6 * statistics.median(t.scheduled - t.start for t in timed),
        "execute_us": 1e6 * statistics.median(t.executed - t.scheduled for t in timed),
        "process_us": 1e6 * statistics.median(t.processed - t.executed for t in timed),
        "steps": len(timed),
    }
    engine.step_trace = None
    found["sections_us"] = sections(engine, WATCHED, device)
    found |= watched(engine, WATCHED, device)
    found["card_busy_share"] = found["card_busy_us"] / found["step_us"]
    return found


def decode_steps(engine: Any, batch: int) -> list[Any]:
    """The steps in which each request got one token."""
    return [
        step
        for step in engine.step_trace
        if len(step.tokens) == batch and all(t.num_new == 1 for t in step.tokens.values())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    ways = ("torch", "cuda_graph", "triton") if options.device == "cuda" else ("torch", "cpp")
    result: dict[str, Any] = {}
    for batch in (1, 64):
        for kernels in ways:
            found = measure(kernels, batch, options.device)
            result.setdefault(f"batch {batch}", {})[kernels] = found
            print(json.dumps({"batch": batch, "kernels": kernels, **found}), flush=True)
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
