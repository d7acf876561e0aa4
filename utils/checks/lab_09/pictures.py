"""The pictures of lab 09: where the error sits, how often codes are used, what a search saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

INK = "#1b1b1b"
BLUE, ORANGE = "#1f5fa8", "#f2a65a"


def group_errors(
    weight: Tensor,
    expected: Tensor,
    yours: Tensor,
    group_size: int,
    title: str,
    names: tuple[str, str] = ("expected", "yours"),
) -> Figure:
    """Heat maps of the root mean square error of each group; all weights are [out, in]."""
    maps = [
        (back.double() - weight.double()).unflatten(1, (-1, group_size)).square().mean(-1).sqrt()
        for back in (expected, yours)
    ]
    finite = [float(m[m.isfinite()].max()) if m.isfinite().any() else 0.0 for m in maps]
    # A broken answer can be off by thousands: the scale ends where the right one can still be seen.
    top = min(max(finite), 8 * finite[0] or max(finite)) or 1.0
    figure = Figure(figsize=(6.6, 0.34 * len(weight) + 1.7), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, name, errors in zip(axes, names, maps, strict=True):
        ax.grid(False)  # the style of the notebooks would draw it across the numbers
        image = ax.imshow(errors.numpy(), cmap="Blues", vmin=0, vmax=top, aspect="auto")
        for row in range(errors.shape[0]):
            for column in range(errors.shape[1]):
                value = float(errors[row, column])
                ax.text(
                    column,
                    row,
                    f"{value:.3g}",
                    ha="center",
                    va="center",
                    size=8,
                    color="white" if value > 0.6 * top else INK,
                )
        ax.set_title(name, size=10)
        ax.set_xlabel("group of input channels", size=9)
        ax.set_ylabel("output channel", size=9)
        ax.set_xticks(range(errors.shape[1]))
        ax.set_yticks(range(errors.shape[0]))
        ax.tick_params(labelsize=8)
    figure.colorbar(image, ax=axes, label="error (root mean square)", extend="max")
    figure.suptitle(title, size=11)
    return figure


def code_histogram(
    rows: Sequence[tuple[str, Tensor]], num_codes: int, title: str, ylabel: str = "share of weights"
) -> Figure:
    """How often each code is used, as bars side by side: (label, codes of any shape)."""
    figure = Figure(figsize=(6.6, 3.0), layout="constrained")
    ax = figure.subplots()
    width = 0.8 / len(rows)
    styles = ((BLUE, ""), (ORANGE, "//"))
    for place, ((label, codes), (colour, hatch)) in enumerate(zip(rows, styles, strict=False)):
        # Codes beyond the last one are counted there, so that they are seen.
        clipped = codes.flatten().long().clamp(0, num_codes - 1).numpy()
        share = np.bincount(clipped, minlength=num_codes) / len(clipped)
        x = np.arange(num_codes) + (place - (len(rows) - 1) / 2) * width
        edge = INK if num_codes <= 16 else None
        ax.bar(
            x,
            share,
            width,
            label=label,
            color=colour,
            hatch=hatch if edge else None,
            edgecolor=edge,
            linewidth=0.5,
        )
    if num_codes <= 16:
        ax.set_xticks(range(num_codes))
    ax.set_xlabel("code")
    ax.set_ylabel(ylabel)
    ax.set_title(title, size=11)
    ax.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure


def seen_and_unseen(shares: Mapping[str, tuple[float, float]]) -> Figure:
    """The output error on some inputs (rule, yours), as a share of that of plain rounding."""
    figure = Figure(figsize=(5.4, 2.8), layout="constrained")
    ax = figure.subplots()
    places = np.arange(len(shares))
    rows = (("the lesson's rule", ORANGE, "//", -0.2), ("yours", BLUE, "", 0.2))
    for number, (label, colour, hatch, shift) in enumerate(rows):
        heights = [pair[number] for pair in shares.values()]
        bars = ax.bar(
            places + shift,
            heights,
            0.4,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor=INK,
            linewidth=0.5,
        )
        ax.bar_label(bars, fmt="%.2f", fontsize=9)
    ax.axhline(1, color=INK, linestyle=":", linewidth=1)
    ax.set_xticks(places, list(shares))
    ax.set_ylim(0, 1.15)
    ax.set_ylabel("output error\n(1 = plain rounding)")
    ax.set_title("A scale of its own for each channel", size=11)
    ax.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure


def layer_errors(names: Sequence[str], rtn: Sequence[float], gptq: Sequence[float]) -> Figure:
    """The relative output error of each linear layer, in percent, with both methods."""
    figure = Figure(figsize=(6.6, 0.36 * len(names) + 1.2), layout="constrained")
    ax = figure.subplots()
    y = np.arange(len(names))
    rows = (("round to nearest", rtn, ORANGE, "//", -0.2), ("your GPTQ", gptq, BLUE, "", 0.2))
    for label, errors, colour, hatch, shift in rows:
        ax.barh(
            y + shift,
            [100 * error for error in errors],
            0.4,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor=INK,
            linewidth=0.5,
        )
    ax.set_yticks(y, names)
    ax.tick_params(labelsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("squared error of the layer's output, in % of its square")
    ax.set_title("GPTQ changes what each layer computes less than rounding does", size=11)
    ax.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure


def shares(by_bits: Mapping[int, float]) -> Figure:
    """The squared error of grids of one's own, as a share of that of the full range."""
    figure = Figure(figsize=(4.4, 2.6), layout="constrained")
    ax = figure.subplots()
    bars = ax.bar([f"{bits} bits" for bits in by_bits], list(by_bits.values()), 0.5, color=BLUE)
    ax.bar_label(bars, fmt="%.2f", fontsize=9)
    ax.axhline(1, color=INK, linestyle=":", linewidth=1)
    ax.set_ylim(0, 1.15)
    ax.set_ylabel("squared error\n(1 = full range)")
    ax.set_title("A grid that gives up the largest weights", size=11)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure
