"""What temperature, top-k, top-p and min-p do to the next token's probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREY


def plot_next_token(
    before: torch.Tensor, after: torch.Tensor, tokens: Sequence[str], title: str
) -> Figure:
    """Bars of the most probable next tokens: model's own probability and the sampler's.

    Args:
        before: probabilities `[vocab]` as the model gives them.
        after: probabilities `[vocab]` that the sampler draws from; 0 where a token was cut.
        tokens: the text of each of the bars, most probable first; decides how many are drawn.
    """
    count = len(tokens)
    order = before.argsort(descending=True)[:count]
    figure, axes = plt.subplots(figsize=(8, 3.6))
    positions = range(count)
    axes.bar(positions, before[order], width=0.85, color="#d9d9d9", label="model")
    axes.bar(positions, after[order], width=0.5, color=BLUE, label="sampler draws from")
    axes.set_xticks(positions, tokens, rotation=45, ha="right", rotation_mode="anchor")
    for position, index in enumerate(order):
        if after[index] == 0:
            axes.text(position, float(before[index]), "cut", ha="center", va="bottom", color=GREY)
    kept = int((after > 0).sum())
    axes.set_title(f"{title}: {kept:,} of {len(after):,} tokens can be drawn")
    axes.set_xlabel("next token")
    axes.set_ylabel("probability")
    axes.legend()
    return figure
