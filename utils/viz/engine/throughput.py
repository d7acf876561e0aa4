"""The committed benchmarks of engines, `benchmarks/results/throughput*.json`, as pictures."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE
from utils.vllm.recipe import in_words, require_todays

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
# Of processors with AVX-512 and instructions for bfloat16, and with AVX2 only
FILES = ("throughput_avx512_bf16.json", "throughput_avx2.json")
LOOKS = {
    "ours": (BLUE, ""),
    "vLLM": (ORANGE, ""),
    "HF": (GREY, ""),
    "HF continuous": (GREEN, "////"),
}


def read_report(path: Path) -> dict[str, Any]:
    """A report of `benchmarks/throughput.py`, or of another benchmark that a lesson draws.

    Raises:
        FileNotFoundError: the benchmark has not been run; the message says how.
        OldRecipe: vLLM was given something else there than it is today.
    """
    script = path.stem.partition("_")[0]
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing. Run: python benchmarks/{script}.py")
    report: dict[str, Any] = json.loads(path.read_text())
    require_todays(report, path.name, script)
    return report


def plot_throughput(report: dict[str, Any]) -> Figure:
    """Tokens per second of each engine, a panel per number format and a group per workload.

    A bar is the median of the rounds, its line goes from the slowest round to the fastest.

    Args:
        report: as `read_report` returns it. Its results' `engines` are dtype -> workload -> engine
            -> `{"tokens_per_s": ..., "seconds": [...]}`, median and rounds, or `{"error": ...}` for
            an engine that failed, which has no bar.
    """
    engines = report["results"]["engines"]
    size = (10.5, 4.3)
    widths = {"width_ratios": [len(workloads) for workloads in engines.values()]}
    figure, panels = plt.subplots(
        1, len(engines), figsize=size, sharey=True, squeeze=False, gridspec_kw=widths
    )
    for axes, (dtype, workloads) in zip(panels[0], engines.items(), strict=True):
        names = [
            n for n in LOOKS if any("tokens_per_s" in w.get(n, {}) for w in workloads.values())
        ]
        width = 0.86 / len(names)
        order = sorted(workloads, key=in_order)
        for i, name in enumerate(names):
            color, hatch = LOOKS[name]
            for group, workload in enumerate(order):
                results = workloads[workload]
                if "tokens_per_s" not in results.get(name, {}):
                    continue
                speed = results[name]["tokens_per_s"]
                place = group + (i - (len(names) - 1) / 2) * width
                axes.bar(place, speed, 0.94 * width, color=color, hatch=hatch, edgecolor="white")
                slowest, fastest = rounds_range(results[name])
                axes.vlines(place, slowest, fastest, color=INK, linewidth=1.2)
                axes.text(
                    place, max(speed, fastest), f"{speed:.0f}", ha="center", va="bottom", fontsize=7
                )
        labels = [workload.replace("-", "-\n") for workload in order]
        axes.set_xticks(range(len(order)), labels, fontsize=9)
        axes.margins(y=0.08)
        axes.set_title(dtype, fontsize=11, weight="normal")
        axes.grid(axis="x", visible=False)
    panels[0][0].set_ylabel("tokens per second")
    title = throughput_finding(engines)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold", color=INK)
    patches = [
        plt.Rectangle((0, 0), 1, 1, facecolor=color, hatch=hatch, edgecolor="white", label=name)
        for name, (color, hatch) in LOOKS.items()
        if any("tokens_per_s" in w.get(name, {}) for ws in engines.values() for w in ws.values())
    ]
    figure.legend(
        handles=patches,
        loc="outside lower left",
        ncols=len(patches),
        fontsize=9.5,
        title=in_words(report),
        title_fontsize=8,
        alignment="left",
    )
    return figure


def throughput_finding(engines: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The title: how many times as fast ours is at the largest batch, in each number format."""
    parts = []
    for dtype, workloads in engines.items():
        largest = max((w for w in workloads if w.startswith("batch")), key=in_order)
        times = [
            f"{ratio:.2f} times as fast as {name}"
            for name, ratio in ratios(workloads[largest]).items()
        ]
        parts.append(f"{dtype}, {largest}: ours is {' and '.join(times)}")
    return "\n".join(parts)


def ratios(workload: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times as fast ours is as vLLM and Hugging Face, of those that ran."""
    return {
        name: workload[name]["ours_is_faster"]
        for name in ("vLLM", "HF")
        if "ours_is_faster" in workload.get(name, {})
    }


def rounds_range(result: dict[str, Any]) -> tuple[float, float]:
    """Tokens per second of the slowest round and of the fastest; their median is the bar."""
    speed, seconds = result["tokens_per_s"], result.get("seconds") or [1.0]
    num_tokens = speed * statistics.median(seconds)
    return num_tokens / max(seconds), num_tokens / min(seconds)


def in_order(workload: str) -> tuple[bool, int]:
    """Sorts workloads: batches first, by size."""
    size = workload.removeprefix("batch ")
    return not size.isdigit(), int(size) if size.isdigit() else 0
