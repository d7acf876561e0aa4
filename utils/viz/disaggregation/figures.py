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
    compute_measured: float,
    crossings: tuple[float, float],
) -> Figure:
    """Time to first token against the bandwidth of the store.

    Args:
        bandwidths, predicted: bytes per second, and seconds.
        measured: bytes per second -> seconds.
        compute_measured: seconds without a store.
        crossings: bytes per second from which on fetching wins, predicted and measured.
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
    axes.axhline(compute_measured, color=ORANGE, linestyle="--", label="computed, measured")
    for crossing, style in zip(crossings, (":", "-"), strict=True):
        axes.axvline(crossing / 1e6, color=INK, linestyle=style, linewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(
        "bandwidth of the store (MB/s, logarithmic); upright: break-even, dotted as predicted"
    )
    axes.set_ylabel("time to first token (s)")
    measured_mb, predicted_mb = crossings[1] / 1e6, crossings[0] / 1e6
    axes.set_title(
        f"Fetching wins from {measured_mb:.0f} MB/s on; the prediction was {predicted_mb:.0f} MB/s"
    )
    axes.legend(loc="upper right")
    return figure


def plot_in_time(
    served: Mapping[str, Sequence[tuple[float, float]]], ttft: float, marks: Sequence[float]
) -> Figure:
    """How many requests are served in time, against the limit of the gap between two tokens.

    Args:
        served: arrangement -> for each request its time to first token and its longest gap, in
            seconds.
        ttft: limit of the time to first token, in seconds.
        marks: limits of the gap, in seconds, that the title and dotted lines name.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    longest = max(gap for pairs in served.values() for _, gap in pairs)
    limits = np.geomspace(0.05, max(2.0, 1.2 * longest), 400)
    best: dict[float, list[str]] = {}
    for (name, pairs), (color, _) in zip(served.items(), _LOOKS[1:], strict=False):
        counts = [in_time(pairs, ttft, limit) for limit in limits]
        axes.plot(1e3 * limits, counts, color=color, label=name, linewidth=2)
    for mark in marks:
        axes.axvline(1e3 * mark, color=INK, linestyle=":", linewidth=1.2)
        counts_at = {name: in_time(pairs, ttft, mark) for name, pairs in served.items()}
        top = max(counts_at.values())
        best[mark] = [f"{name} ({top})" for name, count in counts_at.items() if count == top]
        if len(best[mark]) == len(served):
            best[mark] = [f"all alike ({top})"]
    total = len(next(iter(served.values())))
    axes.set_xscale("log")
    ticks = [tick for tick in (50, 100, 200, 400, 1000, 2000, 4000) if tick <= 1e3 * limits[-1]]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-0.3, total + 0.6)
    axes.set_xlabel("longest gap allowed within an answer (ms, logarithmic)")
    axes.set_ylabel(f"requests in time, of {total}")
    said = "; ".join(f"at {1e3 * mark:.0f} ms: {', '.join(best[mark])}" for mark in marks)
    axes.set_title(f"Most requests in time {said}", fontsize=11)
    axes.legend(loc="upper left")
    return figure


def in_time(pairs: Sequence[tuple[float, float]], ttft: float, gap: float) -> int:
    """How many pairs of time to first token and longest gap keep both limits. All in seconds."""
    return sum(first <= ttft and longest <= gap for first, longest in pairs)


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
    """Requests per second and GPU as multiples of "together", one bar per source of the figure.

    Args:
        rates: source ("published", "simulated") -> arrangement -> requests per second and GPU.
            The first arrangement is what the others are divided by.
    """
    figure, axes = plt.subplots(figsize=(8, 3.8))
    names = list(next(iter(rates.values())))
    width = 0.8 / len(rates)
    hatches = ("", "//", "..", "xx")
    for i, (source, values) in enumerate(rates.items()):
        places = np.arange(len(names)) + (i - (len(rates) - 1) / 2) * width
        bars = axes.bar(
            places,
            [values[name] / values[names[0]] for name in names],
            width * 0.94,
            label=source,
            color=_LOOKS[i][0],
            hatch=hatches[i],
            edgecolor="white",
        )
        axes.bar_label(bars, fmt="%.1f")
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(f'rate per GPU, as a multiple of "{names[0]}"')
    said = " and ".join(
        f"{values[names[-1]] / values[names[0]]:.1f} ({source})" for source, values in rates.items()
    )
    axes.set_title(f'Per GPU, "{names[-1]}" reaches {said} times "{names[0]}"', fontsize=11)
    axes.legend(loc="upper left")
    return figure
