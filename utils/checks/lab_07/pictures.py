"""The pictures of lab 07: distributions as bars, and who sees whom in a tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

INK = "#1b1b1b"
GREY, BLUE, ORANGE = "#c9c9c9", "#1f5fa8", "#f2a65a"


def distributions(
    panels: Sequence[tuple[str, Sequence[float] | None, Sequence[float], Sequence[float]]],
    title: str,
) -> Figure:
    """One panel of bars per output place: what the draft says, what the target says, what came.

    Args:
        panels: (name, draft's probabilities or None, target's, shares that came), each [vocab].
        title: of the figure.
    """
    figure = Figure(figsize=(max(5.5, 2.9 * len(panels)), 3.1), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, draft, target, came) in zip(axes, panels, strict=True):
        rows = [
            ("draft's probability", draft, GREY, ""),
            ("target's probability: expected", target, BLUE, ""),
            ("yours: share of what came", came, ORANGE, "//"),
        ]
        shown = [row for row in rows if row[1] is not None]
        width = 0.8 / len(shown)
        for place, (label, heights, colour, hatch) in enumerate(shown):
            x = np.arange(len(target)) + (place - (len(shown) - 1) / 2) * width
            ax.bar(
                x,
                heights,
                width,
                label=label,
                color=colour,
                hatch=hatch,
                edgecolor=INK,
                linewidth=0.5,
            )
        ax.set_title(name, size=9)
        ax.set_xticks(range(len(target)))
        ax.set_xlabel("token", size=9)
        ax.tick_params(labelsize=8)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    axes[0].set_ylabel("probability", size=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, size=11)
    return figure


def masks(expected: Tensor, yours: Tensor, names: Sequence[str]) -> Figure:
    """Tree attention masks, bool [1 + m, 1 + m]. Cells that differ are crossed out."""
    both = (("expected", expected), ("yours", yours))
    size = len(names)
    side = 0.42 * size + 1.3
    figure = Figure(figsize=(2 * side + 0.3, side + 0.4), layout="constrained")
    for ax, (title, mask) in zip(figure.subplots(1, 2), both, strict=True):
        ax.imshow(mask.numpy(), cmap="Blues", vmin=0, vmax=1.4)
        for row in range(size):
            for column in range(size):
                if mask[row, column] != expected[row, column]:
                    colour = "white" if mask[row, column] else INK
                    ax.text(column, row, "×", ha="center", va="center", size=16, color=colour)
        ax.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        ax.grid(False)
        ax.grid(which="minor", color=INK, linewidth=0.4)
        ax.tick_params(which="minor", length=0)
        ax.set_xticks(range(size), names)
        ax.set_yticks(range(size), names)
        ax.tick_params(labelsize=8)
        ax.set_xlabel("is seen (key)", size=9)
        ax.set_ylabel("sees (query)", size=9)
        ax.set_title(title, size=10)
    figure.suptitle("Dark: who sees whom. ×: not as expected", size=11)
    return figure
