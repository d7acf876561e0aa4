"""The figures of Mooncake that `benchmarks/mooncake.py` finds again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

TRACE_COLORS = {"conversation": BLUE, "synthetic": ORANGE}
WAYS = ("in turns", "random", "one node alone", "longest prefix", "shared")


def plot_mooncake(results: Mapping[str, Any]) -> Figure:
    """Left, figure 9: a cache's size against its hits. Right, figure 10: local, shared.

    Args:
        results: as in `benchmarks/results/mooncake.json`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), width_ratios=(1.15, 1))
    _draw_sizes(left, results)
    _draw_sharing(right, results)
    return figure


def _draw_sizes(axes: Axes, results: Mapping[str, Any]) -> None:
    for number, (name, curve) in enumerate(results["figure_9"].items()):
        color = TRACE_COLORS[name]
        sizes = [float(size) for size in curve]
        axes.plot(
            sizes,
            [100 * share for share in curve.values()],
            color=color,
            marker="os"[number],
            label=f"{name}, found here",
        )
        published = results["published"]["figure_9"][name]
        axes.plot(
            [float(size) for size in published],
            [100 * s for s in published.values()],
            linestyle="none",
            marker="x",
            markersize=10,
            markeredgewidth=2.4,
            color=INK,
            label="published" if number == 0 else None,
            zorder=3,
        )
    axes.set_xscale("log")
    axes.set_xlabel("tokens that the cache holds")
    axes.set_ylabel("share of the largest hit rate (%)")
    found = results["figure_9"]
    axes.set_title(
        "3 million tokens give "
        + " and ".join(f"{100 * curve['3e6']:.0f} %" for curve in found.values())
        + " of all hits"
    )
    axes.legend()


def _draw_sharing(axes: Axes, results: Mapping[str, Any]) -> None:
    width = 0.38
    for number, (name, rows) in enumerate(results["figure_10"].items()):
        places = [place + (number - 0.5) * width for place in range(len(WAYS))]
        values = [100 * rows[way]["hit_rate"] for way in WAYS]
        axes.bar(places, values, width, color=(BLUE, GREEN)[number], label=name)
        for place, value in zip(places, values, strict=True):
            axes.text(place, value + 0.8, f"{value:.0f}", ha="center", fontsize=9, color=INK)
    axes.set_xticks(range(len(WAYS)), [way.replace(" ", "\n") for way in WAYS])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("hit rate (%)")
    share = min(
        rows["longest prefix"]["hit_rate"] / rows["shared"]["hit_rate"]
        for rows in results["figure_10"].values()
    )
    axes.set_title(
        f"Routed by prefix, ten caches find {100 * share:.0f} %\nof what one shared cache finds"
    )
    axes.legend(loc="upper left")
    axes.axvline(len(WAYS) - 1.5, color=GREY, linewidth=0.8)
