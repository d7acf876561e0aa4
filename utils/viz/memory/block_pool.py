"""Pictures of block tables, of the memory behind them, and of how many blocks are in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from utils.viz.style import BLUE, GREY, INK

SLOTS_PER_LINE = 8
# Each brighter than the one before, so that they differ in grey as well.
SHARED, ALONE, EMPTY = "#e8a04c", "#cfe0f5", "white"


@dataclass(frozen=True)
class PoolState:
    """A block pool at one moment.

    Attributes:
        block_size: tokens per block.
        ref_cnts: for each block of the memory, how many tables hold it.
        tables: block numbers by the name of the request.
        texts: for each block in use, its tokens as text, at most `block_size`.
        free_queue: numbers of the free blocks, the next to be handed out first.
    """

    block_size: int
    ref_cnts: Sequence[int]
    tables: Mapping[str, Sequence[int]]
    texts: Mapping[int, Sequence[str]]
    free_queue: Sequence[int]

    @classmethod
    def of(
        cls,
        block_size: int,
        ref_cnts: Sequence[int],
        tables: Mapping[str, Sequence[int]],
        words: Mapping[str, Sequence[str]],
        free_queue: Iterable[int],
    ) -> PoolState:
        """A pool in which each request's tokens, as text in `words`, fill its blocks in order."""
        texts = {
            block: words[name][i * block_size : (i + 1) * block_size]
            for name, table in tables.items()
            for i, block in enumerate(table)
        }
        return cls(block_size, ref_cnts, tables, texts, list(free_queue))


def plot_pool(
    state: PoolState,
    title: str,
    changed: Sequence[int] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> Figure:
    """Block tables on the left, the memory on the right, the free queue below.

    Args:
        state: what to draw.
        title: the finding.
        changed: blocks that the title is about, drawn with a thick edge.
        copies: arrows from block to block.
    """
    slots = len(state.ref_cnts) * state.block_size
    lines = -(-slots // max(SLOTS_PER_LINE, state.block_size))
    figure = plt.figure(figsize=(10, 0.72 * lines + 1.9))
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.9), height_ratios=(lines + 0.3, 0.9))
    _draw_tables(figure.add_subplot(grid[0, 0]), state, lines, changed)
    _draw_memory(figure.add_subplot(grid[0, 1]), state, lines, changed, copies)
    _draw_queue(figure.add_subplot(grid[1, :]), state)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    labels = ((ALONE, "in one table"), (SHARED, "in several tables"), (EMPTY, "free"))
    patches = [Patch(facecolor=c, edgecolor=INK, linewidth=0.8, label=text) for c, text in labels]
    patches.append(
        Patch(facecolor=EMPTY, edgecolor=GREY, hatch="////", label="allocated, not filled yet")
    )
    if changed:
        label = "what the title is about"
        patches.append(Patch(facecolor=EMPTY, edgecolor=INK, linewidth=2.8, label=label))
    figure.legend(handles=patches, loc="outside lower center", ncols=5, fontsize=9.5)
    return figure


def _color(state: PoolState, block: int) -> str:
    return (EMPTY, ALONE, SHARED)[min(state.ref_cnts[block], 2)]


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10.5, weight="normal")
    axes.axis("off")


def _draw_tables(axes: Axes, state: PoolState, lines: int, changed: Sequence[int]) -> None:
    longest = max([5, *(len(table) for table in state.tables.values())])
    for row, (name, table) in enumerate(state.tables.items()):
        axes.text(-0.15, row + 0.4, name, ha="right", va="center", weight="bold")
        for column, block in enumerate(table):
            _box(axes, column, row, 0.9, 0.8, _color(state, block), block in changed)
            axes.text(column + 0.45, row + 0.4, str(block), ha="center", va="center")
    axes.set_xlim(-max(1.0, 0.3 * max(map(len, state.tables), default=0)), longest)
    axes.set_ylim(max(lines, len(state.tables)), -0.1)
    _bare(axes, "block tables")


def _draw_memory(
    axes: Axes,
    state: PoolState,
    lines: int,
    changed: Sequence[int],
    copies: Sequence[tuple[int, int]],
) -> None:
    size = state.block_size
    width = max(SLOTS_PER_LINE, size)
    corners = {b: (b * size % width, b * size // width) for b in range(len(state.ref_cnts))}
    for block, (left, line) in corners.items():
        texts = state.texts.get(block, ())
        for i in range(size):
            filled = i < len(texts)
            axes.add_patch(
                Rectangle(
                    (left + i, line + 0.3),
                    1,
                    0.55,
                    linewidth=0.6,
                    edgecolor=GREY,
                    facecolor=_color(state, block) if filled else EMPTY,
                    hatch="////" if state.ref_cnts[block] and not filled else None,
                )
            )
            if filled:
                axes.text(
                    left + i + 0.5, line + 0.57, texts[i], ha="center", va="center", fontsize=8.5
                )
        _box(axes, left, line + 0.3, size, 0.55, "none", block in changed)
        label = (
            f"{block}" if not state.ref_cnts[block] else f"{block}: ref_cnt {state.ref_cnts[block]}"
        )
        axes.text(left + 0.06, line + 0.26, label, fontsize=8, va="bottom")
    for source, target in copies:
        (left, line), (to_left, to_line) = corners[source], corners[target]
        downwards = line <= to_line  # leave through the edge that faces the target
        start = (left + 0.5, line + (0.85 if downwards else 0.3))
        end = (to_left + 0.5, to_line + (0.3 if line < to_line else 0.85))
        axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=16,
                linewidth=2.4,
                color=BLUE,
                connectionstyle=f"arc3,rad={0.18 if line == to_line else 0.05}",
                zorder=5,
            )
        )
    axes.set_xlim(-0.1, width + 0.1)
    axes.set_ylim(lines, -0.05)
    _bare(axes, f"KV memory: {len(state.ref_cnts)} blocks of {size} slots")


def _draw_queue(axes: Axes, state: PoolState) -> None:
    for place, block in enumerate(state.free_queue):
        _box(axes, place, 0, 0.85, 0.8, EMPTY, False)
        axes.text(place + 0.42, 0.4, str(block), ha="center", va="center", fontsize=9.5)
    if not state.free_queue:
        axes.text(0, 0.4, "empty: nobody can get a block", va="center")
    axes.set_xlim(-0.1, max(16, len(state.free_queue)))
    axes.set_ylim(0.9, -0.1)
    _bare(axes, "free queue, the next to be handed out on the left")


def _box(
    axes: Axes, left: float, top: float, width: float, height: float, color: str, thick: bool
) -> None:
    axes.add_patch(
        Rectangle(
            (left, top),
            width,
            height,
            facecolor=color,
            edgecolor=INK,
            linewidth=2.8 if thick else 1.0,
            zorder=3 if thick else 2 if color == "none" else 1,
        )
    )
