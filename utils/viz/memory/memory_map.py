"""Pictures of KV memory: what its slots hold, and how much of it is wasted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.sim.memory_map import NOBODY, MemoryMap
from utils.sim.memory_policies import STATES
from utils.viz.style import BLUE, GREY, INK, ORANGE

# Each brighter than the one before, so that they differ in grey as well.
STATE_COLORS = dict(zip(STATES, (BLUE, ORANGE, "#9dd08c", "#e0e0e0", "white"), strict=True))
STATE_LABELS = {
    "used": "holds a token",
    "reserved": "reserved for a later token",
    "internal": "never used",
    "external": "lost to placement",
    "free": "free",
}
_COLORS = ListedColormap([STATE_COLORS[state] for state in STATES])


def plot_memory_map(memory: MemoryMap, title: str, block_size: int = 0) -> Figure:
    """Slots from left to right, steps from top to bottom; a letter names a slot's owner.

    Letters are written if the memory is small enough to read them.

    Args:
        memory: from `utils.sim.memory_map.map_memory`.
        title: the finding.
        block_size: slots between two thick lines; 0 for none.
    """
    num_steps, num_slots = memory.states.shape
    small = num_slots <= 32 and num_steps <= 32
    size = (0.5 * num_slots + 2.2, 0.4 * num_steps + 1.6) if small else (8.5, 4.4)
    figure, axes = plt.subplots(figsize=(max(size[0], 7.5), size[1]))
    draw_map(axes, memory)
    if small:
        write_letters(axes, memory)
    if block_size:
        draw_blocks(axes, memory, block_size)
    axes.set_title(title)
    draw_legend(figure, [STATES[i] for i in np.unique(memory.states)])
    return figure


def write_letters(axes: Axes, memory: MemoryMap) -> None:
    """Each slot's owner, bold where it holds a token, and thin lines between the slots."""
    num_steps, num_slots = memory.states.shape
    axes.set_xticks(range(num_slots))
    axes.set_yticks(range(num_steps))
    axes.vlines(np.arange(num_slots) - 0.5, -0.5, num_steps - 0.5, color="white", linewidth=1)
    for (step, slot), owner in np.ndenumerate(memory.owners):
        if owner != NOBODY:
            used = memory.states[step, slot] == STATES.index("used")
            axes.text(
                slot,
                step,
                letter(owner),
                ha="center",
                va="center",
                color="white" if used else INK,
                weight="bold" if used else "normal",
            )


def draw_blocks(axes: Axes, memory: MemoryMap, block_size: int) -> None:
    """Thick lines where blocks begin and end."""
    num_steps, num_slots = memory.states.shape
    borders = np.arange(0, num_slots + 1, block_size) - 0.5
    axes.vlines(borders, -0.5, num_steps - 0.5, color=INK, linewidth=3)


def letter(request: int) -> str:
    """The name of a request."""
    return chr(ord("A") + request) if request < 26 else str(request)


def draw_map(axes: Axes, memory: MemoryMap) -> None:
    """The map itself, in axes that are given."""
    num_steps, num_slots = memory.states.shape
    axes.imshow(
        memory.states,
        cmap=_COLORS,
        vmin=0,
        vmax=len(STATES) - 1,
        aspect="auto",
        interpolation="nearest",
    )
    # A line wherever a slot's owner differs from that of its neighbour, in memory or in time.
    owners = memory.owners
    steps, slots = np.nonzero(owners[:, 1:] != owners[:, :-1])
    axes.vlines(slots + 0.5, steps - 0.5, steps + 0.5, color=INK, linewidth=0.8)
    steps, slots = np.nonzero(owners[1:] != owners[:-1])
    axes.hlines(steps + 0.5, slots - 0.5, slots + 0.5, color=INK, linewidth=0.8)
    axes.set_xlim(-0.5, num_slots - 0.5)
    axes.set_ylim(num_steps - 0.5, -0.5)
    axes.set_xlabel("slot of the memory (one token each)")
    axes.set_ylabel("step")
    axes.grid(visible=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def draw_legend(figure: Figure, states: Iterable[str] = STATES, more: Sequence[Patch] = ()) -> None:
    """What the colors of the states mean, and `more` patches with their labels."""
    patches = [
        Patch(
            facecolor=STATE_COLORS[state], edgecolor=INK, linewidth=0.8, label=STATE_LABELS[state]
        )
        for state in states
    ]
    ncols = 3 if more else 5
    figure.legend(handles=[*patches, *more], loc="outside lower center", ncols=ncols, fontsize=9.5)


def plot_card(weights: float, pool: Mapping[str, float], rest: float, title: str) -> Figure:
    """One bar: what a card's memory holds, in GiB.

    Args:
        weights: of the model.
        pool: what the KV cache has in each state; states that it lacks may be missing.
        rest: activations, and the runtime.
        title: the finding.
    """
    parts = [("weights", weights, GREY)]
    parts += [
        (STATE_LABELS[state], pool[state], STATE_COLORS[state]) for state in STATES if state in pool
    ]
    parts.append(("activations and runtime", rest, "#c8b8a0"))
    figure, axes = plt.subplots(figsize=(8.5, 2.6))
    left = 0.0
    for label, size, color in parts:
        label = f"{label}: {size:.1f} GiB"
        axes.barh(0, size, left=left, color=color, edgecolor=INK, linewidth=0.8, label=label)
        left += size
    end = weights + sum(pool.values())
    axes.hlines(0.5, weights, end, color=INK, linewidth=1.5)
    axes.text((weights + end) / 2, 0.55, "KV cache", ha="center", va="bottom")
    axes.set_xlim(0, left)
    axes.set_ylim(-0.45, 0.85)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("GiB of the card's memory")
    axes.set_title(title)
    axes.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9.5)
    return figure


def plot_lengths(prompt_lens: np.ndarray, output_lens: np.ndarray, max_model_len: int) -> Figure:
    """How long the requests of a trace are, prompt and answer, and the longest text allowed.

    Args:
        prompt_lens, output_lens: tokens, `[num_requests]`.
        max_model_len: the longest text allowed.
    """
    totals = prompt_lens + output_lens
    figure, axes = plt.subplots(figsize=(8, 3.4))
    axes.hist(totals, bins=np.arange(0, max_model_len + 64, 64), color=BLUE)
    top = axes.get_ylim()[1]
    for value, label, side in (
        (totals.mean(), "mean", "left"),
        (max_model_len, "the longest text allowed", "right"),
    ):
        axes.axvline(value, color=INK, linestyle="--", linewidth=1.5)
        axes.text(value, top, f" {label}: {value:,.0f} ", ha=side, va="top")
    axes.set_xlim(0, max_model_len * 1.01)
    axes.set_xlabel("tokens of a request, prompt and answer")
    axes.set_ylabel("requests")
    half = max_model_len // 2
    few = (totals < half).mean()
    axes.set_title(f"{few:.0%} of the requests need fewer than {half:,} tokens, half of the limit")
    return figure


def plot_waste(
    shares: Mapping[str, Mapping[str, float]],
    published: Mapping[str, Mapping[str, float]],
    title: str,
) -> Figure:
    """Two stacked bars per policy: simulated here, and as the paper measured it.

    Args:
        shares: mean share of each state, by the name of the policy.
        published: the same from the paper; what the states it gives leave over is hatched.
        title: the finding.
    """
    look = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.6, "hatch": "////"}
    unknown: list[Patch] = []
    figure, axes = plt.subplots(figsize=(8.5, 0.95 * len(shares) + 1.6))
    names = list(shares)
    for row, name in enumerate(names):
        for offset, label, bar in (
            (-0.2, "simulated here", shares[name]),
            (0.2, "the paper", published[name]),
        ):
            left = 0.0
            for state in STATES:
                width = 100 * bar.get(state, 0.0)
                axes.barh(
                    row + offset,
                    width,
                    left=left,
                    height=0.36,
                    color=STATE_COLORS[state],
                    edgecolor=INK,
                    linewidth=0.6,
                )
                if width > 4 and state != "free":
                    color = "white" if state == "used" else INK
                    axes.text(
                        left + width / 2,
                        row + offset,
                        f"{width:.1f}",
                        ha="center",
                        va="center",
                        color=color,
                        fontsize=9,
                    )
                left += width
            if left < 99.5:
                axes.barh(row + offset, 100 - left, left=left, height=0.36, **look)
                unknown = [Patch(**look, label="the paper doesn't say")]  # type: ignore[arg-type]
            axes.text(101, row + offset, label, va="center", fontsize=9.5, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the KV memory, mean over time")
    axes.set_title(title)
    axes.grid(visible=False)
    draw_legend(figure, more=unknown)
    return figure
