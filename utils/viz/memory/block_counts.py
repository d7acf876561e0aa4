"""How many blocks are in use, and what their size costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREY, ORANGE


def plot_blocks_over_steps(
    in_use: Sequence[int],
    with_copies: Sequence[int],
    title: str,
    block_size: int,
    each: str = "answer",
) -> Figure:
    """Blocks held after each step: shared, and what separate copies would have taken.

    Args:
        in_use: different blocks in all tables together.
        with_copies: the sum of the tables' lengths.
        title: the finding.
        block_size: tokens per block, for the label.
        each: what has a table of its own: an answer, or a beam.
    """
    figure, axes = plt.subplots()
    steps = range(1, len(in_use) + 1)
    for values, label, color, style in (
        (with_copies, f"a copy for each {each}", ORANGE, "--"),
        (in_use, "shared, as measured", BLUE, "-"),
    ):
        axes.step(steps, values, where="post", color=color, linestyle=style, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"step (one token more for each {each})")
    axes.set_ylabel(f"blocks of {block_size} tokens")
    axes.set_title(title)
    axes.legend()
    return figure


def plot_block_size_tradeoff(
    block_sizes: Sequence[int],
    predicted_waste: Sequence[float],
    waste: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
) -> Figure:
    """Waste on the left, time of attention on the right, over block sizes.

    Args:
        block_sizes: tokens per block.
        predicted_waste, waste: part of the allocated slots that holds no token, 0 to 1.
        seconds: of attention for one token in one layer, by the name of the method.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    left.plot(block_sizes, [100 * w for w in predicted_waste], "--", color=GREY, label="predicted")
    left.plot(block_sizes, [100 * w for w in waste], "o", color=BLUE, label="counted")
    left.set_title("Small blocks waste little")
    left.set_ylabel("% of allocated slots without a token")
    styles = ((ORANGE, "s"), (BLUE, "o"), (GREY, "^"))
    for (name, values), (color, marker) in zip(seconds.items(), styles, strict=False):
        right.plot(block_sizes, [1e3 * s for s in values], marker=marker, color=color, label=name)
    right.set_yscale("log")
    right.set_title("The loop is faster with large blocks")
    right.set_ylabel("milliseconds, one token, one layer")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(block_sizes, [str(size) for size in block_sizes])
        axes.set_xlabel("block size (tokens)")
        axes.legend()
    return figure
