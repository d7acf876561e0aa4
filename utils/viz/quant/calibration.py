"""Which calibration text, and how much of it: the pictures of notebook 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.pipeline.confidence import share_interval
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
    errors: Mapping[tuple[str, str], Errors],
    rounding: Mapping[tuple[str, str], float],
    widths: Mapping[str, int],
) -> Figure:
    """The error on held-out task text over calibration tokens: a row of panels for each method.

    Args:
        tokens: numbers of calibration tokens, rising.
        errors: (method, layer) -> choice of text -> relative squared error of the output.
        rounding: (method, layer) -> the error of round to nearest on the same grid.
        widths: layer -> its input channels.
    """
    methods = list(dict.fromkeys(method for method, _ in errors))
    layers = list(dict.fromkeys(layer for _, layer in errors))
    figure, grid = plt.subplots(
        len(methods),
        len(layers),
        figsize=(9.5, 3.1 * len(methods)),
        sharex=True,
        sharey="col",
        squeeze=False,
    )
    for (method, layer), choices in errors.items():
        axes: Axes = grid[methods.index(method)][layers.index(layer)]
        axes.axhline(
            100 * rounding[method, layer],
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
        axes.axvline(widths[layer], color=GREY, linestyle=":", linewidth=1.4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
        axes.set_ylim(bottom=0)
        axes.set_title(f"{method}, {layer}: {_spread(choices)}", fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("calibration tokens (dotted: input channels)")
    for row in grid:
        row[0].set_ylabel("squared error of output (%)")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9.5)
    return figure


def _spread(choices: Errors) -> str:
    """How much the choice of text matters at the largest size."""
    last = [values[-1] for values in choices.values()]
    return f"worst text {max(last) / min(last):.1f} times best"


def plot_calibration_sweep(results: Mapping[str, Any]) -> Figure:
    """Whole models: perplexity on English, on the answers, and right answers, by choice and size.

    Args:
        results: of `benchmarks/calibration.py`: "merged" and "rtn", and under "gptq" a list of
            runs, each with its "choice", "tokens" and measures.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in results["gptq"]:
        runs.setdefault(run["choice"], []).append(run)
    figure, (text, answer, exact) = plt.subplots(1, 3, figsize=(11.5, 4.3))
    panels = ((text, "text_perplexity"), (answer, "answer_perplexity"))
    for choice, found in runs.items():
        color, marker, line = LOOKS[choice]
        tokens = [run["tokens"] for run in found]
        for axes, key in panels:
            axes.plot(
                tokens,
                [run[key] for run in found],
                color=color,
                marker=marker,
                linestyle=line,
                linewidth=1.8,
                label=choice,
            )
    for axes, key in panels:
        for name, style in (("merged", "-"), ("rtn", "--")):
            label = {"merged": "16 bits", "rtn": "round to nearest"}[name]
            axes.axhline(
                results[name][key], color=GREY, linestyle=style, linewidth=1.4, label=label
            )
        sizes = sorted({run["tokens"] for run in results["gptq"]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("calibration tokens")
    text.set_ylabel("perplexity, plain English")
    answer.set_ylabel("perplexity, right answers")
    text.set_title(_best("English", runs, "text_perplexity"), fontsize=11)
    answer.set_title(_best("Answers", runs, "answer_perplexity"), fontsize=11)
    _draw_intervals(exact, results, runs)
    handles, labels = text.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9.5)
    return figure


def _best(what: str, runs: Mapping[str, list[dict[str, Any]]], key: str) -> str:
    last = {choice: found[-1][key] for choice, found in runs.items()}
    return f"{what}: best with\n{min(last, key=last.__getitem__)}"


def _draw_intervals(
    axes: Axes, results: Mapping[str, Any], runs: Mapping[str, list[dict[str, Any]]]
) -> None:
    """A line for each model: its share of right answers, with the 95 % interval."""
    rows: list[tuple[str, dict[str, Any], str, str]] = [
        ("16 bits", results["merged"], GREY, "P"),
        ("round to nearest", results["rtn"], GREY, "X"),
    ]
    for choice, found in runs.items():
        color, marker, _ = LOOKS[choice]
        rows += [(f"{choice}, {run['tokens']:,}", run, color, marker) for run in found]
    for place, (_, run, color, marker) in enumerate(rows):
        low, high = _interval(run)
        axes.plot([100 * low, 100 * high], [place, place], color=color, linewidth=2)
        axes.plot(100 * run["exact_match"], place, marker=marker, color=color, markersize=7)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8.5)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("exact match (%), 95 % interval")
    overlap = _overlapping([row[1] for row in rows[2:]])
    axes.set_title(f"Right answers: {overlap}", fontsize=11)


def _interval(run: Mapping[str, Any]) -> tuple[float, float]:
    """The 95 % interval of a run's share of right answers."""
    return share_interval(round(run["exact_match"] * run["num_examples"]), run["num_examples"])


def _overlapping(runs: list[dict[str, Any]]) -> str:
    bounds = [_interval(run) for run in runs]
    same = max(low for low, _ in bounds) <= min(high for _, high in bounds)
    return "all intervals\noverlap" if same else "the intervals\ntell some apart"
