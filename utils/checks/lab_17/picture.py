"""What the servers find in their caches behind three routers: the picture of exercise 8."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from utils.routing.fleet.workload import RunReport
from utils.viz.style import BLUE, GREY, INK


def plot_runs(runs: Mapping[str, RunReport], predicted: Mapping[str, float]) -> tuple[Figure, str]:
    """A bar per router, the learner's last: the share of tokens found. And the same in words."""
    figure = Figure(figsize=(7.5, 0.6 * len(runs) + 1.5), layout="constrained")
    axes = figure.subplots()
    for row, (name, run) in enumerate(runs.items()):
        color = BLUE if row == len(runs) - 1 else GREY
        axes.barh(row, 100 * run.hit_rate, height=0.6, color=color)
        label = "predicted" if row == 0 else None
        rate = 100 * predicted[name]
        axes.plot([rate, rate], [row - 0.4, row + 0.4], color=INK, lw=2, label=label)
        one, other = run.num_requests
        words = f"{run.hit_rate:.0%} ({one} + {other} requests)"
        axes.text(1.5, row, words, color="white", va="center", size=9)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the prompts' tokens that the servers found in their caches")
    *others, yours = runs.values()
    best = all(yours.hit_rate > other.hit_rate for other in others)
    axes.set_title(
        "With your router the servers find the most" if best else "What the servers find"
    )
    figure.legend(loc="outside lower right", fontsize=9)
    told = (f"{name}: {run}, {predicted[name]:.1%} predicted" for name, run in runs.items())
    return figure, "Bars, one for each router. " + "; ".join(told) + "."
