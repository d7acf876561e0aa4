"""Lesson 03's widget: the memory map of a small trace, under the policy that one chooses."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.sim.memory_map import map_memory
from utils.sim.memory_policies import Contiguous, Paged, Policy
from utils.viz.explore import Explorer
from utils.viz.memory.memory_map import draw_legend, draw_map, letter
from utils.viz.style import BLUE

# A small trace for the widget: 14 requests of at most 32 tokens, all waiting from the beginning.
_PROMPTS = (6, 13, 3, 9, 4, 17, 2, 8, 11, 5, 3, 14, 7, 4)
_OUTPUTS = (9, 17, 25, 4, 12, 8, 20, 6, 19, 28, 3, 11, 22, 10)
_NUM_SLOTS = 128
EXPLORED: dict[str, tuple[str, str]] = {
    "reserve the maximum, first fit": ("max", "first_fit"),
    "reserve the maximum, buddies": ("max", "buddy"),
    "reserve to a power of two, first fit": ("pow2", "first_fit"),
    "reserve to a power of two, buddies": ("pow2", "buddy"),
    "reserve exactly, first fit": ("oracle", "first_fit"),
    "reserve exactly, buddies": ("oracle", "buddy"),
    "blocks": ("", ""),
}


def plot_policy(allocator: str, max_model_len: int, block_size: int) -> Figure:
    """The memory map of a small trace under one policy, and the share that holds tokens.

    Args:
        allocator: a key of `EXPLORED`.
        max_model_len: what "the maximum" is; at least 32, the longest request of the trace.
        block_size: tokens per block, for "blocks".
    """
    reserve, placement = EXPLORED[allocator]
    policy: Policy = Paged(block_size)
    if reserve:
        policy = Contiguous(reserve, placement, max_model_len)  # type: ignore[arg-type]
    memory = map_memory(policy, _PROMPTS, _OUTPUTS, _NUM_SLOTS)
    num_steps = len(memory.states)
    used = memory.count("used") / _NUM_SLOTS
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 5), width_ratios=(4, 1), sharey=True)
    draw_map(left, memory)
    first_steps = slice(0, 25)
    starts = [np.argwhere(memory.owners == request)[0] for request in range(len(_PROMPTS))]
    for request, (step, slot) in enumerate(starts):
        left.text(slot + 0.3, step + 0.3, letter(request), color="white", va="top", fontsize=9)
    right.barh(range(num_steps), 100 * used, height=1.0, color=BLUE)
    right.set_xlim(0, 100)
    right.set_xlabel("% used")
    preempted = f", {memory.num_preemptions} preemptions" if memory.num_preemptions else ""
    figure.suptitle(
        f"{allocator}: {used[first_steps].mean():.0%} used in the first 25 steps, "
        f"all done after {num_steps}{preempted}",
        fontsize=12,
        weight="bold",
        x=0.01,
        ha="left",
    )
    draw_legend(figure)
    return figure


def memory_explorer() -> Explorer:
    """`plot_policy` with a control for each of its arguments."""
    return Explorer(
        plot_policy,
        allocator=ipywidgets.Dropdown(
            options=list(EXPLORED), value="reserve exactly, first fit", description="allocator"
        ),
        max_model_len=ipywidgets.SelectionSlider(
            options=[32, 48, 64, 96, 128], value=64, description="maximum"
        ),
        block_size=ipywidgets.SelectionSlider(
            options=[1, 2, 4, 8, 16, 32], value=4, description="block size"
        ),
    )
