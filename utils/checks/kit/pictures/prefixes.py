"""The pictures of labs 05 and 13: prompts and pools as rows of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from utils.checks.kit.pictures.cells import Cell, Row, add_legend, draw_cell, label_rows

# Face colour, hatch, and words for the legend. A hatch also tells them apart in grey.
KINDS = {
    "found": ("#9fcf93", "", "found: not computed again"),
    "computed": ("white", "", "to be computed"),
    "there": ("#b9d3ef", "", "in the pool"),
    "gone": ("white", "...", "not in the pool"),
    "in use": ("#b9d3ef", "", "in use"),
    "findable": ("#9fcf93", "", "free, and findable"),
    "free": ("white", "", "free, nothing to find"),
    "wrong": ("#f2a65a", "xx", "not as expected"),
}


def rows_of_blocks(rows: Sequence[Row], title: str, xlabel: str, unit: float = 0.75) -> Figure:
    """Labelled rows of cells, one above the other.

    Args:
        rows: (label, cells), the first on top.
        title: of the figure.
        xlabel: what lies along a row.
        unit: inches of a cell of width 1.
    """
    longest = max([sum(cell.width for cell in cells) for _, cells in rows] + [1])
    label_width = 0.08 * max(len(label) for label, _ in rows)
    figure = Figure(
        figsize=(max(5.0, unit * longest + label_width + 0.4), 0.5 * len(rows) + 1.4),
        layout="constrained",
    )
    ax = figure.subplots()
    for y, (_, cells) in enumerate(rows):
        x = 0.0
        for cell in cells:
            draw_cell(ax, x, y, cell, KINDS, pad=2.0)
            x += cell.width
    ax.set_xlim(-0.05, longest + 0.05)
    ax.set_ylim(len(rows), 0)
    ax.set_xticks([])
    label_rows(ax, [label for label, _ in rows], xlabel, size=9)
    ax.set_title(title, size=11)
    add_legend(figure, KINDS, rows, ncols=3)
    return figure


def lookup(cached: Sequence[bool], expected: Sequence[int], yours: Sequence[int]) -> Figure:
    """A prompt's blocks: which are in the pool, which to use, which the learner used."""
    rows = [
        ("in the pool", _presence(cached)),
        ("expected", _found(expected, expected, len(cached))),
        ("yours", _found(yours, expected, len(cached))),
    ]
    return rows_of_blocks(rows, "Which blocks need not be computed", "block of the prompt")


def eviction(expected: Sequence[bool], yours: Sequence[bool]) -> Figure:
    """What an eviction leaves of a prefix, and what the next request can find of it."""

    def run(left: Sequence[bool]) -> range:
        return range((*left, False).index(False))

    rows = [
        ("expected: left", _presence(expected)),
        ("expected: found", _found(run(expected), run(expected), len(expected))),
        ("yours: left", _presence(yours)),
        ("yours: found", _found(run(yours), run(expected), len(yours))),
    ]
    title = "After the eviction: what is left, and what can be found"
    return rows_of_blocks(rows, title, "block of the prompt")


def _presence(cached: Sequence[bool]) -> list[Cell]:
    return [Cell(str(i), "there" if there else "gone") for i, there in enumerate(cached)]


def _found(used: Sequence[int], expected: Sequence[int], count: int) -> list[Cell]:
    return [
        Cell(str(i), _kind(i in used, i in expected, "found", "computed")) for i in range(count)
    ]


def _kind(is_so: bool, should_be: bool, yes: str, no: str) -> str:
    return "wrong" if is_so != should_be else yes if is_so else no


def prompts(
    prompts: Sequence[Sequence[int]],
    block_size: int,
    expected: Sequence[int],
    yours: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Prompts cut into blocks. Found blocks are coloured, those predicted wrongly hatched.

    Args:
        prompts: token ids.
        block_size: tokens in a block.
        expected: tokens found, one number per prompt.
        yours: what the learner expects to be found; None: the same.
        names: of the prompts; None: "prompt 0", "prompt 1", ...
    """
    names = names or [f"prompt {number}" for number in range(len(prompts))]
    rows = []
    for number, prompt in enumerate(prompts):
        cells = []
        for begin in range(0, len(prompt), block_size):
            tokens = prompt[begin : begin + block_size]
            end = begin + len(tokens)
            found = end <= expected[number]
            kind = "found" if found else "computed"
            if yours is not None and (
                found != (end <= yours[number]) or begin < yours[number] < end
            ):
                kind = "wrong"
            text = " ".join(map(str, tokens)) if block_size <= 4 else ""
            cells.append(Cell(text, kind, len(tokens) / block_size))
        label = f"{names[number]}: {expected[number]} found"
        if yours is not None and yours[number] != expected[number]:
            label += f", not {yours[number]}"
        rows.append((label, cells))
    # Long prompts get narrower blocks.
    longest = max(len(prompt) for prompt in prompts) / block_size
    title = f"{sum(expected)} of {sum(map(len, prompts))} tokens are found in the cache"
    return rows_of_blocks(
        rows, title, f"tokens, in blocks of {block_size}", unit=min(1.1, 6.0 / longest)
    )
