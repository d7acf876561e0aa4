"""What policies do to a cluster: overload, stampedes, hits and waiting times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.sim.cluster.simulate import ClusterResult
from utils.viz.style import BLUE, COLORS, GREY, INK, ORANGE

STYLES = ("-", "--", ":", "-.", (0, (1, 1)))


def plot_overload(runs: Mapping[float, ClusterResult], slo: float) -> Figure:
    """Left: time to the first token over the rate. Right: how many wait, over time.

    Args:
        runs: requests per second -> what happened, from the lowest rate to the highest.
        slo: seconds in which the first token should come.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.9))
    rates = list(runs)
    for percent, color, marker in ((50, BLUE, "o"), (99, ORANGE, "s")):
        seconds = [run.ttft_percentile(percent) for run in runs.values()]
        left.plot(rates, seconds, color=color, marker=marker, label=f"p{percent}")
    left.axhline(slo, color=GREY, linestyle="--", linewidth=1.2, label=f"goal: {slo:g} s")
    left.set_yscale("log")
    left.set_xlabel("requests per second")
    left.set_ylabel("time to first token (s)")
    left.set_title("Up to some rate little happens. Then all wait")
    left.legend()
    few = [rates[0], rates[len(rates) // 2], rates[-1]]
    for rate, color, style in zip(few, COLORS, STYLES, strict=False):
        run = runs[rate]
        minutes = np.arange(len(run.samples)) * run.sample_seconds / 60
        right.plot(
            minutes,
            run.samples.sum(axis=1),
            color=color,
            linestyle=style,
            label=f"{rate:g} per second",
        )
    right.set_xlabel("minutes")
    right.set_ylabel("prompts that wait")
    right.set_title("The queue shows it first")
    right.legend()
    return figure


def plot_waiting(runs: Mapping[str, ClusterResult], title: str) -> Figure:
    """Prompts that wait at each replica over time, one panel per run."""
    figure, every = plt.subplots(1, len(runs), figsize=(10.5, 3.4), squeeze=False)
    for axes, (name, run) in zip(every[0], runs.items(), strict=True):
        minutes = np.arange(len(run.samples)) * run.sample_seconds / 60
        busiest = int(np.argmax(run.busy))
        for index, waiting in enumerate(run.samples.T):
            mine = index == busiest
            axes.plot(
                minutes,
                waiting,
                color=ORANGE if mine else GREY,
                linewidth=2.2 if mine else 0.9,
                zorder=3 if mine else 2,
                label=f"replica {index}, the busiest" if mine else None,
            )
        axes.set_xlabel("minutes")
        axes.set_title(name, fontsize=11)
        axes.legend(loc="upper left")
    every[0][0].set_ylabel("prompts that wait")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_policies(figures: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Per policy: its hit rate, and the median and the 99th percentile of TTFT.

    Args:
        figures: policy -> as from `utils.sim.cluster.compare.summary`.
        title: the finding.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 0.34 * len(figures) + 1.5), sharey=True, width_ratios=(1, 1.5)
    )
    rows = range(len(figures))
    hits = [100 * row["hit_rate"] for row in figures.values()]
    left.barh(rows, hits, height=0.62, color=BLUE)
    for row, value in zip(rows, hits, strict=True):
        left.text(value + 0.6, row, f"{value:.0f} %", va="center", fontsize=9.5)
    left.set_xlim(0, max(hits) * 1.2 + 1)
    left.set_xlabel("hit rate (%)")
    left.set_yticks(rows, list(figures))
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    medians = [row["ttft_p50"] for row in figures.values()]
    slowest = [row["ttft_p99"] for row in figures.values()]
    right.hlines(rows, medians, slowest, color=GREY, linewidth=1.5)
    right.plot(medians, rows, linestyle="none", marker="o", color=BLUE, label="p50")
    right.plot(slowest, rows, linestyle="none", marker="s", color=ORANGE, label="p99")
    right.set_xscale("log")
    right.set_xlabel("time to first token (s)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_gain(
    x: Sequence[float], runs: Mapping[str, Sequence[float]], xlabel: str, title: str
) -> Figure:
    """The 99th percentile of TTFT over something that is varied, a line per policy.

    Args:
        x: what is varied.
        runs: policy -> seconds, one per value of `x`.
        xlabel: what `x` is.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    for (name, seconds), color, style, marker in zip(
        runs.items(), COLORS, STYLES, "os^Dv", strict=False
    ):
        axes.plot(x, seconds, color=color, linestyle=style, marker=marker, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("p99 of the time to first token (s)")
    axes.set_title(title, color=INK)
    axes.legend()
    return figure
