"""A ring all-reduce, step by step: which rank has added up how much of which chunk."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from utils.viz.style import BLUE, INK, ORANGE

State = list[list[int]]  # [rank][chunk] -> how many ranks' numbers are in it


def ring_states(num_ranks: int) -> list[tuple[State, list[int]]]:
    """A ring all-reduce, from its start to its end.

    Returns:
        The state before the first step and after each one, each with the chunk that just arrived
        at each rank (none at the start). Reduce-scatter takes the first N - 1 steps, all-gather the
        others.

    Raises:
        ValueError: fewer than two ranks.
    """
    if num_ranks < 2:
        raise ValueError(f"A ring needs two ranks or more, not {num_ranks}.")
    ranks = range(num_ranks)
    state = [[1] * num_ranks for _ in ranks]
    states: list[tuple[State, list[int]]] = [([row[:] for row in state], [])]
    for step in range(1, 2 * num_ranks - 1):
        adding = step < num_ranks
        # Reduce-scatter: chunk r starts at rank r + 1. All-gather: at rank r, where it's complete.
        arriving = [
            (rank - (step + 1 if adding else step - num_ranks + 1)) % num_ranks for rank in ranks
        ]
        sent = [state[rank - 1][chunk] for rank, chunk in enumerate(arriving)]
        for rank, chunk in enumerate(arriving):
            state[rank][chunk] = sent[rank] + (state[rank][chunk] if adding else 0)
        states.append(([row[:] for row in state], arriving))
    return states


def plot_ring(num_ranks: int = 4) -> Figure:
    """A small table for each step: a row for each rank, a column for each chunk.

    A number says how many ranks' numbers are added up in the chunk. A frame is around what has just
    arrived from the rank above (at rank 0: from the last one); complete chunks are filled.

    Args:
        num_ranks: in the ring, two or more.
    """
    states = ring_states(num_ranks)
    figure, grid = plt.subplots(1, len(states), figsize=(9, 2.5), sharey=True)
    for step, (axes, (state, arriving)) in enumerate(zip(grid, states, strict=True)):
        _draw(axes, state, arriving)
        axes.set_title("start" if step == 0 else f"step {step}", fontsize=10.5, loc="center")
    grid[0].set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
    first = next(
        step for step, (state, _) in enumerate(states) if all(num_ranks in row for row in state)
    )
    figure.supxlabel(
        "columns: chunks; number: how many ranks are in the sum; frame: has just arrived",
        fontsize=10.5,
    )
    last = len(states) - 1
    figure.suptitle(
        f"After {first} steps each rank has one complete chunk, after {last} all of them",
        x=0.02,
        ha="left",
        fontsize=12,
    )
    return figure


def _draw(axes: Axes, state: State, arriving: list[int]) -> None:
    size = len(state)
    for rank, row in enumerate(state):
        for chunk, count in enumerate(row):
            complete = count == size
            new = bool(arriving) and arriving[rank] == chunk
            corner = (chunk - 0.5, rank - 0.5)
            fill = BLUE if complete else "white"
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=fill, edgecolor="#cccccc"))
            if new:
                inner = (chunk - 0.44, rank - 0.44)
                frame = Rectangle(
                    inner, 0.88, 0.88, fill=False, edgecolor=ORANGE, linewidth=2.4, zorder=3
                )
                axes.add_patch(frame)
            axes.text(
                chunk,
                rank,
                str(count),
                ha="center",
                va="center",
                color="white" if complete else INK,
                fontsize=10,
            )
    axes.set_xlim(-0.55, size - 0.45)
    axes.set_ylim(size - 0.45, -0.55)
    axes.set_aspect("equal")
    axes.set_xticks(range(size), [str(chunk) for chunk in range(size)], fontsize=9)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
