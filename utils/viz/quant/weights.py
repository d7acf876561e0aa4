"""What 4-bit weights cost: the pictures of notebook 09b."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import BLUE, COLORS, GREEN, GREY, INK, ORANGE, RED

_MARKERS = "so^Dv"
_HATCHES = ("", "////", "", "....", "xxxx")
# A method has one colour in all pictures; any other is red.
_TONES = {"RTN": GREY, "NF4": GREEN, "GPTQ": BLUE, "AWQ": ORANGE}

Point = tuple[float, float]


def plot_error_over_bits(
    series: Mapping[str, Sequence[Point]],
    title: str,
    *,
    xlabel: str = "bits per weight of the linear layers, with all that is stored beside them",
    ylabel: str = "error of the output (%)",
    floor: tuple[str, float] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """Points (bits, error): what a bit buys, by method. Few points make no curve, so none is drawn.

    Args:
        series: method -> points from few bits to many.
        title: the finding.
        floor: name and height of a line to compare with.
        labels: name -> a short text beside each of its points.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    if floor is not None:
        axes.axhline(floor[1], color=INK, linestyle="--", linewidth=1.5, label=floor[0])
    for (name, points), marker in zip(series.items(), _MARKERS, strict=False):
        bits, errors = zip(*points, strict=True)
        axes.plot(
            bits,
            errors,
            color=_TONES.get(name, RED),
            marker=marker,
            markersize=8,
            linestyle="none",
            label=name,
        )
        for text, point in zip((labels or {}).get(name, ()), points, strict=False):
            axes.annotate(text, point, xytext=(4, 5), textcoords="offset points", fontsize=8.5)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(x=0.12)  # room for the texts
    if floor is None:
        axes.set_ylim(bottom=0)
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=len(series) + 1, fontsize=9.5)
    return figure


def plot_awq_fold() -> Figure:
    """A drawing: where AWQ's scale s goes, so that nothing is left to compute at run time."""
    figure, axes = plt.subplots(figsize=(8.6, 2.9))
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 4.2)
    axes.axis("off")
    rows = (
        (3.0, "before", "norm\ntimes g", "x", "q_proj\nW"),
        (0.9, "after", "norm\ntimes g / s", "x / s", "q_proj\nround(W · s)"),
    )
    for y, name, norm, between, linear in rows:
        axes.text(0.1, y, name, va="center", weight="bold")
        for x, text, color in ((2.6, norm, "#e4e4e4"), (6.6, linear, "#a9c6ea")):
            box = {"boxstyle": "round,pad=0.5", "facecolor": color, "edgecolor": INK}
            axes.text(x, y, text, ha="center", va="center", bbox=box, linespacing=1.4)
        for left, right, text in ((3.6, 5.5, between), (7.8, 9.6, "")):
            axes.annotate("", (right, y), (left, y), arrowprops={"arrowstyle": "->", "color": INK})
            axes.text((left + right) / 2, y + 0.22, text, ha="center")
    axes.text(8.7, 3.2, "W x", ha="center", va="bottom")
    axes.text(8.7, 1.1, "nearly W x", ha="center", va="bottom")
    axes.set_title("The division by s hides in a weight that is there anyway")
    return figure


def plot_layer_errors(errors: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Bars: for each linear layer, the error of its output by method.

    Args:
        errors: layer -> method -> relative squared error.
        title: the finding.
    """
    methods = list(next(iter(errors.values())))
    figure, axes = plt.subplots(figsize=(9, 4.2))
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        places = np.arange(len(errors)) + (i - (len(methods) - 1) / 2) * width
        heights = [100 * errors[layer][method] for layer in errors]
        axes.bar(
            places,
            heights,
            width,
            color=_TONES.get(method, RED),
            hatch=_HATCHES[i],
            edgecolor=INK,
            linewidth=0.6,
            label=method,
        )
    axes.set_xticks(range(len(errors)), list(errors))
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("error of the output (%)")
    axes.set_title(title)
    axes.legend(ncols=len(methods), fontsize=9.5)
    return figure


def plot_scale_search(errors: Mapping[str, Mapping[float | None, float]]) -> Figure:
    """AWQ's search: the output error over the ratio, relative to no scaling.

    Args:
        errors: layer -> ratio -> error; the ratio None is without scaling.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.axhline(1, color=INK, linestyle="--", linewidth=1.5, label="no scaling")
    for (name, found), color, marker in zip(errors.items(), COLORS, _MARKERS, strict=False):
        ratios = [ratio for ratio in found if ratio is not None]
        relative = [found[ratio] / found[None] for ratio in ratios]
        axes.plot(ratios, relative, color=color, linewidth=1.8, label=name)
        best = int(np.argmin(relative))
        axes.plot(ratios[best], relative[best], marker=marker, color=color, markersize=9)
    axes.set_xlabel("ratio: how much the inputs' magnitude decides")
    axes.set_ylabel("error of the output (without scaling: 1)")
    axes.set_title("Each layer has its best ratio (marked)")
    axes.set_ylim(0, 1.6)
    axes.legend(fontsize=9.5, ncols=2)
    return figure


def plot_calibration(
    tokens: Sequence[int], errors: Mapping[str, Sequence[float]], rounding: float, width: int
) -> Figure:
    """The error on held-out inputs over the number of calibration tokens.

    Args:
        tokens: numbers of calibration tokens, rising.
        errors: method -> relative squared error of the output; "GPTQ" and "AWQ" are among them.
        rounding: the same for round to nearest, which needs no tokens.
        width: input channels of the layer.
    """
    figure, axes = plt.subplots(figsize=(8, 4.2))
    axes.axhline(100 * rounding, color=GREY, linestyle="--", linewidth=1.8, label="RTN")
    for (name, values), marker in zip(errors.items(), _MARKERS, strict=False):
        axes.plot(
            tokens,
            [100 * v for v in values],
            color=_TONES.get(name, RED),
            marker=marker,
            linewidth=1.8,
            label=name,
        )
    axes.axvline(width, color=INK, linestyle=":", linewidth=1.5)
    axes.text(width, 0, " tokens = channels", fontsize=9, va="bottom", ha="right", rotation=90)
    axes.set_xscale("log", base=2)
    axes.set_xticks(tokens, [str(t) for t in tokens])
    axes.set_xlabel("calibration tokens")
    axes.set_ylabel("error on held-out text (%)")
    axes.set_ylim(bottom=0)
    first, *_, last = (gptq / awq for gptq, awq in zip(errors["GPTQ"], errors["AWQ"], strict=True))
    axes.set_title(
        f"GPTQ's error is {first:.2f} times AWQ's with {tokens[0]} tokens, "
        f"{last:.2f} times with {tokens[-1]}",
        fontsize=11.5,
    )
    axes.legend(fontsize=9.5)
    return figure
