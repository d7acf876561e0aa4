"""The committed benchmark of four servers, `benchmarks/results/engines_under_load.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, ORANGE
from utils.vllm.recipe import in_words, require_todays

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks/results/engines_under_load.json"
LOOKS = {"ours": BLUE, "vLLM": ORANGE, "llama.cpp": GREEN, "Hugging Face": GREY}
PANELS = {
    "tokens_per_second": ("output tokens per second; line: the rounds", 1.0),
    "ttft": ("time to first token (ms, logarithmic)", 1e3),
    "tpot": ("time per further token (ms)", 1e3),
}


def read_engines(path: Path = RESULTS) -> dict[str, Any]:
    """The report of `benchmarks/engines_under_load.py`.

    Raises:
        FileNotFoundError: the benchmark has not been run; the message says how.
        OldRecipe: vLLM was given something else there than it is today.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.name} is missing. Run: python benchmarks/engines_under_load.py"
        )
    report: dict[str, Any] = json.loads(path.read_text())
    require_todays(report, path.name, "engines_under_load")
    return report


def plot_engines(report: Mapping[str, Any], title: str) -> Figure:
    """Three panels: throughput, and the medians of TTFT and of the time per further token.

    Args:
        report: as `read_engines` returns it. Its `results` are load -> engine ->
            `tokens_per_second`, `ttft`, `tpot`, and `rounds`, the tokens per second of each round,
            whose slowest and fastest a thin line joins; its `weights`, engine -> number format.
        title: the finding.
    """
    loads, weights = report["results"], report["weights"]
    figure, panels = plt.subplots(1, 3, figsize=(11, 4.2), layout="constrained")
    names = [name for name in LOOKS if all(name in found for found in loads.values())]
    width = 0.86 / len(names)
    for axes, (measure, (label, unit)) in zip(panels, PANELS.items(), strict=True):
        for i, name in enumerate(names):
            places = [group + (i - (len(names) - 1) / 2) * width for group in range(len(loads))]
            heights = [unit * found[name][measure] for found in loads.values()]
            axes.bar(
                places, heights, 0.94 * width, color=LOOKS[name], label=f"{name} ({weights[name]})"
            )
            for place, height, found in zip(places, heights, loads.values(), strict=True):
                rounds = found[name]["rounds"] if measure == "tokens_per_second" else []
                axes.plot([place] * len(rounds), rounds, color="black", linewidth=1)
                axes.annotate(
                    f"{height:,.0f}",
                    (place, max([height, *rounds])),
                    xytext=(0, 2),
                    ha="center",
                    textcoords="offset points",
                    fontsize=8,
                )
        axes.set_xticks(range(len(loads)), list(loads))
        axes.set_title(label, fontsize=11, weight="normal")
        if measure == "ttft":  # who queues waits so much longer that the others would vanish
            axes.set_yscale("log")
        axes.margins(y=0.12)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower left",
        ncols=4,
        title=in_words(report),
        title_fontsize=8,
        alignment="left",
    )
    return figure
