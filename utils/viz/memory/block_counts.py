"""How many blocks are in use, and which tokens of a request have a slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.style import BLUE, GREY, INK, ORANGE

COMPUTED, NEWEST, EMPTY = "#cfe0f5", "#f2dc7a", "white"  # orange: shared blocks


def plot_blocks_over_steps(
    in_use: Sequence[int],
    with_copies: Sequence[int],
    title: str,
    block_size: int,
    each: str = "answer",
    notes: Mapping[int, str] | None = None,
) -> Figure:
    """Blocks held after each step: shared, and what separate copies would have taken.

    Args:
        in_use: different blocks in all tables together.
        with_copies: the sum of the tables' lengths.
        title: the finding.
        block_size: tokens per block, for the label.
        each: what has a table of its own: an answer, or a beam.
        notes: words to write beside the measured line, by the step at which it rises or falls.
    """
    figure, axes = plt.subplots()
    steps = range(1, len(in_use) + 1)
    for values, label, color, style in (
        (with_copies, f"a copy for each {each}", ORANGE, "--"),
        (in_use, "shared, as measured", BLUE, "-"),
    ):
        axes.step(steps, values, where="post", color=color, linestyle=style, label=label)
    for step, note in (notes or {}).items():
        middle = (in_use[step - 2] + in_use[step - 1]) / 2
        axes.annotate(note, (step, middle), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=1)
    axes.set_xlabel(f"step (one token more for each {each})")
    axes.set_ylabel(f"blocks of {block_size} tokens")
    axes.set_title(title)
    axes.legend()
    return figure


def plot_slots_after_steps(
    steps: Mapping[int, tuple[int, int, Sequence[int]]],
    words: Sequence[str],
    block_size: int,
    title: str,
) -> Figure:
    """A request's tokens, and below each the slot that holds its keys and values.

    Args:
        steps: for each step, what the request has after it: tokens, computed tokens, and the
            numbers of its blocks.
        words: the request's tokens as text, at least as many as the last step has.
        block_size: tokens per block.
        title: the finding.
    """
    figure, rows = plt.subplots(len(steps), 1, figsize=(9.5, 1.62 * len(steps) + 0.5))
    width = max(max(tokens, len(ids) * block_size) for tokens, _, ids in steps.values())
    for axes, (step, (num_tokens, num_computed, block_ids)) in zip(
        rows, steps.items(), strict=True
    ):
        for i in range(num_tokens):
            _cell(axes, i, 0, COMPUTED if i < num_computed else NEWEST, words[i])
        for index, block in enumerate(block_ids):
            for i in range(index * block_size, (index + 1) * block_size):
                filled = i < num_computed
                slot = str(block * block_size + i % block_size)
                _cell(axes, i, 1.25, COMPUTED if filled else EMPTY, slot, not filled)
            left = index * block_size
            frame = Rectangle((left, 1.25), block_size, 1, fill=False, edgecolor=INK, linewidth=2)
            axes.add_patch(frame)
            axes.text(left + block_size / 2, 2.45, f"block {block}", ha="center", va="top")
        axes.text(-0.2, 0.5, "tokens", ha="right", va="center")
        axes.text(-0.2, 1.75, "slots", ha="right", va="center")
        axes.set_title(
            f"after step {step}: {num_tokens} tokens, {num_computed} computed, "
            f"{len(block_ids) * block_size} slots in {len(block_ids)} blocks",
            fontsize=10.5,
            loc="left",
            weight="normal",
        )
        axes.set_xlim(-1.2, width + 0.1)
        axes.set_ylim(3.1, -0.1)
        axes.axis("off")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, weight="bold")
    kinds = {"keys and values are stored": COMPUTED, "newest token, nothing stored yet": NEWEST}
    patches = [Patch(facecolor=color, edgecolor=INK, label=text) for text, color in kinds.items()]
    patches.append(
        Patch(facecolor=EMPTY, edgecolor=GREY, hatch="////", label="allocated, not filled yet")
    )
    figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def _cell(
    axes: Axes, left: float, top: float, color: str, text: str, is_free: bool = False
) -> None:
    hatch = "////" if is_free else None
    box = Rectangle((left, top), 1, 1, facecolor=color, edgecolor=GREY, linewidth=0.8, hatch=hatch)
    axes.add_patch(box)
    background = {"facecolor": EMPTY, "edgecolor": "none", "pad": 1} if is_free else None
    axes.text(left + 0.5, top + 0.5, text, ha="center", va="center", fontsize=9.5, bbox=background)
