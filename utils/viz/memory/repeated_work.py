"""The small widget of notebook 02: which tokens go through the network, step by step."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, INK, ORANGE

# What the course's model writes at temperature 0, token by token.
PROMPT = ("The", " wind", " was", " gentle", " and")
ANSWER = (" soothing", ",", " a", " gentle", " breeze", " that", " carried", " the", " scent")


def plot_repeated_work(step: int) -> Figure:
    """What generation without a cache computes: a row for each step, a square for each token.

    Args:
        step: steps so far, from 1. Each ends in one token of the answer.
    """
    words = PROMPT + ANSWER
    figure, axes = plt.subplots(figsize=(8, 3.4))
    for row in range(step):
        num_tokens = len(PROMPT) + row
        for column in range(num_tokens):
            is_new = row == 0 or column == num_tokens - 1
            color = BLUE if is_new else ORANGE
            axes.add_patch(
                Rectangle(
                    (column, row), 0.9, 0.82, facecolor=color, alpha=1 if row == step - 1 else 0.45
                )
            )
        axes.text(
            num_tokens + 0.15, row + 0.45, f"→ {_word(words[num_tokens])}", va="center", fontsize=10
        )
    for column, word in enumerate(words[: len(PROMPT) + step - 1]):
        axes.text(column + 0.45, -0.25, _word(word), ha="center", fontsize=8, color=INK)
    last = len(PROMPT) + step - 1
    total = sum(len(PROMPT) + row for row in range(step))
    again = last - 1 if step > 1 else 0
    axes.set_title(
        f"Step {step}: the network reads {last} tokens, and has read {again} of them before\n"
        f"({total} in all steps together, for an answer of {step} token{'s' if step > 1 else ''})"
    )
    axes.set_xlim(-0.1, len(words) + 2)
    axes.set_ylim(len(ANSWER), -0.8)
    axes.set_yticks([row + 0.41 for row in range(step)], [f"step {row + 1}" for row in range(step)])
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    patches = [
        Patch(facecolor=BLUE, label="read for the first time"),
        Patch(facecolor=ORANGE, label="read again"),
        Patch(facecolor="#e3e3e3", label="pale: earlier steps"),
    ]
    axes.legend(handles=patches, loc="upper right", bbox_to_anchor=(1, 0.9))
    return figure


def _word(token: str) -> str:
    return token.strip() if token.strip().isalpha() else f'"{token.strip()}"'


def repeated_work_explorer() -> Explorer:
    """`plot_repeated_work` with a slider for the step."""
    slider = ipywidgets.IntSlider(6, min=1, max=len(ANSWER), description="step")
    return Explorer(plot_repeated_work, step=slider)
