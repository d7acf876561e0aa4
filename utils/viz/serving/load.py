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
    step: float,
    capacity: float,
    knee: float,
    simulated: Mapping[float, float],
    same_arrivals: Sequence[float],
    titles: tuple[str, str],
) -> Figure:
    """TPOT and SLO attainment against the request rate, predicted and measured.

    Args:
        reports: by request rate, per second, ascending.
        step: seconds of a step with nothing to do but one request; the prediction is
            `step / (1 - rate / capacity)`.
        capacity: requests per second beyond which queues grow for ever.
        knee: the rate at which the predicted TPOT reaches that of `slo`.
        simulated: request rate, ascending -> the part of the promises that a simulation keeps,
            of many requests.
        same_arrivals: the same for the few requests of each report, as they came.
        titles: the findings, left and right.
    """
    rates = list(reports)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0))
    fine = np.linspace(0, min(capacity * 0.97, 1.1 * max(rates)), 200)
    left.plot(
        fine, 1e3 * step / (1 - fine / capacity), color=GREY, label="formula (mean): a / (1 - load)"
    )
    medians = [1e3 * report.percentile("tpot", 50) for report in reports.values()]
    left.plot(rates, medians, "o", color=BLUE, markersize=8, label="measured (median)")
    left.axhline(1e3 * slo.tpot, color=ORANGE, linestyle="--", label="promised")
    left.set_ylim(0, 1.25 * max(*medians, 1e3 * slo.tpot))
    left.set_title(titles[0], fontsize=11)
    left.set_ylabel("time per output token (ms)")
    left.legend()

    kept = [100 * report.attainment(slo) for report in reports.values()]
    right.plot(rates, kept, "o", color=BLUE, markersize=8, label="measured", zorder=3)
    right.plot(
        rates,
        [100 * share for share in same_arrivals],
        "D",
        color=INK,
        fillstyle="none",
        markersize=7,
        label="simulated, same arrivals",
    )
    right.plot(
        list(simulated),
        [100 * share for share in simulated.values()],
        color=GREY,
        label="simulated, many requests",
    )
    right.axvline(knee, color=ORANGE, linestyle="--", label=f"knee of the mean: {knee:.1f}/s")
    right.axvline(capacity, color=INK, linestyle=":", label=f"capacity: {capacity:.1f}/s")
    right.set_ylim(-4, 104)
    right.set_title(titles[1], fontsize=11)
    right.set_ylabel("answers in time (%)")
    # Below the axes: points may lie anywhere in them.
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2, fontsize=8.5)
    for axes in (left, right):
        axes.set_xlim(0, 1.1 * max(*rates, capacity))
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
    """Where the time of a token goes.

    Args:
        parts: seconds per token, by name.
        title: what one sees.
    """
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(parts) + 1.3))
    names = list(parts)[::-1]
    values = [1e3 * parts[name] for name in names]
    axes.barh(names, values, color=[BLUE if "execute" in name else ORANGE for name in names])
    for row, value in enumerate(values):
        axes.text(value * 1.1, row, f"{value:.3g} ms", va="center", fontsize=10)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("per generated token (ms, each line ten times the last)")
    axes.set_title(title)
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
