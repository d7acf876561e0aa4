"""What policies do to a cluster: overload, stampedes, hits and waiting times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from utils.sim.cluster.simulate import ClusterResult
from utils.viz.style import BLUE, COLORS, GREY, INK, ORANGE

STYLES = ("-", "--", ":", "-.", (0, (1, 1)))


def plot_overload(runs: Mapping[float, Sequence[ClusterResult]], slo: float) -> Figure:
    """Left: time to the first token over the rate. Right: how many wait, over time.

    Args:
        runs: nominal requests per second -> what happened, one result per seed, from the lowest
            rate to the highest. Points are medians over the seeds, bands their whole range.
        slo: seconds in which the first token should come.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.9))
    rates = list(runs)
    for percent, color, marker in ((50, BLUE, "o"), (99, ORANGE, "s")):
        seconds = [[run.ttft_percentile(percent) for run in some] for some in runs.values()]
        _band(left, rates, seconds, color=color, marker=marker, label=f"p{percent}")
    left.axhline(slo, color=GREY, linestyle="--", linewidth=1.2, label=f"goal: {slo:g} s")
    _seconds(left, "y")
    left.set_xlabel("requests per second, nominal")
    left.set_ylabel("time to first token (s), logarithmic")
    late: list[float] = []  # the highest rates, all of which miss the goal
    for rate in reversed(rates):
        if median(run.ttft_percentile(99) for run in runs[rate]) <= slo:
            break
        late.insert(0, rate)
    left.set_title(
        f"The p99 misses {slo:g} s from {late[0]:g} per second on" if late else "In time"
    )
    left.legend(loc="upper left")
    few = [rates[0], rates[len(rates) // 2], rates[-1]]
    for rate, color, style in zip(few, COLORS, STYLES, strict=False):
        run = runs[rate][0]
        minutes = np.arange(len(run.samples)) * run.sample_seconds / 60
        right.plot(
            minutes,
            run.samples.sum(axis=1),
            color=color,
            linestyle=style,
            label=f"{rate:g} per second",
        )
    right.set_xlabel("minutes (one seed; fast arrivals end sooner)")
    right.set_ylabel("prompts that wait")
    longest = runs[rates[-1]][0].samples.sum(axis=1).max()
    right.set_title(f"At {rates[-1]:g} per second the queue grows to {longest}")
    right.legend()
    return figure


def plot_waiting(runs: Mapping[str, ClusterResult], title: str) -> Figure:
    """Prompts that wait at each replica over time, one panel per run.

    The replica that is busiest in the first run stands out in all panels.
    """
    busiest = int(np.argmax(next(iter(runs.values())).busy))
    figure, every = plt.subplots(1, len(runs), figsize=(10.5, 3.4), squeeze=False)
    for axes, (name, run) in zip(every[0], runs.items(), strict=True):
        minutes = np.arange(len(run.samples)) * run.sample_seconds / 60
        for index, waiting in enumerate(run.samples.T):
            mine = index == busiest
            axes.plot(
                minutes,
                waiting,
                color=ORANGE if mine else GREY,
                linewidth=2.2 if mine else 0.9,
                zorder=3 if mine else 2,
                label=f"replica {index}" if mine else None,
            )
        axes.plot([], [], color=GREY, linewidth=0.9, label="all others")
        axes.set_xlabel("minutes")
        axes.set_title(f"{name}: up to {run.samples.max():,} wait", fontsize=11)
        axes.legend(loc="upper left")
    every[0][0].set_ylabel("prompts that wait")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_policies(figures: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> Figure:
    """Per policy: its hit rate, and the median and the 99th percentile of TTFT.

    Args:
        figures: policy -> one `utils.sim.cluster.compare.summary` per seed. Marks are medians over
            the seeds, thin lines their whole range.
        title: the finding.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 0.36 * len(figures) + 1.6), sharey=True, width_ratios=(1, 1.7)
    )
    rows = range(len(figures))
    hits = [100 * median(run["hit_rate"] for run in runs) for runs in figures.values()]
    left.barh(rows, hits, height=0.62, color=BLUE)
    for row, value in zip(rows, hits, strict=True):
        left.text(value + 0.6, row, f"{value:.0f}%", va="center", fontsize=9.5)
    left.set_xlim(0, max(hits) * 1.2 + 1)
    left.set_xlabel("hit rate (%)")
    left.set_yticks(rows, list(figures))
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    for key, color, marker, name in (
        ("ttft_p50", BLUE, "o", "p50"),
        ("ttft_p99", ORANGE, "s", "p99"),
    ):
        seconds = [[run[key] for run in runs] for runs in figures.values()]
        middle = [median(some) for some in seconds]
        right.hlines(rows, list(map(min, seconds)), list(map(max, seconds)), color=color)
        right.plot(middle, rows, linestyle="none", marker=marker, color=color, label=name)
        for row, value in zip(rows, middle, strict=True):
            right.annotate(
                f"{value:.2g}" if value < 10 else f"{value:.0f}",
                (value, row),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
            )
    _seconds(right, "x")
    right.set_xlabel("time to first token (s), logarithmic")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def plot_gain(
    x: Sequence[float], runs: Mapping[str, Sequence[Sequence[float]]], xlabel: str, title: str
) -> Figure:
    """The 99th percentile of TTFT over something that is varied, a line per policy.

    Args:
        x: what is varied.
        runs: policy -> per value of `x`, seconds of each seed. Lines are medians, bands the range.
        xlabel: what `x` is.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    for (name, seconds), color, style, marker in zip(
        runs.items(), COLORS, STYLES, "os^Dv", strict=False
    ):
        _band(axes, x, seconds, color=color, linestyle=style, marker=marker, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("p99 of the time to first token (s)")
    axes.set_title(title, color=INK)
    axes.legend(loc="lower left", ncols=3)
    return figure


def _band(
    axes: Axes, x: Sequence[float], every: Sequence[Sequence[float]], color: str, **style: Any
) -> None:
    """A line through the medians, and a band from the smallest to the largest."""
    axes.plot(x, [median(some) for some in every], color=color, **style)
    axes.fill_between(x, list(map(min, every)), list(map(max, every)), color=color, alpha=0.2)


def _seconds(axes: Axes, which: str) -> None:
    """A logarithmic axis of seconds with numbers that people say: 0.3, 1, 3, 10."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
