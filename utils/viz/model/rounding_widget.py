"""Two logits on the grid of a number format: move them, and see when rounding ties them."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

LEFT, RIGHT = 16.9, 17.6  # the part of the axis that is shown


def plot_rounded_pair(first: float, gap: float) -> Figure:
    """The exact logits above, what bfloat16 makes of them below.

    Args:
        first: the best token's logit.
        gap: how far the second best is behind it.
    """
    exact = (first, first - gap)
    rounded = [torch.tensor(logit).bfloat16().item() for logit in exact]
    figure, axes = plt.subplots(figsize=(8.5, 2.6))
    step = 16 * torch.finfo(torch.bfloat16).eps
    for i in range(int(LEFT / step), int(RIGHT / step) + 2):
        axes.axvline(i * step, color=GREY, linewidth=0.8, alpha=0.6, zorder=0)
        axes.axvline((i + 0.5) * step, color=GREY, linewidth=0.8, linestyle="--", zorder=0)
    for logit, to, color, name, shift in zip(
        exact, rounded, (BLUE, ORANGE), ("best", "second"), (0.05, -0.05), strict=True
    ):
        axes.annotate("", (to, shift), (logit, 1), arrowprops={"arrowstyle": "->", "color": color})
        axes.plot(logit, 1, "o", color=color, markersize=9, label=f"{name}: {logit:.3f}")
        axes.plot(to, shift, "s", color=color, markersize=9, label=f"rounded: {to:.3f}")
    axes.set_yticks([0, 1], ["bfloat16", "exact"])
    axes.set_ylim(-0.35, 1.35)
    axes.set_xlim(LEFT, RIGHT)
    axes.set_xlabel("logit (solid: the numbers that bfloat16 has there; dashed: midpoints)")
    axes.grid(visible=False)
    tie = rounded[0] == rounded[1]
    axes.set_title(
        "Both become the same number: a tie" if tie else "The best token stays the best", color=INK
    )
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    return figure


def rounding_explorer() -> Explorer:
    """Sliders for the best logit and for its lead."""
    first = ipywidgets.FloatSlider(17.3, min=17.1, max=17.5, step=0.02, description="best logit")
    gap = ipywidgets.FloatSlider(0.06, min=0.0, max=0.2, step=0.02, description="gap")
    return Explorer(plot_rounded_pair, first=first, gap=gap)
