"""Figures of a server under load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.serving.load_report import SLO, LoadReport
from utils.viz.style import BLUE, GREY, INK, ORANGE


def plot_knee(
    reports: Mapping[float, LoadReport],
    slo: SLO,
    formula: tuple[float, float],
    knee: float,
    band: Mapping[float, Sequence[float]],
    titles: tuple[str, str],
) -> Figure:
    """TPOT and SLO attainment against the request rate, predicted and measured.

    Args:
        reports: by request rate, per second, ascending.
        slo: what is promised; its TPOT is drawn on the left.
        formula: the TPOT of a lone request in seconds, and the capacity in requests per second;
            the predicted mean is `TPOT / (1 - rate / capacity)`.
        knee: the rate at which the predicted TPOT reaches that of `slo`.
        band: request rate, ascending -> the attainment (0 to 1) that simulations predict: low,
            median, high.
        titles: the findings, left and right.
    """
    alone, capacity = formula
    rates = list(reports)
    end = min(1.25 * max(rates), max(1.02 * max(rates), 0.99 * capacity))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.3))
    fine = np.linspace(0, min(0.98 * capacity, end), 200)
    means = [1e3 * float(np.mean(report.values("tpot"))) for report in reports.values()]
    left.plot(fine, 1e3 * alone / (1 - fine / capacity), color=GREY, label="formula")
    left.plot(rates, means, "o", color=BLUE, markersize=8, label="measured mean")
    left.axhline(1e3 * slo.tpot, color=ORANGE, linestyle="--", label="promised (SLO)")
    left.set_ylim(0, 1.15 * max(*means, 1e3 * slo.tpot, 1e3 * alone / (1 - rates[-1] / capacity)))
    left.set_title(titles[0], fontsize=11)
    left.set_ylabel("time per output token (ms)")
    left.legend(loc="upper left")

    at = [rate for rate in band if rate <= end]
    low, middle, high = (100 * np.array([band[rate][i] for rate in at]) for i in range(3))
    right.fill_between(at, low, high, color="#c9d3e6", label="simulated, 5th to 95th percentile")
    right.plot(at, middle, color=GREY, label="simulated, median")
    kept = [100 * report.attainment(slo) for report in reports.values()]
    right.plot(rates, kept, "o", color=BLUE, markersize=8, label="measured", zorder=3)
    right.axhline(90, color=ORANGE, linestyle="--", label="nine out of ten")
    right.axvline(knee, color=INK, linestyle=":", label=f"knee of the mean: {knee:.1f}/s")
    right.set_ylim(-4, 104)
    right.set_title(titles[1], fontsize=11)
    right.set_ylabel("answers in time (%)")
    # Below the axes: points may lie anywhere in them.
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2, fontsize=8.5)
    for axes in (left, right):
        axes.set_xlim(0, end)
        axes.set_xlabel("requests per second")
    return figure


def plot_omission(report: LoadReport) -> Figure:
    """How long each request waited for its first token, counted in two ways."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    numbers = range(1, len(report.succeeded) + 1)
    axes.plot(numbers, report.values("ttft"), "o-", color=BLUE, label="from when it was to be sent")
    axes.plot(
        numbers, report.values("ttft_from_sent"), "s--", color=ORANGE, label="from when it was sent"
    )
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(numbers))
    axes.set_xlabel("request")
    axes.set_ylabel("time to first token (s)")
    axes.set_title("A tool that waits for answers does not see who waits for the tool")
    axes.legend()
    return figure


def plot_time_per_token(parts: Mapping[str, float], title: str) -> Figure:
    """Where the time of a token goes: all parts in one bar, and below it the small ones enlarged.

    Args:
        parts: seconds per token, by name. The longest part is left out below.
        title: what one sees.
    """
    figure, (whole, zoom) = plt.subplots(
        2, 1, figsize=(8, 0.4 * len(parts) + 2.4), height_ratios=[1, 0.45 * len(parts) + 0.6]
    )
    longest = max(parts, key=lambda name: parts[name])
    small = [name for name in parts if name != longest]
    ms = {name: 1e3 * value for name, value in parts.items()}
    rest = sum(ms[name] for name in small)
    whole.barh([0], [ms[longest]], color=BLUE)
    whole.barh([0], [rest], left=[ms[longest]], color=ORANGE)
    label = f"{longest}: {ms[longest]:.3g} ms"
    whole.text(ms[longest] / 2, 0, label, color="white", ha="center", va="center")
    whole.text(ms[longest] + rest, 0, f" all others: {rest:.3g} ms", va="center")
    whole.set_xlim(0, 1.3 * (ms[longest] + rest))
    whole.set_yticks([])
    whole.set_title(title)
    zoom.barh(small[::-1], [ms[name] for name in small[::-1]], color=ORANGE)
    for row, name in enumerate(small[::-1]):
        zoom.text(ms[name], row, f" {ms[name]:.3g} ms", va="center", fontsize=10)
    zoom.set_xlim(0, 1.2 * max(ms[name] for name in small))
    for axes in (whole, zoom):
        axes.grid(axis="y", visible=False)
    zoom.set_xlabel("milliseconds per generated token (below: only the small parts)")
    return figure


def plot_histogram(
    bounds: Sequence[float], counts: Sequence[float], exact: Sequence[float]
) -> Figure:
    """A histogram of `/metrics` beside the values that it does not know.

    Args:
        bounds: upper bounds of the buckets, in seconds, ascending.
        counts: values in each bucket (not cumulative).
        exact: the values themselves, as the client measured them, in seconds.
    """
    figure, axes = plt.subplots(figsize=(8, 3.4))
    lower = [0.0, *bounds[:-1]]
    widths = [1e3 * (b - a) for a, b in zip(lower, bounds, strict=True)]
    axes.bar(
        [1e3 * a for a in lower],
        counts,
        widths,
        align="edge",
        color="#a9c6ea",
        edgecolor="white",
        label="buckets of the server",
    )
    axes.plot(
        [1e3 * v for v in exact],
        [0.15] * len(exact),
        "|",
        color=INK,
        markersize=14,
        markeredgewidth=2,
        label="single requests, seen by the client",
    )
    axes.set_ylim(0, 1.45 * max(counts))  # room for the legend
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("time to first token (ms)")
    axes.set_ylabel("requests")
    axes.set_title("A histogram keeps counts, and forgets the values")
    axes.legend()
    return figure
