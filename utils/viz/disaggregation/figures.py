"""Pictures of notebook 16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

_LOOKS = ((GREY, "o"), (ORANGE, "s"), (BLUE, "D"), (GREEN, "^"), (RED, "v"))


def plot_gaps(gaps: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Seconds between a stream's tokens, a row per situation, the longest marked.

    Args:
        gaps: what happened -> the gaps, in order. A row without gaps is left empty.
    """
    figure, axes = plt.subplots(figsize=(8, 0.75 * len(gaps) + 1.3))
    for row, (seconds, (color, _)) in enumerate(zip(gaps.values(), _LOOKS, strict=False)):
        ends = np.cumsum([0.0, *seconds])
        axes.plot(ends, np.full(len(ends), row), "|", color=color, markersize=13, mew=1.4)
        if not len(seconds):
            continue
        longest = int(np.argmax(seconds))
        axes.plot(
            ends[longest : longest + 2], [row, row], color=RED, linewidth=3.5, solid_capstyle="butt"
        )
        axes.annotate(
            f"{1e3 * seconds[longest]:.0f} ms",
            (ends[longest : longest + 2].mean(), row),
            (0, 9),
            textcoords="offset points",
            ha="center",
            color=RED,
        )
    axes.set_yticks(range(len(gaps)), list(gaps))
    axes.set_ylim(len(gaps) - 0.4, -0.7)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds; each mark is a token, the longest gap is red")
    axes.set_title(title)
    return figure


def plot_fetch_or_compute(
    bandwidths: Sequence[float],
    predicted: Sequence[float],
    measured: Mapping[float, float],
    compute_predicted: float,
    compute_measured: float,
    crossing: float,
) -> Figure:
    """Time to first token against the bandwidth of the store.

    Args:
        bandwidths, predicted: bytes per second, and seconds.
        measured: bytes per second -> seconds.
        compute_predicted, compute_measured: seconds without a store.
        crossing: predicted bandwidth, in bytes per second, from which on fetching wins.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.plot(np.divide(bandwidths, 1e6), predicted, color=BLUE, label="fetched, predicted")
    axes.plot(
        np.divide(list(measured), 1e6),
        list(measured.values()),
        "D",
        color=BLUE,
        markeredgecolor=INK,
        label="fetched, measured",
    )
    axes.axhline(compute_predicted, color=ORANGE, linestyle="--", label="computed, predicted")
    axes.plot(
        [crossing / 1e6],
        [compute_measured],
        "s",
        color=ORANGE,
        markeredgecolor=INK,
        label="computed, measured",
    )
    axes.axvline(crossing / 1e6, color=INK, linestyle=":", linewidth=1.4)
    axes.annotate(
        f"break-even, predicted:\n{crossing / 1e6:.0f} MB/s",
        (crossing / 1e6, 1.0),
        (6, -34),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
    )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bandwidth of the store (MB/s, logarithmic)")
    axes.set_ylabel("time to first token (s)")
    axes.set_title("Left of the dotted line computing should be quicker, right of it fetching")
    axes.legend(loc="upper right")
    return figure


def plot_bars(values: Mapping[str, float], label: str, title: str, form: str = "{:.2f}") -> Figure:
    """A horizontal bar for each value.

    Args:
        label: what is measured, with its unit.
        form: how the number beside a bar is written.
    """
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(values) + 1.2))
    bars = axes.barh(list(values), list(values.values()), color=BLUE, height=0.62)
    axes.bar_label(bars, [" " + form.format(value) for value in values.values()])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    axes.set_title(title)
    return figure


def plot_goodput(rates: Mapping[str, Mapping[str, float]]) -> Figure:
    """Requests per second and GPU: groups of bars, one bar per source of the figure.

    Args:
        rates: source ("published", "simulated") -> arrangement -> requests per second and GPU.
    """
    figure, axes = plt.subplots(figsize=(8, 3.8))
    names = list(next(iter(rates.values())))
    width = 0.8 / len(rates)
    hatches = ("", "//", "..", "xx")
    for i, (source, values) in enumerate(rates.items()):
        places = np.arange(len(names)) + (i - (len(rates) - 1) / 2) * width
        bars = axes.bar(
            places,
            [values[name] for name in names],
            width * 0.94,
            label=source,
            color=_LOOKS[i][0],
            hatch=hatches[i],
            edgecolor="white",
        )
        axes.bar_label(bars, fmt="%.1f")
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("requests per second and GPU")
    axes.set_title("Within limits of latency, three GPUs apart do more than three times one")
    axes.legend(loc="upper left")
    return figure
