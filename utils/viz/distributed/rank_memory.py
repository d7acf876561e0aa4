"""What each rank holds, as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.style import BLUE, INK, ORANGE

MIB = 2**20


def plot_rank_memory(
    layouts: Mapping[str, Sequence[tuple[int, int]]],
    predicted: Mapping[str, Sequence[tuple[int, int]]] | None = None,
) -> Figure:
    """A bar for each rank of each layout: weights, and KV cache.

    Args:
        layouts: by label, bytes of weights and of KV cache of each rank. The others are compared
            with the first.
        predicted: the same by formula; drawn as marks beside the bars.
    """
    names = [
        f"{label}, rank {rank}" if len(ranks) > 1 else label
        for label, ranks in layouts.items()
        for rank in range(len(ranks))
    ]
    rows = [memory for ranks in layouts.values() for memory in ranks]
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.33 * len(rows)))
    weights, caches = ([row[i] / MIB for row in rows] for i in (0, 1))
    axes.barh(names, weights, color=BLUE, label="weights")
    axes.barh(names, caches, left=weights, color=ORANGE, label="KV cache")
    if predicted is not None:
        sums = [sum(memory) / MIB for ranks in predicted.values() for memory in ranks]
        axes.plot(
            sums,
            range(len(sums)),
            "|",
            color=INK,
            markersize=16,
            markeredgewidth=2.5,
            label="by the formula",
            linestyle="none",
        )
    first = next(iter(layouts.values()))
    others = [sum(row) for row in rows[len(first) :] or rows]
    fullest = max(others) / max(map(sum, first))
    who = "Each rank" if len(set(others)) == 1 else "The fullest rank"
    axes.invert_yaxis()
    axes.margins(x=0.05)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("MiB")
    axes.set_title(f"{who} holds {fullest:.0%} of what {next(iter(layouts))} holds")
    axes.legend(loc="lower right")
    return figure
