"""How much faster guessing ahead is: predicted beside measured, by guesses, and by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.spec_decode.clock import StepParts
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

PARTS = {"drafting": ORANGE, "verification": BLUE, "rest": GREY}


def plot_speedups(
    formula: Mapping[str, float], predicted: Mapping[str, float], measured: Mapping[str, float]
) -> Figure:
    """Speed against the engine without guesses: a bar for the clock, marks for the predictions.

    Args:
        formula: name of the row -> times as fast by the formula. A row may lack it.
        predicted: the same, by replayed passes and their prices.
        measured: the same, by the clock.
    """
    rows = list(measured)
    figure, axes = plt.subplots(figsize=(8.5, 0.55 * len(rows) + 2.2))
    places = np.arange(len(rows))
    values = [measured[row] for row in rows]
    colors = [BLUE if value > 1 else ORANGE for value in values]
    axes.barh(places, values, height=0.55, color=colors, label="measured")
    for place, value in zip(places, values, strict=True):
        axes.text(0.03, place, f"{value:.2f}", color="white", va="center", weight="bold")
    known = [
        (place, formula[row]) for place, row in zip(places, rows, strict=True) if row in formula
    ]
    for name, at, marker, color in (
        ("formula", known, "s", GREEN),
        ("replayed passes", [(i, predicted[row]) for i, row in enumerate(rows)], "D", "white"),
    ):
        axes.scatter(
            [value for _, value in at],
            [place for place, _ in at],
            color=color,
            edgecolor=INK,
            marker=marker,
            s=60,
            zorder=3,
            label=f"predicted: {name}",
        )
    axes.axvline(1, color=INK, linewidth=1.2, linestyle="--")
    axes.set_yticks(places, rows)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("times as fast as without guesses (orange: slower)")
    best, worst = (of(rows, key=measured.__getitem__) for of in (max, min))
    axes.set_title(
        f"Fastest: {best.replace(':', ' by')} ({measured[best]:.2f} times as fast); "
        f"slowest: {worst.replace(':', ' by')} ({measured[worst]:.2f})",
        fontsize=11,
    )
    figure.legend(loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def plot_choices(predicted: Mapping[int, float], raced: Mapping[int, float]) -> Figure:
    """Speed over the number of guesses per pass.

    Args:
        predicted: number of guesses -> times as fast as without, by replayed passes and prices.
        raced: the same, by the clock.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.axhline(1, color=GREY, linewidth=1.4, linestyle="--")
    axes.plot(
        list(predicted),
        list(predicted.values()),
        color=INK,
        linestyle=":",
        marker="D",
        markerfacecolor="white",
        label="predicted: replayed passes",
    )
    axes.plot(list(raced), list(raced.values()), color=BLUE, marker="o", label="raced")
    axes.set_xticks(list(predicted))
    axes.set_xlabel("guesses per pass, k")
    axes.set_ylabel("times as fast as without guesses")
    best, best_raced = (max(of, key=of.__getitem__) for of in (predicted, raced))
    axes.set_title(f"Replay predicts k = {best} as the best; fastest in the race: k = {best_raced}")
    axes.legend()
    return figure


def plot_batches(
    batch_sizes: Sequence[int], measured: Sequence[float], parts: Mapping[str, Sequence[StepParts]]
) -> Figure:
    """Speed-up over the requests that run at a time, and what a step is made of.

    Args:
        batch_sizes: requests in a step.
        measured: times as fast as without guesses.
        parts: "without" and "with" guesses -> the parts of a step, by batch size.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=(1, 1.4))
    places = np.arange(len(batch_sizes))
    left.axhline(1, color=GREY, linewidth=1.4, linestyle="--")
    left.plot(places, measured, color=BLUE, marker="o")
    for place, value in zip(places, measured, strict=True):
        left.annotate(
            f"{value:.2f}", (place, value), xytext=(0, 8), textcoords="offset points", ha="center"
        ).set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
    left.set_xlim(-0.4, len(batch_sizes) - 0.6)
    left.set_ylim(0, 1.25 * max(*measured, 1))
    left.set_xticks(places, [str(size) for size in batch_sizes])
    left.set_xlabel("requests in a batch")
    left.set_ylabel("times as fast as without guesses")
    for shift, (name, steps) in zip((-0.2, 0.2), parts.items(), strict=True):
        bottom = np.zeros(len(batch_sizes))
        for part, color in PARTS.items():
            heights = np.array([1e3 * getattr(step, part) for step in steps])
            label = part if shift < 0 else None
            right.bar(
                places + shift,
                heights,
                width=0.36,
                bottom=bottom,
                color=color,
                edgecolor=INK,
                label=label,
            )
            bottom += heights
        for place, top in zip(places, bottom, strict=True):
            right.text(place + shift, top, name, ha="center", va="bottom", fontsize=8.5)
    right.set_xticks(places, [str(size) for size in batch_sizes])
    right.grid(axis="x", visible=False)
    right.set_xlabel("requests in a batch")
    right.set_ylabel("time of a step (ms)")
    right.legend(loc="upper left")
    speeds = [f"{value:.2f} with {size}" for size, value in zip(batch_sizes, measured, strict=True)]
    figure.suptitle(
        f"Times as fast with guesses, by requests in a batch: {', '.join(speeds)}",
        x=0.01,
        ha="left",
        weight="bold",
        fontsize=12,
    )
    return figure
