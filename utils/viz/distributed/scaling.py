"""What more ranks buy, by formula: time per token, and tokens per second on equal hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.distributed.hardware import Cluster
from utils.distributed.layouts import Layout
from utils.distributed.shapes import Shape
from utils.distributed.step_time import decode_step
from utils.viz.style import BLUE, COLORS, INK, ORANGE

RANKS = (1, 2, 4, 8, 16, 32)


def throughputs(
    shape: Shape, layout: Layout, where: Cluster, requests: Sequence[int], context: int
) -> list[float]:
    """Tokens per second of all replicas together, for so many requests in all.

    Args:
        requests: of all replicas together; each is a multiple of their number.
        context: tokens of each request.
    """
    return [
        decode_step(
            shape, layout, where, total // layout.data_parallel_size, context
        ).tokens_per_second
        for total in requests
    ]


def crossing(requests: Sequence[int], one: Sequence[float], other: Sequence[float]) -> int | None:
    """The first number of requests from which on `other` is above `one`; None if it never is."""
    above = [b > a for a, b in zip(one, other, strict=True)]
    return next((n for i, n in enumerate(requests) if all(above[i:])), None)


def plot_tp_latency(
    shape: Shape, clusters: Mapping[str, Cluster], batches: Sequence[int], context: int = 2048
) -> Figure:
    """Milliseconds for one token of each answer, against tensor-parallel ranks.

    Args:
        clusters: by label.
        batches: requests in the batch, a panel for each.
        context: tokens of each request.
    """
    figure, grid = plt.subplots(1, len(batches), figsize=(9, 3.9), squeeze=False, sharey=True)
    best: set[int] = set()
    for axes, batch in zip(grid[0], batches, strict=True):
        for (label, where), color, marker in zip(
            clusters.items(), (BLUE, ORANGE), "os", strict=False
        ):
            times = [
                1e3
                * decode_step(shape, Layout(tensor_parallel_size=n), where, batch, context).seconds
                for n in RANKS
            ]
            best.add(RANKS[times.index(min(times))])
            axes.plot(range(len(RANKS)), times, marker + "-", color=color, label=label)
            lowest = times.index(min(times))
            axes.annotate(
                f"{times[lowest]:.1f}",
                (lowest, times[lowest]),
                xytext=(0, -14 if color == BLUE else 8),
                textcoords="offset points",
                ha="center",
                color=INK,
                fontsize=9.5,
            )
        axes.set_xticks(range(len(RANKS)), [str(n) for n in RANKS])
        axes.set_xlabel("tensor-parallel ranks (8 cards in a server)")
        axes.set_title(
            f"{batch} request{'s' if batch > 1 else ''} of {context:,} tokens", fontsize=11
        )
    grid[0, 0].set_ylim(0, None)
    grid[0, 0].set_ylabel("ms per token")
    grid[0, 0].legend()
    where_best = " or ".join(map(str, sorted(best)))
    figure.suptitle(f"By formula, a token is fastest with {where_best} ranks", x=0.02, ha="left")
    return figure


def plot_equal_hardware(
    shape: Shape,
    layouts: Mapping[str, Layout],
    clusters: Mapping[str, Cluster],
    requests: Sequence[int] = (8, 16, 32, 64, 128, 256, 512),
    context: int = 2048,
) -> Figure:
    """Tokens per second of different layouts of the same cards, against requests in all.

    Args:
        layouts: by label; all of as many ranks.
        clusters: by label, a panel for each.
        requests: of all replicas together.
        context: tokens of each request.

    Raises:
        ValueError: the layouts take different numbers of cards.
    """
    if len({layout.world_size for layout in layouts.values()}) != 1:
        raise ValueError("Compare layouts of equally many cards.")
    figure, grid = plt.subplots(1, len(clusters), figsize=(9, 3.9), squeeze=False, sharey=True)
    turns: set[int | None] = set()
    for axes, (name, where) in zip(grid[0], clusters.items(), strict=True):
        rows = {
            label: throughputs(shape, layout, where, requests, context)
            for label, layout in layouts.items()
        }
        for (label, row), color, marker in zip(rows.items(), COLORS, "osD^v", strict=False):
            axes.plot(range(len(requests)), row, marker + "-", color=color, label=label)
        first, second = list(rows)[:2]
        turn = crossing(requests, rows[first], rows[second])
        turns.add(turn)
        verdict = f"{second} leads from {turn} on" if turn else f"{first} leads throughout"
        axes.set_title(f"{name}: {verdict}", fontsize=11)
        axes.set_xticks(range(len(requests)), [str(n) for n in requests])
        axes.set_xlabel(f"requests in all, of {context:,} tokens each")
    grid[0, 0].set_ylim(0, None)
    grid[0, 0].set_ylabel("tokens per second")
    grid[0, 0].legend()
    cards = next(iter(layouts.values())).world_size
    what = "depends on the links" if len(turns) > 1 else "is the same for these links"
    figure.suptitle(
        f"By formula, which layout of {cards} cards writes most {what}", x=0.02, ha="left"
    )
    return figure
