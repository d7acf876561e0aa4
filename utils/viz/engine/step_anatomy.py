"""One step of the engine, taken apart: the flat batch, the memory it writes to, and its times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from utils.engine.core.step_record import StepRecord
from utils.viz.engine.anatomy_record import StepAnatomy, _events
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREEN, GREY, INK, MAX_HEIGHT, ORANGE, RED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REQUEST_COLORS = (BLUE, ORANGE, GREEN, "#7a4fa3", "#c9b037", "#3f8f8a", RED, "#8c564b")
EMPTY = "#f4f4f4"
BLOCKS_PER_ROW = 8
MAX_CELLS = 32  # of the flat batch in one row
HALO = [withStroke(linewidth=1.6, foreground="white")]  # words can be read on any color
SHORT = 0.05  # ms: what is printed as 0.0 isn't named


def plot_anatomy(
    step: StepAnatomy,
    tokenizer: PreTrainedTokenizerBase,
    num_blocks: int,
    block_size: int,
    title: str = "",
    colors: dict[str, str] | None = None,
) -> Figure:
    """The flat batch, token by token; the KV memory, slot by slot; and the time of each part.

    Args:
        num_blocks: in the KV cache.
        block_size: tokens in a block.
        title: the finding. Empty: what was scheduled.
        colors: by request id, so that each has the same color in every step. None: the first
            ones, in the order of this step.
    """
    rows = -(-len(step.input_ids) // MAX_CELLS)
    memory_rows = -(-num_blocks // BLOCKS_PER_ROW)
    heights = (0.62 + 1.12 * rows, 0.4 + 0.31 * memory_rows, 0.6)
    figure = plt.figure(figsize=(10, min(sum(heights) + 0.35, MAX_HEIGHT)))
    batch, memory, times = figure.subplots(3, 1, height_ratios=heights)
    colors = colors or distinct_colors([step])
    _draw_flat_batch(batch, step, tokenizer, colors)
    _draw_memory(memory, step, num_blocks, block_size, colors)
    _draw_times(times, step.record)
    num_tokens, num_requests = len(step.input_ids), len(step.block_tables)
    whole = title or f"One step: {num_tokens} tokens of {num_requests} requests, one tensor"
    figure.suptitle(whole, x=0.01, ha="left", fontsize=12, weight="bold")
    return figure


def anatomy_explorer(
    steps: Sequence[StepAnatomy],
    tokenizer: PreTrainedTokenizerBase,
    num_blocks: int,
    block_size: int,
) -> Explorer:
    """A slider over recorded steps. It begins at the most eventful one."""
    colors = distinct_colors(steps)
    first = max(range(len(steps)), key=lambda i: _events(steps[i].record))
    slider = ipywidgets.IntSlider(first + 1, min=1, max=len(steps), description="step")
    slider.continuous_update = False
    slider.layout.width = "600px"

    def draw(step: int) -> Figure:
        anatomy = steps[step - 1]
        record = anatomy.record
        num_requests = len(record.tokens)
        events = [
            f"{len(anatomy.input_ids)} tokens of {num_requests} request{'s'[: num_requests > 1]}"
        ]
        for ids, what in (
            (record.preempted_req_ids, "preempted"),
            (record.resumed_req_ids, "back again"),
            (record.finished_req_ids, "finished"),
        ):
            events += [f"request{'s'[: len(ids) > 1]} {', '.join(ids)} {what}"] if ids else []
        title = f"Step {step} of {len(steps)}: " + "; ".join(events)
        return plot_anatomy(anatomy, tokenizer, num_blocks, block_size, title, colors)

    return Explorer(draw, step=slider)


def distinct_colors(steps: Sequence[StepAnatomy]) -> dict[str, str]:
    """By request id, a color for the whole run: two that share a step differ, while colors last."""
    colors: dict[str, str] = {}
    for name in dict.fromkeys(name for step in steps for name in step.block_tables):
        beside = {
            other for step in steps if name in step.block_tables for other in step.block_tables
        }
        taken = {colors[other] for other in beside if other in colors}
        next_one = len(colors) % len(REQUEST_COLORS)
        order = REQUEST_COLORS[next_one:] + REQUEST_COLORS[:next_one]
        colors[name] = next((color for color in order if color not in taken), order[0])
    return colors


def _draw_flat_batch(
    axes: Axes, step: StepAnatomy, tokenizer: PreTrainedTokenizerBase, colors: dict[str, str]
) -> None:
    row_height = 3.4
    # Guesses are the last of a request's new tokens.
    guessed = {
        end - 1 - i
        for end, new in zip(
            accumulate(new.num_new for new in step.record.tokens.values()),
            step.record.tokens.values(),
            strict=True,
        )
        for i in range(new.num_draft)
    }
    for i, (token, position, slot, owner) in enumerate(
        zip(step.input_ids, step.positions, step.slots, step.owners, strict=True)
    ):
        x, y = i % MAX_CELLS, -(i // MAX_CELLS) * row_height
        hatch = "////" if i in guessed else None
        axes.add_patch(
            Rectangle(
                (x, y),
                0.94,
                1.9,
                facecolor=_tint(colors[owner], 0.35),
                edgecolor="white" if hatch else colors[owner],
                hatch=hatch,
                linewidth=0.8,
            )
        )
        text = tokenizer.decode([token]).strip(" ").replace("\n", "\\n").replace("$", r"\$")
        axes.text(
            x + 0.47,
            y + 0.12,
            text[:8] or "␣",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8,
            color=INK,
            path_effects=HALO if hatch else None,
        )
        axes.text(x + 0.47, y - 0.1, str(position), ha="center", va="top", fontsize=7, color=INK)
        axes.text(x + 0.47, y - 0.65, str(slot), ha="center", va="top", fontsize=7, color=GREY)
    begin = 0
    for name, new in step.record.tokens.items():
        x, y = begin % MAX_CELLS, -(begin // MAX_CELLS) * row_height
        axes.text(x, y + 2.0, name, fontsize=9.5, weight="bold", color=INK)
        begin += new.num_new
    axes.text(-0.3, -0.1, "position", ha="right", va="top", fontsize=7.5, color=INK)
    axes.text(-0.3, -0.65, "slot", ha="right", va="top", fontsize=7.5, color=GREY)
    num_rows = -(-len(step.input_ids) // MAX_CELLS)
    axes.set_xlim(-2.2, MAX_CELLS)
    axes.set_ylim(-1.2 - (num_rows - 1) * row_height, 2.75)
    hatched = " Hatched: guesses." if guessed else ""
    axes.set_title(f"The flat batch.{hatched}", fontsize=10.5, weight="normal")
    axes.set_axis_off()


def _draw_memory(
    axes: Axes, step: StepAnatomy, num_blocks: int, block_size: int, colors: dict[str, str]
) -> None:
    written = set(step.slots)
    holders: dict[int, list[str]] = {}
    for name, table in step.block_tables.items():
        for block in table:
            holders.setdefault(block, []).append(name)
    num_rows, width = -(-num_blocks // BLOCKS_PER_ROW), block_size + 1
    image = np.ones((num_rows, BLOCKS_PER_ROW * width, 3))
    for block in range(num_blocks):
        row, left = block // BLOCKS_PER_ROW, block % BLOCKS_PER_ROW * width
        image[row, left : left + block_size] = to_rgb(EMPTY)
    for name, table in step.block_tables.items():
        new = step.record.tokens[name]
        for position in range(new.start + new.num_new):
            block, offset = table[position // block_size], position % block_size
            slot = block * block_size + offset
            row, left = block // BLOCKS_PER_ROW, block % BLOCKS_PER_ROW * width
            own = colors[name] if len(holders[block]) == 1 else GREY
            color = to_rgb(own) if slot in written else _tint(own, 0.35)
            image[row, left + offset] = color
    axes.imshow(image, aspect="auto", interpolation="nearest")
    for block, names in holders.items():
        row, left = block // BLOCKS_PER_ROW, block % BLOCKS_PER_ROW * width
        ink = "white" if block * block_size in written else INK
        axes.text(left - 0.3, row, " ".join(names), fontsize=8, va="center", color=ink)
    for row in range(1, num_rows):
        axes.axhline(row - 0.5, color="white", linewidth=4)
    for block in range(num_blocks):
        row, right = block // BLOCKS_PER_ROW, block % BLOCKS_PER_ROW * width + block_size - 0.6
        style: dict[str, Any] = dict(
            fontsize=7, ha="right", va="center", color="#555555", path_effects=HALO
        )
        axes.text(right, row, str(block), **style)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(
        f"KV memory, blocks 0 to {num_blocks - 1} of {block_size} slots. "
        "Dark: written in this step. Gray: shared.",
        fontsize=10.5,
        weight="normal",
    )


def _draw_times(axes: Axes, record: StepRecord) -> None:
    marks = (record.start, record.scheduled, record.executed, record.processed, record.end)
    names = ("schedule", "execute: forward and sampling", "process", "draft")
    colors, inks = (ORANGE, BLUE, INK, GREEN), (ORANGE, BLUE, INK, "#4b8f3b")
    left, place = 0.0, 0.0
    for name, begin, end, color, ink in zip(names, marks, marks[1:], colors, inks, strict=False):
        took = 1e3 * (end - begin)
        axes.barh(0, took, left=left, height=0.5, color=color)
        left += took
        if took >= SHORT:
            style: dict[str, Any] = dict(transform=axes.transAxes, va="top", fontsize=9, color=ink)
            axes.text(place, -0.25, f"■ {name} {took:.1f} ms", **style)
            place += 0.08 + 0.0105 * len(name)
    axes.set_xlim(0, left)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    share = (record.executed - record.scheduled) / (record.end - record.start)
    title = f"Time of the step: {left:.1f} ms, {share:.1%} of it in the model"
    axes.set_title(title, fontsize=10.5, weight="normal")


def _tint(color: str, strength: float) -> tuple[float, float, float]:
    """A lighter shade: strength 0 is white, 1 the color itself."""
    red, green, blue = to_rgb(color)
    return (1 - strength * (1 - red), 1 - strength * (1 - green), 1 - strength * (1 - blue))
