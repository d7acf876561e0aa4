"""The small widget of notebook 05: one word of a prompt changes; which blocks are still found?"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.explore import Explorer
from utils.viz.style import GREEN, INK, ORANGE, RED

# Sixteen words, each of which stands for a token, and what a changed word becomes.
PROMPT = "You sort the mail of a clinic . Is this letter urgent ? Dear Clara ,"
CHANGES = "We read some post for our hotel ! Was that message polite ! Hello Peter :"
FIRST, OTHER = tuple(PROMPT.split()), tuple(CHANGES.split())
BLOCK_SIZES = (1, 2, 4, 8)


def block_names(words: Sequence[str], block_size: int) -> list[str]:
    """The name of each block: a hash of the name before it and of the block's words."""
    names: list[str] = []
    for begin in range(0, len(words), block_size):
        parts = [names[-1] if names else "", *words[begin : begin + block_size]]
        names.append(sha256(" ".join(parts).encode()).hexdigest())
    return names


def plot_prefix_chain(changed: int, block_size: int) -> Figure:
    """Two requests, the second with a changed word: which of its blocks are found?

    Args:
        changed: number of the word that is another one, from 1; 0 if the prompts are equal.
        block_size: words in a block, a divisor of 16.
    """
    second = list(FIRST)
    if changed:
        second[changed - 1] = OTHER[changed - 1]
    known, names = block_names(FIRST, block_size), block_names(second, block_size)
    num_found = 0  # in blocks; at least one word is left to compute
    while num_found < (len(FIRST) - 1) // block_size and names[num_found] == known[num_found]:
        num_found += 1
    figure, axes = plt.subplots(figsize=(9.5, 3.1))
    _draw_request(axes, 0, "first", FIRST, known, 0, 0)
    _draw_request(axes, 2, "second", second, names, num_found, changed)
    what = f"Word {changed} changes" if changed else "The same prompt again"
    left = len(FIRST) - num_found * block_size
    axes.set_title(
        f"{what}. Found: {num_found} of {len(names)} blocks. Computed: {left} of {len(FIRST)} words"
    )
    axes.set_xlim(-1.3, len(FIRST) + 0.1)
    axes.set_ylim(3.45, -0.3)
    axes.axis("off")
    patches = [
        Patch(facecolor=ORANGE, label="computed"),
        Patch(facecolor=GREEN, label="found: nothing to compute"),
        Patch(facecolor="white", edgecolor=RED, linewidth=2, label="the changed word"),
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return figure


def _draw_request(
    axes: Axes,
    top: int,
    title: str,
    words: Sequence[str],
    names: Sequence[str],
    num_found: int,
    changed: int,
) -> None:
    size = len(words) // len(names)
    axes.text(-1.25, top + 0.4, title, va="center", weight="bold")
    axes.text(-1.25, top + 1.05, "name", va="center", fontsize=9)
    for column, word in enumerate(words):
        is_changed = column == changed - 1
        color = GREEN if column < num_found * size else ORANGE
        axes.add_patch(Rectangle((column + 0.04, top), 0.92, 0.8, facecolor=color))
        if is_changed:
            border = Rectangle((column + 0.04, top), 0.92, 0.8, fill=False, edgecolor=RED)
            border.set(linewidth=2.5, zorder=4)
            axes.add_patch(border)
        weight = "bold" if is_changed else "normal"
        axes.text(
            column + 0.5, top + 0.4, word, ha="center", va="center", fontsize=9, weight=weight
        )
    for number, name in enumerate(names):
        left, right = number * size + 0.06, (number + 1) * size - 0.06
        axes.plot([left, right], [top + 0.88] * 2, color=INK, linewidth=1.5, clip_on=False)
        short, style = name[: 3 if size == 1 else 6], {"ha": "center", "va": "center"}
        axes.text((left + right) / 2, top + 1.06, short, fontsize=8.5, family="monospace", **style)  # type: ignore[arg-type]


def prefix_chain_explorer() -> Explorer:
    """`plot_prefix_chain` with controls for the changed word and the size of a block."""
    changed = ipywidgets.IntSlider(7, min=0, max=len(FIRST), description="changed word (0: none)")
    sizes = ipywidgets.SelectionSlider(options=BLOCK_SIZES, value=4, description="words in a block")
    return Explorer(plot_prefix_chain, changed=changed, block_size=sizes)
