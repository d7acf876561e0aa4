"""Which calibration text, and how much of it: the pictures of notebook 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from utils.pipeline.confidence import ratio_interval, share_interval
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

LOOKS = {
    "customers": (BLUE, "o", "-"),
    "customers and novel": (INK, "D", "-"),
    "novel": (ORANGE, "s", "--"),
    "random tokens": (GREEN, "^", ":"),
}

Errors = Mapping[str, Sequence[float]]


def plot_calibration_choices(
    tokens: Sequence[int],
    errors: Mapping[str, Errors],
    rounding: Mapping[str, float],
    width: int,
    title: str,
) -> Figure:
    """A layer's error on held-out task text over calibration tokens: a panel for each method.

    Args:
        tokens: numbers of calibration tokens, rising.
        errors: method -> choice of text -> relative squared error of the output.
        rounding: method -> the error of round to nearest on the same grid.
        width: the layer's input channels.
        title: what the picture shows.
    """
    figure, panels = plt.subplots(
        1, len(errors), figsize=(9.5, 3.6), sharex=True, sharey=True, squeeze=False
    )
    for axes, (method, choices) in zip(panels[0], errors.items(), strict=True):
        axes.axhline(
            100 * rounding[method],
            color=GREY,
            linestyle="--",
            linewidth=1.5,
            label="round to nearest",
        )
        for choice, values in choices.items():
            color, marker, line = LOOKS[choice]
            axes.plot(
                tokens,
                [100 * value for value in values],
                color=color,
                marker=marker,
                linestyle=line,
                linewidth=1.8,
                label=choice,
            )
        axes.axvline(width, color=GREY, linestyle=":", linewidth=1.4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
        axes.set_ylim(bottom=0)
        axes.set_title(method, fontsize=11)
        axes.set_xlabel("calibration tokens (dotted: input channels)")
    panels[0][0].set_ylabel("relative squared error\nof the output (%)")
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12.5)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9.5)
    return figure


def plot_calibration_sweep(results: Mapping[str, Any], title: str) -> Figure:
    """Whole models, a row for each: English, the right answers, and exact match, with intervals.

    The two perplexities are relative to round to nearest on the same grid, compared on the same
    tokens.

    Args:
        results: of `benchmarks/calibration.py`: "merged" and "rtn", and under "gptq" a list of
            runs, each with its "choice", "tokens" and measures.
        title: what the picture shows.
    """
    rows: list[tuple[str, Mapping[str, Any], str, str]] = [
        ("16 bits", results["merged"], GREY, "P"),
        ("round to nearest", results["rtn"], GREY, "X"),
    ]
    for run in results["gptq"]:
        color, marker, _ = LOOKS[run["choice"]]
        rows.append((f"{run['choice']}, {run['tokens']:,}", run, color, marker))
    figure, panels = plt.subplots(1, 3, figsize=(11.5, 0.32 * len(rows) + 1.4), sharey=True)
    for axes, key in zip(panels, ("text_losses", "answer_losses", None), strict=True):
        for place, (_, run, color, marker) in enumerate(rows):
            middle, low, high = interval_of(run, results["rtn"], key)
            axes.plot([low, high], [place, place], color=color, linewidth=2)
            axes.plot(middle, place, marker=marker, color=color, markersize=7)
        if key:
            axes.axvline(1, color=GREY, linestyle="--", linewidth=1.4)
        axes.grid(axis="y", visible=False)
    for axes, what in zip(panels, ("English", "right answers"), strict=False):
        axes.set_xlabel(f"perplexity of {what},\nrelative to round to nearest")
    panels[2].set_xlabel("exact match (%)")
    panels[0].set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=9.5)
    panels[0].invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12.5)
    return figure


def interval_of(
    run: Mapping[str, Any], reference: Mapping[str, Any], key: str | None
) -> tuple[float, float, float]:
    """A run's measure with its 95 % interval: (value, low, high).

    Args:
        run, reference: measures of two models, from the benchmark.
        key: "text_losses" or "answer_losses": the ratio of the two perplexities, token by token.
            None: the run's exact match, in percent, without the reference.
    """
    if key is None:
        low, high = share_interval(
            round(run["exact_match"] * run["num_examples"]), run["num_examples"]
        )
        return 100 * run["exact_match"], 100 * low, 100 * high
    return ratio_interval(torch.tensor(run[key]), torch.tensor(reference[key]), block=1)


def sweep_lines(results: Mapping[str, Any]) -> list[str]:
    """The numbers of `plot_calibration_sweep`, a line for each model, with 95 % intervals."""
    rows = {"16 bits": results["merged"], "round to nearest": results["rtn"]}
    rows |= {f"{run['choice']}, {run['tokens']:,}": run for run in results["gptq"]}
    lines = [f"{'':28}{'English':^22}{'right answers':^24}{'exact match, %':^18}"]
    for name, run in rows.items():
        text, answer = (
            interval_of(run, results["rtn"], key) for key in ("text_losses", "answer_losses")
        )
        english = "{:.2f} ({:.2f} to {:.2f})".format(*text)
        answers = "{:.3f} ({:.3f} to {:.3f})".format(*answer)
        exact = "{:.1f} ({:.0f} to {:.0f})".format(*interval_of(run, run, None))
        lines.append(f"{name:28}{english:22}{answers:24}{exact:18}".rstrip())
    return lines


def plot_outcome(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Models side by side: right answers with their interval, English, and bytes.

    Args:
        rows: of `utils.pipeline.stages.report.table_rows`, or any with "label", "exact_match",
            "num_examples", "text_perplexity" and "bytes".
        title: what the picture shows.
    """
    figure, (exact, text, size) = plt.subplots(1, 3, figsize=(11.5, 3.0), sharey=True)
    for place, row in enumerate(rows):
        middle, low, high = interval_of(row, row, None)
        exact.plot([low, high], [place, place], color=BLUE, linewidth=2)
        exact.plot(middle, place, "o", color=BLUE, markersize=7)
        exact.annotate(
            f"{middle:.1f}",
            (middle, place),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9.5,
        )
    for axes, values, fmt in (
        (text, [row["text_perplexity"] for row in rows], "%.1f"),
        (size, [row["bytes"] / 1e6 for row in rows], "%.0f"),
    ):
        bars = axes.barh(range(len(rows)), values, 0.6, color=BLUE)
        axes.bar_label(bars, fmt=fmt, padding=3, fontsize=9.5)
        axes.margins(x=0.2)
    exact.set_yticks(range(len(rows)), [row["label"] for row in rows])
    exact.set_ylim(len(rows) - 0.5, -0.7)
    exact.set_xlim(-8, 108)
    exact.set_xlabel("exact match (%), 95 % interval")
    text.set_xlabel("perplexity, plain English")
    size.set_xlabel("weights on disk (MB)")
    for axes in (exact, text, size):
        axes.grid(axis="y", visible=False)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=12.5)
    return figure
