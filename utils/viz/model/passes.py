"""The small widget of notebook 01: which tokens go through the network in each pass."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.explore import Explorer
from utils.viz.memory.repeated_work import ANSWER, PROMPT
from utils.viz.style import BLUE, ORANGE


def plot_passes(step: int) -> Figure:
    """A row for each pass: the tokens that go in, and the token that comes out.

    Args:
        step: passes so far, from 1. The first reads the whole prompt; each later one reads the
            token that the pass before it wrote.
    """
    words = PROMPT + ANSWER
    figure, axes = plt.subplots(figsize=(8.8, 3.4))
    for row in range(step):
        first, last = (0, len(PROMPT)) if row == 0 else (len(PROMPT) + row - 1, len(PROMPT) + row)
        for column in range(first, last):
            axes.add_patch(
                Rectangle((column, row), 0.9, 0.8, facecolor=BLUE if row == 0 else ORANGE)
            )
        axes.text(last + 0.1, row + 0.42, f"→ {_word(words[last])}", va="center", fontsize=10)
    for column, word in enumerate(words[: len(PROMPT) + step - 1]):
        axes.text(column + 0.45, -0.28, _word(word), ha="center", fontsize=8)
    num_tokens, passes = len(PROMPT) + step - 1, "1 pass" if step == 1 else f"{step} passes"
    axes.set_title(f"{num_tokens} tokens have gone through the network, in {passes}")
    axes.set_xlim(-0.1, len(words) + 1.6)
    axes.set_ylim(len(ANSWER), -0.9)
    axes.set_xticks([])
    axes.set_yticks([row + 0.42 for row in range(step)], [f"pass {row + 1}" for row in range(step)])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    patches = [
        Patch(facecolor=BLUE, label="tokens of the prompt"),
        Patch(facecolor=ORANGE, label="tokens that the model wrote"),
    ]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 0))
    return figure


def _word(token: str) -> str:
    return token.strip() if token.strip().isalpha() else f'"{token.strip()}"'


def passes_explorer() -> Explorer:
    """`plot_passes` with a slider for the number of passes."""
    slider = ipywidgets.IntSlider(3, min=1, max=len(ANSWER), description="passes")
    return Explorer(plot_passes, step=slider)
