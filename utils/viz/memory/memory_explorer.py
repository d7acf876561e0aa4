"""Lesson 03's widgets: small memories under a rule that one chooses, and the experiment."""

from __future__ import annotations

from collections.abc import Mapping

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.sim.memory_map import NOBODY, MemoryMap, map_memory
from utils.sim.memory_policies import STATES, Contiguous, Paged, Policy
from utils.sim.memory_waste import simulate
from utils.sim.traces import sharegpt_like_lengths
from utils.viz.explore import Explorer
from utils.viz.memory.memory_map import (
    draw_blocks,
    draw_legend,
    draw_map,
    letter,
    plot_waste,
    write_letters,
)
from utils.viz.style import BLUE

# Four requests in eight slots: what the lesson begins with.
_FEW_PROMPTS, _FEW_OUTPUTS = (3, 1, 3, 2), (1, 3, 2, 1)
RULES: dict[str, Policy] = {
    "reserve the maximum, 4 slots": Contiguous("max", "first_fit", max_model_len=4),
    "reserve exactly": Contiguous("oracle", "first_fit"),
    "blocks of two": Paged(2),
}
_LAST_STEP = 4
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
    runs = (memory.owners[:, :, None] == np.arange(len(_PROMPTS))).any(axis=1)  # [step, request]
    last_entry = int(np.nonzero(runs[1:] & ~runs[:-1])[0].max()) + 1
    if reserve:  # one piece each; in blocks a request is many strips
        starts = [np.argwhere(memory.owners == request)[0] for request in range(len(_PROMPTS))]
        for request, (step, slot) in enumerate(starts):
            left.text(slot + 0.3, step + 0.3, letter(request), color="white", va="top", fontsize=9)
    right.barh(range(num_steps), 100 * used, height=1.0, color=BLUE)
    right.set_xlim(0, 100)
    right.set_xlabel("% of the slots used")
    preempted = f", {memory.num_preemptions} preemptions" if memory.num_preemptions else ""
    figure.suptitle(
        f"{allocator[0].upper()}{allocator[1:]}: tokens fill {used[:last_entry].mean():.0%} "
        f"while requests wait; all done after {num_steps} steps{preempted}",
        fontsize=11,
        weight="bold",
        x=0.01,
        ha="left",
    )
    draw_legend(figure, [STATES[i] for i in np.unique(memory.states)])
    return figure


def plot_eight_slots(rule: str, step: int) -> Figure:
    """What eight slots hold, up to one step, when A, B, C and D ask for memory.

    Args:
        rule: a key of `RULES`.
        step: from 0.
    """
    memory = map_memory(RULES[rule], _FEW_PROMPTS, _FEW_OUTPUTS, 8)
    num_steps = len(memory.states)
    shown = MemoryMap(memory.states[: step + 1], memory.owners[: step + 1], memory.num_running, 0)
    first_steps = {letter(r): int(np.argwhere(memory.owners == r)[0, 0]) for r in range(4)}
    begins = first_steps["C"]
    figure, axes = plt.subplots(figsize=(8, 3.4))
    draw_map(axes, shown)
    write_letters(axes, shown)
    if isinstance(policy := RULES[rule], Paged):
        draw_blocks(axes, shown, policy.block_size)
    for row in range(len(shown.states)):
        axes.text(7.65, row, _who_waits(first_steps, row), va="center", fontsize=10)
    axes.set_ylim(_LAST_STEP + 0.5, -0.5)
    axes.set_yticks(range(_LAST_STEP + 1))
    if step >= num_steps:
        found = f"Step {step}: all requests are done, the last one ended in step {num_steps - 1}"
    elif step < begins:
        empty = int((memory.owners[step] == NOBODY).sum())
        taken = f"{empty} of the 8 slots belong to nobody" if empty else "all 8 slots are taken"
        found = f"Step {step}: {_who_waits(first_steps, step)}, and {taken}"
    else:
        found = f"Step {step}: C has been in memory since step {begins}"
    axes.set_title(found)
    draw_legend(figure)
    return figure


def _who_waits(first_steps: Mapping[str, int], step: int) -> str:
    """ "C and D wait", or nothing if all requests have entered by that step."""
    late = [name for name, first_step in first_steps.items() if first_step > step]
    return f"{' and '.join(late)} {'waits' if len(late) == 1 else 'wait'}" if late else ""


def eight_slots_explorer() -> Explorer:
    """`plot_eight_slots` with buttons for the rule, and a slider for the step."""
    return Explorer(
        plot_eight_slots,
        rule=ipywidgets.ToggleButtons(options=list(RULES), description="rule"),
        step=ipywidgets.IntSlider(0, min=0, max=_LAST_STEP, description="step"),
    )


def spread_explorer(
    policies: Mapping[str, Policy], published: Mapping[str, Mapping[str, float]], num_slots: int
) -> Explorer:
    """The paper's experiment with a slider for the spread of the answers' lengths.

    Args:
        policies: by name.
        published: of each, what the paper measured: state -> share of the memory.
        num_slots: size of the memory.
    """

    def draw(spread: float) -> Figure:
        lengths = sharegpt_like_lengths(4000, seed=0, spread=spread)
        shares = {}
        for name, policy in policies.items():
            usage = simulate(policy, *lengths, num_slots, sample_every=20)
            shares[name] = usage.shares(0, 0.8 * usage.num_steps)
        used = ", ".join(f"{name} {share['used']:.1%}" for name, share in shares.items())
        title = f"With a spread of {spread}, tokens fill this share of the memory:\n{used}"
        return plot_waste(shares, {name: published[name] for name in shares}, title)

    return Explorer(
        draw,
        spread=ipywidgets.SelectionSlider(
            options=[0.5, 0.6, 0.7, 0.88, 1.0, 1.2], value=0.88, description="spread"
        ),
    )


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
