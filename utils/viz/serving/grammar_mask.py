"""Pictures of notebook 13b: which tokens may come next, of some words and of a whole schema."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE, RED

_SHOWN = 18  # allowed tokens that are named
_COLUMNS = 6
_FEW = 20  # tokens that are hardly a choice
_STEPS = 44  # of an answer in one row, so that its tokens can be read


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
    right.set_title(f"{f'After {written}' if written else 'At the start'}: {number}")
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
        step=ipywidgets.IntSlider(1, min=0, max=longest, description="characters"),
    )


def plot_allowed_tokens(
    allowed: Sequence[Collection[int]], answer: Sequence[int], vocabulary: Sequence[str]
) -> Figure:
    """How many tokens a grammar allows at each step of an answer, on logarithmic axes.

    A long answer is broken into rows, like the text that it is. A space is shown as "␣".

    Args:
        allowed: the tokens allowed before each token of the answer.
        answer: its tokens.
        vocabulary: every token as text.
    """
    blank = {token for token, text in enumerate(vocabulary) if text and not text.strip()}
    few = [len(tokens) <= _FEW for tokens in allowed]
    few_words = [len(set(tokens) - blank) <= _FEW for tokens in allowed]
    kinds = {RED: f"at most {_FEW} tokens", ORANGE: f"at most {_FEW}, and whitespace", BLUE: "more"}
    colors = [
        RED if f else ORANGE if words else BLUE for f, words in zip(few, few_words, strict=True)
    ]
    names = [
        repr(vocabulary[token])[1:-1].replace(" ", "␣").replace("$", r"\$") for token in answer
    ]
    num_rows = -(-len(answer) // _STEPS)
    size = -(-len(answer) // num_rows)
    figure, grid = plt.subplots(num_rows, 1, figsize=(11, 1 + 2.8 * num_rows), squeeze=False)
    for row, axes in enumerate(grid[:, 0]):
        part = slice(row * size, (row + 1) * size)
        heights = list(map(len, allowed[part]))
        axes.bar(range(len(heights)), heights, width=0.8, color=colors[part])
        axes.axhline(len(vocabulary), color=INK, linestyle=":", linewidth=1.2)
        axes.set_yscale("log")
        axes.set_ylim(0.7, len(vocabulary) * 4)
        axes.set_xticks(range(len(heights)), names[part], rotation=90, **_TICKS)
        axes.grid(axis="x", visible=False)
        axes.set_xlim(-0.8, size - 0.2)
        axes.set_ylabel("tokens allowed")
    label = f"all {len(vocabulary):,} tokens"
    grid[0, 0].text(size - 0.5, len(vocabulary) * 1.15, label, ha="right")
    figure.legend(
        handles=[Patch(color=color, label=name) for color, name in kinds.items()],
        loc="outside lower center",
        ncols=len(kinds),
    )
    grid[0, 0].set_title(
        f"At {sum(few_words)} of {len(few)} steps the schema leaves at most {_FEW} tokens, "
        "apart from whitespace"
    )
    return figure


_TICKS = {"fontsize": 9.5, "family": "monospace"}
