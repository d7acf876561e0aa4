"""How tensor parallelism cuts the two matrices of an MLP, and where the ranks must talk."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from utils.viz.style import BLUE, INK, ORANGE

_COLORS = (BLUE, ORANGE)
_VECTOR = 0.16  # how wide a vector is drawn


def plot_cut(hidden_size: int, intermediate_size: int) -> Figure:
    """y = W2 · silu(W1 · x) on two ranks, from left to right, each rank in its color.

    Sides of the matrices are drawn to scale.

    Args:
        hidden_size: numbers in x and in y.
        intermediate_size: numbers between the two matrices; even.

    Raises:
        ValueError: the intermediate numbers can't be divided by two.
    """
    if intermediate_size % 2:
        raise ValueError(f"{intermediate_size} intermediate numbers can't be cut into two halves.")
    tall, flat = 1.5, 1.5 * hidden_size / intermediate_size
    figure, axes = plt.subplots(figsize=(9, 2.9))
    _halves(axes, 1.7, flat, tall, rows=True)
    _halves(axes, 3.62, _VECTOR, tall, rows=True)
    _halves(axes, 5.0, tall, flat, rows=False)
    _box(axes, 0.32, _VECTOR, flat, INK)
    for rank, color in enumerate(_COLORS):
        _box(axes, 7.35 + 0.54 * rank, _VECTOR, flat, color)
    _box(axes, 9.65, _VECTOR, flat, INK)
    labels = (
        (0.4, f"x\n{hidden_size}", "both ranks"),
        (1.7 + flat / 2, f"W1\n{intermediate_size} x {hidden_size}", "cut along\nits outputs"),
        (3.7, f"silu(W1 · x)\n{intermediate_size}", "half each"),
        (5.75, f"W2\n{hidden_size} x {intermediate_size}", "cut along\nits inputs"),
        (7.7, f"partial sums\n{hidden_size} each", "one each"),
        (9.73, f"y\n{hidden_size}", "both ranks"),
    )
    for x, above, below in labels:
        axes.text(x, 0.86, above, ha="center", va="bottom", fontsize=10)
        axes.text(x, -0.86, below, ha="center", va="top", fontsize=10)
    axes.text(7.7, 0, "+", ha="center", va="center", fontsize=15)
    axes.annotate("", (9.5, 0), (8.25, 0), arrowprops={"arrowstyle": "->", "color": INK})
    axes.text(8.87, 0.08, "all-reduce", ha="center", va="bottom", fontsize=10, fontweight="bold")
    for x, name, color in ((0.2, "rank 0", BLUE), (1.4, "rank 1", ORANGE)):
        axes.add_patch(Rectangle((x, 1.64), 0.14, 0.14, facecolor=color))
        axes.text(x + 0.2, 1.7, name, va="center", fontsize=10)
    axes.set_xlim(-0.2, 10.3)
    axes.set_ylim(-1.35, 1.85)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title("Two ranks compute half of the MLP each and talk once, at its end")
    return figure


def _box(axes: Axes, left: float, width: float, height: float, color: str) -> None:
    corner = (left, -height / 2)
    axes.add_patch(Rectangle(corner, width, height, facecolor=color, edgecolor="white"))


def _halves(axes: Axes, left: float, width: float, height: float, rows: bool) -> None:
    """One tensor, its first half of rank 0 (above, or on the left), its second one of rank 1."""
    for rank, color in enumerate(_COLORS):
        w, h = (width, height / 2) if rows else (width / 2, height)
        corner = (left, -rank * h) if rows else (left + rank * w, -height / 2)
        axes.add_patch(Rectangle(corner, w, h, facecolor=color, edgecolor="white"))
