"""Rows of cells, which many pictures of the checks are: a cell, the axes around it, a legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

INK = "#1b1b1b"
# By the kind of a cell: face color, hatch, and words for the legend ("" for none). A hatch also
# tells kinds apart in grey.
Kinds = Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """A stretch of a row: its text, its kind (None: a gap), and its width."""

    text: str
    kind: str | None
    width: float = 1.0


Row = tuple[str, Sequence[Cell]]  # with its label


def draw_cell(
    ax: Axes,
    x: float,
    y: float,
    cell: Cell,
    kinds: Kinds,
    inset: float = 0.08,
    linewidth: float = 0.8,
    pad: float = 1.2,
) -> None:
    """A cell whose row begins at `y`.

    Args:
        inset: what is left free of the row, above and below.
        linewidth: of the edge.
        pad: around a text on a hatch, in points.
    """
    if cell.kind is None:
        return
    color, hatch, _ = kinds[cell.kind]
    style: dict[str, Any] = {
        "facecolor": color,
        "hatch": hatch,
        "edgecolor": INK,
        "linewidth": linewidth,
    }
    ax.add_patch(Rectangle((x, y + inset), cell.width, 1 - 2 * inset, **style))
    # A hatch would strike the letters out: give them a ground of their own.
    ground = dict(facecolor=color, edgecolor="none", pad=pad) if hatch and cell.text else None
    middle = (x + cell.width / 2, y + 0.5)
    ax.text(*middle, cell.text, ha="center", va="center", size=8, bbox=ground)


def label_rows(ax: Axes, labels: Sequence[str], xlabel: str, size: float = 8) -> None:
    """The labels beside the rows, no frame, no grid."""
    ax.set_yticks([y + 0.5 for y in range(len(labels))], labels)
    ax.tick_params(length=0, labelsize=size)
    ax.grid(False)
    ax.set_xlabel(xlabel, size=9)
    for spine in ax.spines.values():
        spine.set_visible(False)


def add_legend(figure: Figure, kinds: Kinds, rows: Iterable[Row], ncols: int) -> None:
    """What the kinds of these rows mean, below the figure."""
    seen = {cell.kind for _, cells in rows for cell in cells}
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor=INK, linewidth=0.6, label=words)
        for kind, (color, hatch, words) in kinds.items()
        if kind in seen and words
    ]
    place = "outside lower center"
    figure.legend(handles=handles, loc=place, ncols=ncols, fontsize=8, frameon=False)
