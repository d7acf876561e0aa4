"""What batching costs and gains: a padded batch, batch sizes, and memory that was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.style import BLUE, GREY, INK, ORANGE

PROMPT, ANSWER, WASTE = BLUE, "#a9c6ea", "#ececec"


def plot_padded_batch(
    names: Sequence[str], prompt_lens: Sequence[int], output_lens: Sequence[int]
) -> Figure:
    """A static batch as the rectangle that it is: prompts padded on the left, answers on the right.

    Args:
        names: of the requests, one for each row.
        prompt_lens: tokens of each prompt.
        output_lens: tokens of each answer. The batch runs until the longest is finished.
    """
    longest, steps = max(prompt_lens), max(output_lens)
    figure, axes = plt.subplots(figsize=(9.5, 0.33 * len(prompt_lens) + 1.3))
    for row, (prompt, output) in enumerate(zip(prompt_lens, output_lens, strict=True)):
        for left, width, color, hatch in (
            (0, longest - prompt, WASTE, "////"),
            (longest - prompt, prompt, PROMPT, ""),
            (longest, output, ANSWER, ""),
            (longest + output, steps - output, WASTE, "////"),
        ):
            box = Rectangle(
                (left, row - 0.42),
                width,
                0.84,
                facecolor=color,
                hatch=hatch,
                edgecolor="#c8c8c8" if hatch else color,
                linewidth=0,
            )
            axes.add_patch(box)
    useful = sum(prompt_lens) + sum(output_lens)
    waste = 1 - useful / (len(prompt_lens) * (longest + steps))
    axes.axvline(longest, color=INK, linewidth=1.2)
    axes.set_xlim(0, longest + steps)
    axes.set_ylim(len(prompt_lens) - 0.4, -0.6)
    axes.set_yticks(range(len(prompt_lens)), names)
    axes.set_ylabel("request")
    axes.set_xlabel("position in the tensor (the black line: prompts end, answers begin)")
    axes.grid(visible=False)
    axes.set_title(f"{waste:.0%} of the positions in the rectangle are wasted")
    labels = (
        (PROMPT, "", "prompt"),
        (ANSWER, "", "answer"),
        (WASTE, "////", "padding, or a finished row"),
    )
    patches = [Patch(facecolor=c, hatch=h, edgecolor="#b8b8b8", label=t) for c, h, t in labels]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def plot_batch_sweep(
    batch_sizes: Sequence[int],
    bound: Callable[[float], float],
    measured: Sequence[float],
    knee: float,
) -> Figure:
    """Throughput and time per output token against the number of requests in a decode step.

    Args:
        batch_sizes: requests, one token each.
        bound: the least seconds of a step with so many requests. Drawn between batch sizes, too,
            so that it bends where it does.
        measured: seconds of a step.
        knee: the batch size at which the bound begins to rise.
    """
    fine = np.unique([*np.linspace(batch_sizes[0], batch_sizes[-1], 256), knee])
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    for axes, scale in ((left, lambda b, s: b / s), (right, lambda b, s: 1e3 * s)):
        for sizes, seconds, style, color, label in (
            (fine, [bound(b) for b in fine], "--", INK, "the best that the peaks allow"),
            (batch_sizes, measured, "o-", BLUE, "measured"),
        ):
            values = [scale(b, s) for b, s in zip(sizes, seconds, strict=True)]
            axes.plot(sizes, values, style, color=color, label=label)
        label = f"predicted knee: {knee:.0f} requests"
        axes.axvline(knee, color=GREY, linestyle=":", linewidth=1.5, label=label)
        axes.set_xticks([b for b in batch_sizes if b >= batch_sizes[-1] / 8 or b == 1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("requests in the batch")
    handles = right.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9.5)
    left.set_title("A larger batch makes more tokens ...")
    left.set_ylabel("new tokens per second")
    right.set_title("... and each request waits longer")
    right.set_ylabel("time per output token (ms)")
    return figure


def plot_recovery(
    num_tokens: Sequence[int],
    recompute: tuple[Sequence[float], Sequence[float]],
    swap: tuple[Sequence[float], Sequence[float]],
) -> Figure:
    """What it costs to bring a preempted request back, by its length. Both axes are logarithmic.

    Args:
        num_tokens: tokens whose keys and values were lost or moved.
        recompute, swap: (predicted, measured) seconds.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for (predicted, measured), color, marker, name in (
        (recompute, ORANGE, "s", "recompute"),
        (swap, BLUE, "o", "swap"),
    ):
        for seconds, style, label in (
            (measured, marker + "-", f"{name}, measured"),
            (predicted, "--", f"{name}, predicted"),
        ):
            values = [1e3 * s for s in seconds]
            axes.plot(num_tokens, values, style, color=color, linewidth=1.8, label=label)
    wins = sum(s < r for r, s in zip(recompute[1], swap[1], strict=True))
    where = "every length" if wins == len(num_tokens) else f"{wins} of {len(num_tokens)} lengths"
    axes.set_title(f"Here swapping is cheaper at {where}")
    axes.set_ylabel("cost of coming back (ms, log scale)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(num_tokens, [str(n) for n in num_tokens])
    axes.set_xlabel("tokens of the preempted request (log scale)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure
