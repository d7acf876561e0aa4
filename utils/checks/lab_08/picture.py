"""The pictures of lab 08: a flat batch, the times of a request, the steps of an engine."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from utils.checks.kit.pictures.cells import INK, Cell, Row, add_legend, draw_cell, label_rows

# Face colour, hatch, and words for the legend. A hatch also tells them apart in grey.
KINDS = {
    "A": ("#b9d3ef", "", "request A"),
    "B": ("#e6e6e6", "", "request B"),
    "C": ("#7fa3d1", "", "request C"),
    "D": ("#c9c9c9", "", "request D"),
    "prompt": ("#b9d3ef", "", "tokens of a prompt"),
    "answer": ("#9fcf93", "", "tokens of an answer"),
    "sample": ("#9fcf93", "", "the next token is sampled here"),
    "other": ("white", "", ""),
    "waits": ("white", "...", "waits"),
    "wrong": ("#f2a65a", "xx", "not as expected"),
}


def rows_of_cells(rows: Sequence[Row], title: str, xlabel: str, first: int = 0) -> Figure:
    """Labelled rows of cells, one above the other. Columns are numbered from `first`."""
    longest = max([len(cells) for _, cells in rows] + [1])
    width = min(max(6.0, 0.42 * longest + 2.0), 11.0)
    figure = Figure(figsize=(width, 0.38 * len(rows) + 1.5), layout="constrained")
    ax = figure.subplots()
    for y, (_, cells) in enumerate(rows):
        for x, cell in enumerate(cells):
            draw_cell(ax, x, y, cell, KINDS, inset=0.06, linewidth=0.7)
    ax.set_xlim(-0.05, max(longest, 9) + 0.05)  # a few cells stay as narrow as many
    ax.set_ylim(len(rows), 0)
    step = 1 if longest <= 26 else 5
    ticks = range(0, longest, step)
    ax.set_xticks([x + 0.5 for x in ticks], [str(first + x) for x in ticks])
    label_rows(ax, [label for label, _ in rows], xlabel)
    ax.set_title(title, size=11)
    add_legend(figure, KINDS, rows, ncols=5)
    return figure


Inputs = tuple[list[int], list[int], list[int]]  # input_ids, positions, logits_indices


def flat_batch(owners: Sequence[str], expected: Inputs, yours: Inputs | None = None) -> Figure:
    """The rows of a flat batch: each one's token and position, and where tokens are sampled.

    Args:
        owners: the request that each row belongs to.
        expected: the three lists of exercise 2.
        yours: the learner's. None: they are as expected.
    """
    rows: list[Row] = []
    versions = {"yours": expected} if yours is None else {"expected": expected, "yours": yours}
    for name, inputs in versions.items():
        for what, values, wanted in zip(("token", "position"), inputs, expected, strict=False):
            cells = [
                Cell(str(value), owners[i] if i < len(wanted) and wanted[i] == value else "wrong")
                for i, value in enumerate(values)
            ]
            rows.append((f"{name}: {what}", cells))
        length = max(len(owners), *(row + 1 for row in inputs[2])) if inputs[2] else len(owners)
        cells = [_sampled(i in inputs[2], i in expected[2]) for i in range(length)]
        rows.append((f"{name}: sampled here", cells))
    return rows_of_cells(rows, "All requests of a step in one flat batch", "row of the batch")


def _sampled(is_so: bool, should_be: bool) -> Cell:
    if is_so != should_be:
        return Cell("yes" if is_so else "no", "wrong")
    return Cell("yes", "sample") if is_so else Cell("", "other")


def timeline(arrival: float, scheduled: float, token_ts: Sequence[float], title: str) -> Figure:
    """The times of one request on a line, and what lies between them."""
    figure = Figure(figsize=(8.0, 2.7), layout="constrained")
    ax = figure.subplots()
    last = token_ts[-1]
    ax.hlines(0, arrival, last, color=INK, linewidth=1.2)
    marks = [(arrival, "arrives"), (scheduled, "first\nscheduled")]
    marks += [(ts, f"token {i}") for i, ts in enumerate(token_ts, start=1)]
    for x, words in marks:
        ax.plot([x], [0], "o", color=INK, markersize=5)
        ax.text(x, 0.12, words, ha="center", va="bottom", size=8)
    spans = [("queue time", arrival, scheduled, -0.25), ("TTFT", arrival, token_ts[0], -0.55)]
    if len(token_ts) > 1:
        count = len(token_ts) - 1
        words = f"TPOT = this / {count}"
        spans.append((words, token_ts[0], last, -0.25))
        spans.append(("end-to-end latency", arrival, last, -0.85))
    for words, begin, end, y in spans:
        arrow = dict(arrowstyle="<->", color="#1f4e9c", linewidth=1.3)
        ax.annotate("", (begin, y), (end, y), arrowprops=arrow)
        ax.text(
            (begin + end) / 2, y + 0.03, words, ha="center", va="bottom", size=8, color="#1f4e9c"
        )
    ax.set_ylim(-1.0, 0.5)
    ax.set_yticks([])
    ax.set_xlabel("time (s)", size=9)
    ax.set_title(title, size=11)
    ax.grid(False)
    for side in ("left", "top", "right"):
        ax.spines[side].set_visible(False)
    return figure
