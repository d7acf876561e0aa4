"""The figures of Mooncake that `benchmarks/mooncake.py` finds again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, INK, ORANGE

TRACE_COLORS = {"conversation": BLUE, "toolagent": GREEN, "synthetic": ORANGE}
MARKERS = {"conversation": "o", "toolagent": "^", "synthetic": "s"}


def plot_mooncake(results: Mapping[str, Any]) -> Figure:
    """Left, figure 9: a cache's size against its hits. Right, figure 10: shared over local hits.

    Args:
        results: as in `benchmarks/results/mooncake.json`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
    _draw_sizes(left, results)
    _draw_sharing(right, results)
    return figure


def _draw_sizes(axes: Axes, results: Mapping[str, Any]) -> None:
    for name, curve in results["figure_9"].items():
        color = TRACE_COLORS[name]
        sizes = [float(size) for size in curve]
        axes.plot(
            sizes,
            [100 * share for share in curve.values()],
            color=color,
            marker=MARKERS[name],
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
            color=color,
            label=f"{name}, published",
            zorder=3,
        )
    axes.set_xscale("log")
    axes.set_xlabel("tokens that the cache holds")
    axes.set_ylabel("share of the largest hit rate (%)")
    found = results["figure_9"]
    axes.set_title(
        "One cache of 3 million tokens gives\n"
        + " and ".join(f"{100 * curve['3e6']:.0f}%" for curve in found.values())
        + " of all possible hits"
    )
    axes.legend()


def _draw_sharing(axes: Axes, results: Mapping[str, Any]) -> None:
    runs = results["figure_10_with_queues"][f"{results['routing']['faster']:g}"]
    closest = []
    for name, rows in runs.items():
        color = TRACE_COLORS[name]
        weights = [float(weight) for weight in rows]
        gains = [row["hit_rate_times"] for row in rows.values()]
        published = results["published"]["figure_10"][name]["hit_rate_times"]
        axes.plot(weights, gains, color=color, marker=MARKERS[name], label=f"{name}, found here")
        axes.axhline(published, color=color, linestyle="--", linewidth=1.4)
        axes.annotate(
            f"published {published}",
            (weights[0], published),
            xytext=(0, 3 if published > 2.3 else -12),
            textcoords="offset points",
            fontsize=9,
            color=INK,
        )
        closest.append(min(rows, key=lambda w: abs(rows[w]["hit_rate_times"] - published)))
    axes.set_xscale("log")
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.minorticks_off()
    faster = results["routing"]["faster"]
    axes.set_xlabel(f"weight of a waiting token (trace {faster:g} times as fast)")
    axes.set_ylabel("hits of one shared cache / of ten local ones")
    same = len(set(closest)) == 1
    axes.set_title(
        "The more load counts, the more sharing gains;\n"
        + (
            f"weight {closest[0]} comes closest to what was published"
            if same
            else f"weights {' and '.join(closest)} come closest to the paper"
        )
    )
    axes.legend(loc="upper left")
