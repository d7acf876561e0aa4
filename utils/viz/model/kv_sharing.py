"""Which query heads share which keys and values: MHA, GQA, MQA, and MLA side by side."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

NUM_HEADS = 8


def plot_kv_sharing() -> Figure:
    """Eight query heads at the top of each panel; below, what one token leaves in the cache."""
    figure, panels = plt.subplots(1, 4, figsize=(9.8, 2.9))
    for axes, name, num_kv_heads in zip(panels, ("MHA", "GQA", "MQA"), (8, 2, 1), strict=False):
        group = NUM_HEADS // num_kv_heads
        for kv_head in range(num_kv_heads):
            middle = (kv_head + 0.5) * group
            for row, letter, color in ((0.45, "k", BLUE), (0.0, "v", ORANGE)):
                _square(axes, middle, row, letter, color)
            for head in range(kv_head * group, (kv_head + 1) * group):
                axes.plot([head + 0.5, middle], [1.3, 0.88], color=GREY, linewidth=1)
        kept = 2 * num_kv_heads
        axes.set_title(f"{name}: {kept} vectors")
    axes = panels[-1]
    _square(axes, NUM_HEADS / 2, 0.2, "latent", GREEN, width=2.6)
    for head in range(NUM_HEADS):
        axes.plot([head + 0.5, NUM_HEADS / 2], [1.3, 0.65], color=GREY, linewidth=1, linestyle=":")
    axes.set_title("MLA: 1 latent")
    for axes in panels:
        for head in range(NUM_HEADS):
            _square(axes, head + 0.5, 1.3, "q", "white")
        axes.set_xlim(-0.1, NUM_HEADS + 0.1)
        axes.set_ylim(-0.15, 1.8)
        axes.axis("off")
    figure.suptitle(
        "What one token leaves in the cache of one layer, with eight query heads",
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
    )
    return figure


def _square(
    axes: Axes, x: float, y: float, text: str, color: str, width: float = 0.8, height: float = 0.4
) -> None:
    axes.add_patch(
        Rectangle((x - width / 2, y), width, height, facecolor=color, edgecolor=INK, linewidth=0.8)
    )
    ink = "white" if color in (BLUE, ORANGE) else INK
    axes.text(x, y + height / 2, text, ha="center", va="center", color=ink, fontsize=9)
