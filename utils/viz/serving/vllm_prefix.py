"""Pictures of notebook 13: what vLLM's prefix cache finds, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

_LINES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "D"))


def plot_staircase(
    predicted: Mapping[int, tuple[Sequence[int], Sequence[int]]],
    measured: Mapping[int, tuple[Sequence[int], Sequence[int]]],
) -> Figure:
    """Tokens found against tokens shared, a line per block size.

    Args:
        predicted, measured: block size -> (tokens shared, tokens found), of equal lengths.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    for (size, (shared, found)), (color, dashes, marker) in zip(
        predicted.items(), _LINES, strict=False
    ):
        axes.step(
            shared,
            found,
            where="post",
            color=color,
            linestyle=dashes,
            linewidth=1.6,
            label=f"blocks of {size}: predicted",
        )
        axes.plot(
            *measured[size],
            color=color,
            marker=marker,
            markeredgecolor=INK,
            linestyle="none",
            markersize=10 if marker == "o" else 6,  # so that no point hides another
            label=f"blocks of {size}: vLLM",
        )
    axes.set_xlabel("tokens that a prompt shares with an earlier one")
    axes.set_ylabel("tokens found in the cache")
    axes.set_title("Only whole blocks are found: hits are a staircase")
    axes.legend(loc="upper left")
    return figure


def plot_alone_and_behind(
    waits: Mapping[int, tuple[Sequence[float], Sequence[float]]], title: str
) -> Figure:
    """The wait behind cached tokens against the wait of the same new tokens alone.

    Args:
        waits: cached tokens -> (milliseconds alone, milliseconds behind them), of equal lengths.
        title: a sentence on what the points show.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    all_waits = [ms for pair in waits.values() for group in pair for ms in group]
    ends = 0.9 * min(all_waits), 1.1 * max(all_waits)
    axes.plot(ends, ends, color=INK, linestyle=":", label="as long as alone")
    for (cached, (alone, behind)), (color, _, marker) in zip(waits.items(), _LINES, strict=False):
        axes.plot(
            alone,
            behind,
            color=color,
            marker=marker,
            markeredgecolor=INK,
            linestyle="none",
            alpha=0.85,
            label=f"behind {cached:,} cached tokens",
        )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("time to first token, nothing cached (ms)")
    axes.set_ylabel("the same behind cached tokens (ms)")
    axes.set_title(title)
    axes.legend(loc="upper left")
    return figure


def plot_cache_sizes(
    num_blocks: Sequence[int],
    hit_rates: Mapping[str, Sequence[float]],
    measured_at: int,
    measured: Mapping[str, float],
) -> Figure:
    """Hit rate against the number of blocks, a line per order of the same requests.

    Args:
        num_blocks: cache sizes, in blocks.
        hit_rates: order -> predicted hit rate in 0..1 for each size.
        measured_at: the size with which vLLM ran.
        measured: order -> vLLM's hit rate at that size.
    """
    figure, axes = plt.subplots(figsize=(8, 4))
    for (order, rates), (color, dashes, marker) in zip(hit_rates.items(), _LINES, strict=False):
        axes.plot(  # points, because there is no half a block
            num_blocks,
            [100 * r for r in rates],
            color=color,
            linestyle=dashes,
            drawstyle="steps-post",
            linewidth=1,
            marker=marker,
            markersize=4 if marker == "s" else 7,  # so that the second doesn't hide the first
            label=f"{order}: predicted",
        )
        axes.plot(
            [measured_at],
            [100 * measured[order]],
            color=color,
            marker=marker,
            markersize=10,
            markeredgecolor=INK,
            linestyle="none",
            label=f"{order}: vLLM",
        )
    axes.axvline(measured_at, color=GREY, linewidth=1, label="the cache of this engine")
    axes.set_ylim(-3, max(100 * max(map(max, hit_rates.values())) * 1.15, 10))
    axes.set_xlabel("blocks in the cache")
    axes.set_ylabel("prompt tokens found (%)")
    axes.set_title(_order_title(measured_at, measured))
    axes.legend(loc="lower right")
    return figure


def _order_title(measured_at: int, measured: Mapping[str, float]) -> str:
    low, *_, high = sorted(measured.values())
    return f"With {measured_at} blocks, vLLM finds {high:.0%} in one order and {low:.0%} in another"
