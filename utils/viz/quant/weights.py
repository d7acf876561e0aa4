"""What 4-bit weights cost: the pictures of notebook 09b."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

_MARKERS = "so^Dv"
_HATCHES = ("", "////", "", "....", "xxxx")
# A method has one colour in all pictures; any other is red.
_TONES = {"RTN": GREY, "GPTQ": BLUE, "AWQ": ORANGE}
_DAMPED = {"GPTQ, strongly damped": GREEN, "GPTQ, hardly damped": RED}

Ratio = tuple[float, float, float]


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
            color=_tone(method),
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


def plot_perplexity_ratios(ratios: Mapping[str, Ratio], reference: str, title: str) -> Figure:
    """One row for each model: its perplexity relative to that of a reference, with an interval.

    A dot is hollow where its interval holds 1: the text can't tell these two models apart.

    Args:
        ratios: name -> (ratio, low, high), from top to bottom.
        reference: what the ratios are relative to.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(8.8, 1.3 + 0.4 * len(ratios)))
    axes.axvline(1, color=INK, linestyle="--", linewidth=1.5)
    for row, (name, (ratio, low, high)) in enumerate(ratios.items()):
        face = "white" if low <= 1 <= high else _tone(name)
        axes.plot([low, high], [row, row], color=_tone(name), linewidth=3)
        axes.plot(ratio, row, "o", color=_tone(name), markersize=9, markerfacecolor=face)
        axes.text(high, row, f"  {ratio:.3f}", va="center", fontsize=9.5)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.margins(x=0.12)  # room for the numbers
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"perplexity, relative to {reference} (hollow: the interval holds 1)")
    axes.set_title(title)
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
            color=(_TONES | _DAMPED).get(name, RED),
            marker=marker,
            linewidth=1.8,
            label=name,
        )
    axes.axvline(width, color=INK, linestyle=":", linewidth=1.5)
    axes.text(0.96 * width, 0.03, f"{width:,} channels", fontsize=10, va="bottom", ha="right")
    axes.set_xscale("log", base=2)
    axes.set_xticks(tokens, [f"{t:,}" for t in tokens])
    axes.set_xlabel("calibration tokens")
    axes.set_ylabel("error on held-out text (%)")
    axes.set_ylim(bottom=0)
    first, *_, last = (gptq / awq for gptq, awq in zip(errors["GPTQ"], errors["AWQ"], strict=True))
    axes.set_title(
        f"GPTQ's error is {first:.2f} times AWQ's with {tokens[0]:,} tokens, "
        f"{last:.2f} times with {tokens[-1]:,}",
        fontsize=11.5,
    )
    axes.legend(fontsize=9.5)
    return figure


def _tone(name: str) -> str:
    """The colour of a method, whose name may be followed by its settings."""
    return _TONES.get(name.partition(",")[0], RED)
