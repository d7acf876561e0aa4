"""The pictures of lab 04: slots, blocks and block tables. One cell per slot or block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.checks.kit.pictures.cells import Cell, Row, add_legend, draw_cell, label_rows

BLUE, GREEN, GREY, ORANGE = "#cfe0f3", "#9fcf93", "#dedede", "#f2a65a"
# Face colour, hatch, and words for the legend. A hatch also tells them apart in grey.
KINDS = {
    "used": (BLUE, "", "in use"),
    "shared": (GREEN, "", "shared"),
    "copy": (BLUE, "..", "a copy"),
    "empty": ("white", "", "free, or not filled yet"),
    "waste": (ORANGE, "//", "taken, but not needed"),
    "wrong": (ORANGE, "xx", "not as expected"),
}


FREE = -1  # the column of the free blocks' number


def count(number: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def grids(
    panels: Mapping[str, Sequence[Row]],
    title: str,
    xlabel: str,
    columns: Sequence[str] | None = None,
    width: float = 0.62,
) -> Figure:
    """Panels side by side, each with labelled rows of cells. A single panel shows no title.

    Args:
        panels: by their title; a panel is a sequence of (row label, cells).
        title: of the whole figure.
        xlabel: what a column is.
        columns: labels of the columns; None: 0, 1, 2, ...
        width: of a cell, in inches.
    """
    num_rows = max(len(rows) for rows in panels.values())
    num_columns = max(1, *(len(cells) for rows in panels.values() for _, cells in rows))
    label_width = 0.085 * max(len(label) for rows in panels.values() for label, _ in rows)
    figure = Figure(
        figsize=(
            max(5.2, len(panels) * (width * num_columns + label_width + 0.3)),
            0.42 * num_rows + 1.7,
        ),
        layout="constrained",
    )
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (name, rows) in zip(axes, panels.items(), strict=True):
        for y, (_, cells) in enumerate(rows):
            for x, cell in enumerate(cells):
                draw_cell(ax, x, y, cell, KINDS, inset=0.0, pad=1.0)
        ax.set_xlim(-0.05, num_columns + 0.05)
        ax.set_ylim(num_rows + 0.05, -0.05)
        ax.set_xticks(
            [x + 0.5 for x in range(num_columns)], columns or [str(x) for x in range(num_columns)]
        )
        label_rows(ax, [label for label, _ in rows], xlabel)
        if len(panels) > 1:
            ax.set_title(name, size=10, loc="center", weight="normal")
    add_legend(figure, KINDS, [row for rows in panels.values() for row in rows], ncols=4)
    figure.suptitle(title, size=11)
    return figure


def slots(
    expected: Sequence[int], yours: Sequence[int], start: int, num_blocks: int, block_size: int
) -> Figure:
    """Memory as a grid of blocks, with the position of the token that lies in each slot."""

    def rows(mapping: Sequence[int]) -> list[Row]:
        held: dict[int, list[int]] = {}
        for position, slot in enumerate(mapping, start):
            held.setdefault(slot, []).append(position)
        right = {slot: [position] for position, slot in enumerate(expected, start)}
        return [
            (
                f"block {block}",
                [
                    Cell("+".join(map(str, held.get(slot, []))), _kind(held, right, slot))
                    for slot in range(block * block_size, (block + 1) * block_size)
                ],
            )
            for block in range(num_blocks)
        ]

    panels = {"expected": rows(expected), "yours": rows(yours)}
    if list(expected) == list(yours):
        panels = {"yours": rows(yours)}
    return grids(panels, "Where the tokens lie: each by its position", "offset in the block")


def _kind(held: Mapping[int, list[int]], right: Mapping[int, list[int]], slot: int) -> str:
    if slot not in held:
        return "empty"
    return "used" if held[slot] == right.get(slot) else "wrong"


def growth(lengths: Sequence[tuple[int, int]], block_size: int) -> Figure:
    """A request that grows: (tokens, blocks in its table) per step, one row each."""
    rows = []
    for num_tokens, num_blocks in lengths:
        needed = -(-num_tokens // block_size)
        cells = []
        for place in range(max(num_tokens, num_blocks * block_size)):
            if place < num_tokens:
                kind = "used" if place < num_blocks * block_size else "wrong"
                cells.append(Cell(str(place), kind))
            else:
                cells.append(Cell("", "empty" if place < needed * block_size else "waste"))
        rows.append((f"{count(num_tokens, 'token')}, {count(num_blocks, 'block')}", cells))
    return grids(
        {"yours": rows},
        f"The slots a request holds as it grows (blocks of {block_size})",
        "slot of the request: the token's position",
        width=0.34,
    )


def ref_counts(
    steps: Sequence[str],
    expected: Sequence[Mapping[int, int]],
    yours: Sequence[Mapping[int, int | str]],
    num_blocks: int,
) -> Figure:
    """The reference count of each block after each step of a story, and how many are free.

    Args:
        steps: what happened, in order.
        expected: per step, by block number; the number of free blocks stands at `FREE`.
        yours: the same; a word may stand in place of a number.
        num_blocks: how many blocks there are.
    """

    def rows(counts: Sequence[Mapping[int, int | str]]) -> list[Row]:
        found: list[Row] = []
        for step, have, want in zip(steps, counts, expected, strict=False):
            cells = []
            for block in [*range(num_blocks), FREE]:
                held = have.get(block, 0)
                kind = "empty" if held == 0 else "used" if held == 1 else "shared"
                kind = "empty" if block == FREE else kind
                cells.append(Cell(str(held), kind if held == want.get(block, 0) else "wrong"))
            found.append((step, cells))
        return found

    panels = {"expected": rows(expected), "yours": rows(yours)}
    if list(expected) == list(yours):
        panels = {"yours": rows(yours)}
    columns = [*map(str, range(num_blocks)), "free"]
    title = "Holders of each block, and the number of free blocks"
    return grids(panels, title, "block", columns, width=0.45)


def tables(panels: Mapping[str, Sequence[Row]], title: str) -> Figure:
    """Block tables: a row per request, a cell per logical block."""
    return grids(panels, title, "place in the block table", width=1.0)


def blocks_over_steps(runs: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Figure:
    """For each run: blocks in use after each step, and those that copies would have taken."""
    figure = Figure(figsize=(4.3 * len(runs), 3.0), layout="constrained")
    axes = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    for ax, (name, (used, copies)) in zip(axes, runs.items(), strict=True):
        ax.step(
            range(len(copies)),
            copies,
            "--",
            where="post",
            color="#d9622b",
            label="if each had its own copy",
        )
        ax.step(
            range(len(used)),
            used,
            where="post",
            color="#1f5fa8",
            linewidth=2,
            label="blocks in use",
        )
        ax.set_title(
            f"{name}: {sum(used) / sum(copies):.0%} of the blocks", size=10, weight="normal"
        )
        ax.set_xlabel("step of the engine", size=9)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.tick_params(labelsize=8)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    axes[0].set_ylabel("blocks", size=9)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle("Sharing blocks saves memory", size=11)
    return figure
