"""The pictures of lab 06: slots of a batch, tokens of a step, steps of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from utils.checks.kit.pictures.cells import INK, Cell, Row, add_legend, draw_cell, label_rows
from utils.checks.lab_06.bare import name_of
from utils.engine import StepRecord

# Face color, hatch, and words for the legend. A hatch also tells them apart in grey.
KINDS = {
    "prompt": ("#b9d3ef", "", "tokens of a prompt"),
    "answer": ("#9fcf93", "", "tokens of an answer"),
    "again": ("#b9d3ef", "..", "computed again"),
    "padding": ("white", "...", "padding"),
    "idle": ("white", "///", "idle slot"),
    "lost": ("#dedede", "\\\\\\", "loses its blocks"),
    "waits": ("white", "", "waits"),
    "held": ("#b9d3ef", "", "blocks that it holds"),
    "wrong": ("#f2a65a", "xx", "not as expected"),
}


def rows_of_cells(
    rows: Sequence[Row],
    title: str,
    xlabel: str,
    limit: float | None = None,
    ticks: Sequence[str] = (),
    unit: float = 0.42,
) -> Figure:
    """Labelled rows of cells, the first on top.

    Args:
        limit: where to draw a line across all rows, such as a budget.
        ticks: labels of the columns, for cells of width 1.
        unit: inches of a cell of width 1.
    """
    longest = max([sum(cell.width for cell in cells) for _, cells in rows] + [1, limit or 0])
    label_width = 0.085 * max(len(label) for label, _ in rows)
    width = min(max(5.4, unit * longest + label_width + 0.5), 11.0)
    figure = Figure(figsize=(width, 0.36 * len(rows) + 1.5), layout="constrained")
    ax = figure.subplots()
    for y, (_, cells) in enumerate(rows):
        x = 0.0
        for cell in cells:
            draw_cell(ax, x, y, cell, KINDS, linewidth=0.7)
            x += cell.width
    if limit is not None:
        ax.axvline(limit, color=INK, linewidth=2, linestyle="--")
    ax.set_xlim(-0.05, longest + 0.3)
    ax.set_ylim(len(rows), 0)
    ax.set_xticks([x + 0.5 for x in range(len(ticks))], ticks)
    label_rows(ax, [label for label, _ in rows], xlabel)
    ax.set_title(title, size=11)
    add_legend(figure, KINDS, rows, ncols=5)
    return figure


def static_batches(
    prompt_lens: Sequence[int], output_lens: Sequence[int], batch_size: int
) -> Figure:
    """Each batch as its slots: padding before the prompts, idle places after the answers."""
    rows: list[Row] = []
    padding = idle = 0
    for begin in range(0, len(prompt_lens), batch_size):
        prompts = prompt_lens[begin : begin + batch_size]
        outputs = output_lens[begin : begin + batch_size]
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True), begin):
            pad, rest = max(prompts) - prompt, max(outputs) - output
            padding, idle = padding + pad, idle + rest
            kinds = {"padding": pad, "prompt": prompt, "answer": output, "idle": rest}
            cells = [Cell(str(n), kind, n) for kind, n in kinds.items() if n]
            rows.append((f"batch {begin // batch_size}, request {number}", cells))
    title = f"{padding} places are padding, {idle} are idle"
    return rows_of_cells(rows, title, "places in the batch: one per token", unit=0.2)


def budget(
    rows: Mapping[str, Mapping[str, int]],
    decodes: Sequence[str],
    limit: int,
    title: str,
    expected: Mapping[str, int] | None = None,
) -> Figure:
    """The tokens of a step as a bar, request by request, against the token budget.

    Args:
        rows: by their label, the tokens by request id.
        decodes: the requests whose token is one of an answer.
        limit: the budget.
        expected: what differs from this is marked.
    """

    def cell(name: str, count: int) -> Cell:
        kind = "answer" if name in decodes else "prompt"
        kind = kind if expected is None or expected.get(name) == count else "wrong"
        return Cell(f"{name}: {count}" if count > 2 else name, kind, count)

    drawn = [
        (label, [cell(name, n) for name, n in tokens.items() if n > 0])
        for label, tokens in rows.items()
    ]
    xlabel = f"tokens of the step (dashed: the budget of {limit})"
    return rows_of_cells(drawn, title, xlabel, limit, unit=0.45)


@dataclass(frozen=True)
class Mark:
    """What a step brought to a request: tokens, and which of `KINDS`."""

    kind: str
    count: int = 0


Chart = Sequence[Mapping[str, Mark]]  # one mapping per step, by the request's name


def gantt(names: Sequence[str], charts: Mapping[str, Chart], title: str) -> Figure:
    """Requests as rows, steps as columns, the number of tokens in each cell.

    Args:
        charts: by their label. With two of them, the last is compared with the first.
    """
    num_steps = max(len(chart) for chart in charts.values())
    first, before = max(0, num_steps - 40), next(iter(charts.values()))
    rows: list[Row] = []
    for label, chart in charts.items():
        for name in names:
            cells = []
            for step in range(first, len(chart)):
                mark = chart[step].get(name)
                right = before[step].get(name) if step < len(before) else None
                kind = mark.kind if mark else None
                text = str(mark.count) if mark and mark.count else ""
                cells.append(Cell(text, kind if mark == right else "wrong"))
            rows.append((f"{label}: {name}" if len(charts) > 1 else name, cells))
    ticks = [str(step + 1) for step in range(first, num_steps)]
    xlabel = "step (in the cells: tokens computed)"
    return rows_of_cells(rows, title, xlabel, ticks=ticks, unit=0.32)


def chart_of(trace: Sequence[StepRecord], count: int) -> list[dict[str, Mark]]:
    """Recorded steps of requests A, B, C, ... as cells of a picture."""
    chart = []
    answered: dict[str, int] = {}
    waits = {name_of(number) for number in range(count)}
    for record in trace:
        marks = {name: Mark("waits") for name in waits - set(record.tokens)}
        waits = (waits | set(record.preempted_req_ids)) - set(record.tokens)
        marks |= {name: Mark("lost") for name in record.preempted_req_ids}
        for name, tokens in record.tokens.items():
            again = answered.get(name) and not (tokens.num_new == 1 and tokens.num_sampled)
            kind = "again" if again else "answer" if answered.get(name) else "prompt"
            marks[name] = Mark(kind, tokens.num_new)
            answered[name] = answered.get(name, 0) + tokens.num_sampled
        chart.append(marks)
    return chart


def crossover(
    num_tokens: Sequence[int], seconds: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """What each way back costs per token, over the length of the request."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    for (name, times), style in zip(seconds.items(), ("-", "--"), strict=True):
        per_token = [1e6 * s / n for s, n in zip(times, num_tokens, strict=True)]
        ax.semilogx(num_tokens, per_token, style, linewidth=2, label=name)
    ax.set_xlabel("computed tokens of the preempted request", size=9)
    ax.set_ylabel("µs per token", size=9)
    ax.set_ylim(bottom=0)
    ax.set_title(title, size=11)
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=8, frameon=False)
    return figure
