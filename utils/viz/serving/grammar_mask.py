"""The widget of notebook 13b: which tokens may come next if only some words are allowed."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK

_SHOWN = 18  # allowed tokens that are named
_COLUMNS = 6


def plot_mask(vocabulary: Sequence[str], choices: Sequence[str], answer: str, step: int) -> Figure:
    """The choices that are still open after `step` characters of `answer`, and the allowed tokens.

    Args:
        vocabulary: every token as text.
        choices: what the whole answer may be.
        answer: the one that is being written.
        step: how many of its characters are written.
    """
    written = answer[:step]
    still = [choice for choice in choices if choice.startswith(written)]
    rests = {choice[step:] for choice in still}
    allowed = sorted(
        {t for t in vocabulary if t and any(rest.startswith(t) for rest in rests)}, key=len
    )
    num_allowed = len(allowed) or 1  # nothing is left to write: the end of the answer alone
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(1, 2))
    for axes in (left, right):
        axes.axis("off")
        axes.set_xlim(0, 1)
    left.set_ylim(len(choices) - 0.4, -0.6)
    for row, choice in enumerate(choices):
        color = INK if choice in still else GREY
        left.text(0, row, choice[:step], color=BLUE if choice in still else GREY, **_FONT)
        left.text(0, row, " " * step + choice[step:], color=color, **_FONT)
        if choice not in still:
            left.plot([0, 0.029 * len(choice)], [row, row], color=GREY, linewidth=1.2)
    left.set_title("the choices")
    names = [repr(token)[1:-1] for token in allowed[:_SHOWN]] or ["<end of the answer>"]
    right.set_ylim(_SHOWN // _COLUMNS + 0.6, -0.6)
    for i, name in enumerate(names):
        x, y = (i % _COLUMNS) / _COLUMNS, i // _COLUMNS
        right.text(x, y, name, bbox={"facecolor": "#dbe9f6", "edgecolor": BLUE}, **_FONT)
    if len(allowed) > _SHOWN:
        right.text(0, _SHOWN // _COLUMNS, f"and {len(allowed) - _SHOWN} more", color=INK)
    number = f"{num_allowed} of {len(vocabulary):,} tokens may come next"
    right.set_title(f"After {written or 'nothing'}: {number}")
    return figure


_FONT = {"family": "monospace", "fontsize": 11, "va": "center"}


def mask_explorer(vocabulary: Sequence[str], choices: Sequence[str]) -> Explorer:
    """`plot_mask` with a control for the answer and one for how much of it is written."""

    def draw(answer: str, step: int) -> Figure:
        return plot_mask(vocabulary, choices, answer, min(step, len(answer)))

    longest = max(map(len, choices))
    return Explorer(
        draw,
        answer=ipywidgets.Dropdown(options=list(choices), description="answer"),
        step=ipywidgets.IntSlider(0, min=0, max=longest, description="characters"),
    )
