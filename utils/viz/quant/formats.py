"""Formats of 4 and 8 bits in pictures: a block's scale, errors by size, and what a model loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.quant.formats import E2M1, mxfp4, nvfp4
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

SCALES = {"A power of two (MXFP4)": mxfp4, "An E4M3 number (NVFP4)": nvfp4}
NEIGHBOR = 7.0  # the largest weight of another block, which fixes NVFP4's global scale


def block_of(largest: float) -> Tensor:
    """Sixteen weights of a normal distribution, and their largest magnitude; float32 [16].

    Args:
        largest: the magnitude that the largest one gets. The others stay where they are.
    """
    weights = torch.randn(16, generator=torch.Generator().manual_seed(3)).clamp(-1.8, 1.8)
    weights[weights.abs().argmax()] = largest
    return weights


def plot_block(largest: float) -> Figure:
    """One block of 16 weights, and the E2M1 values that each kind of scale offers to it.

    The titles say the error of the other 15 weights: how well the largest one is met depends on
    where it lies between two values, which has nothing to do with the kind of scale.

    Args:
        largest: of its magnitudes.
    """
    weights = block_of(largest)
    rest = weights.abs() < weights.abs().max()
    figure, panels = plt.subplots(len(SCALES), figsize=(8.5, 4.6), sharex=True)
    for axes, (name, quantize) in zip(panels, SCALES.items(), strict=True):
        quantized = quantize(torch.stack([weights, torch.full((16,), NEIGHBOR)]), 16)
        factor = float(quantized.scales[0, 0])
        read = quantized.dequantize()[0]
        levels = E2M1.decode(torch.arange(16)) * factor
        error = float((read - weights)[rest].square().sum() / weights[rest].square().sum())
        axes.vlines(levels.tolist(), -0.25, 0.25, color=GREY, linewidth=1.2)
        for weight, value in zip(weights.tolist(), read.tolist(), strict=True):
            axes.plot([weight, value], [1, 0], color=BLUE, linewidth=0.8, alpha=0.6)
        axes.plot(weights, np.ones(16), "o", color=BLUE, markersize=6)
        axes.plot(read, np.zeros(16), "s", color=ORANGE, markersize=6)
        axes.set_yticks([0, 1], ["read back", "weights"])
        axes.set_ylim(-0.45, 1.3)
        axes.set_xlim(-8.2, 8.2)
        axes.grid(visible=False)
        said = f"{name}, here {factor:.3f}: the other 15 weights have {error:.2%} squared error"
        axes.set_title(said, color=INK, fontsize=10.5)
    panels[-1].set_xlabel("weight (gray lines: the 15 values of E2M1, times the scale)")
    return figure


def block_explorer() -> Explorer:
    """Move a block's largest weight, and see what each kind of scale makes of the others."""
    largest = ipywidgets.FloatSlider(
        3.4,  # one step before the jump
        min=2.0,
        max=7.0,
        step=0.1,
        description="largest weight",
        style={"description_width": "auto"},
    )
    return Explorer(plot_block, largest=largest)


def plot_errors(rows: Mapping[str, tuple[float, float, float]], title: str) -> Figure:
    """The relative squared error of formats, on two kinds of weights; one line for each format.

    Args:
        rows: by name: bits per weight, and the errors of a model's weights and of normal numbers
            (0.01 is 1 %).
        title: what the picture shows.
    """
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 1.5))
    kinds = ((BLUE, "o", "the model's weights"), (ORANGE, "s", "normal numbers"))
    heights = range(len(rows) - 1, -1, -1)  # the first row on top
    for i, (color, marker, label) in enumerate(kinds, 1):
        errors = [100 * row[i] for row in rows.values()]
        axes.plot(errors, heights, marker, color=color, markersize=8, alpha=0.85, label=label)
    axes.set_yticks(list(heights), [f"{name} ({row[0]:.2f} bits)" for name, row in rows.items()])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("relative squared error (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9.5)
    axes.set_title(title, color=INK)
    return figure


def plot_channels(before: Tensor, after: Tensor, title: str) -> Figure:
    """The largest magnitude of each input channel, sorted, before and after SmoothQuant's shift.

    Args:
        before, after: [in].
        title: what the picture shows.
    """
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for values, color, label in ((before, ORANGE, "inputs"), (after, BLUE, "inputs, smoothed")):
        share = values.sort(descending=True).values / values.max()
        axes.plot(np.arange(1, len(share) + 1), share, color=color, label=label)
    axes.axhline(1 / 127, color=GREY, linestyle="--", linewidth=1, label="one step of int8 (1/127)")
    axes.set_yscale("log")
    axes.set_xlabel("input channel, loudest first")
    axes.set_ylabel("largest magnitude,\nshare of the loudest (log)")
    axes.legend(loc="upper right", fontsize=9.5)
    axes.set_title(title, color=INK)
    return figure


def plot_quality(
    rows: Sequence[tuple[str, float, float, float]], title: str, *, end: float = 50.0
) -> Figure:
    """How much perplexity each format costs, with intervals.

    Args:
        rows: name, ratio to the unquantized model, lower and upper end of its interval.
        title: what the picture shows.
        end: of the axis, in percent. What lies beyond is written at the edge as a number.
    """
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 1.1))
    for i, (_, ratio, low, high) in enumerate(reversed(rows)):
        percent = 100 * (ratio - 1)
        if percent > end:
            note = f"{percent:.0f} % \N{RIGHTWARDS ARROW}"
            axes.annotate(note, (end, i), ha="right", va="center", color=BLUE, fontsize=9.5)
            continue
        axes.plot([100 * (low - 1), 100 * (high - 1)], [i, i], color=BLUE, linewidth=2)
        axes.plot(percent, i, "o", color=BLUE, markersize=5)
    axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(right=end + 1)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_xlabel("perplexity above that of the unquantized model (%), 95 % intervals")
    axes.set_title(title, color=INK)
    return figure
