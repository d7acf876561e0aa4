"""Pictures of attention and of what a cache saves."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from utils.viz.style import BLUE, GREY, ORANGE


def plot_attention(weights: torch.Tensor, tokens: Sequence[str], title: str) -> Figure:
    """Draw attention weights `[T_q, T_k]`: a row is a token that looks, a column what it sees.

    The future is hatched, so that it differs from a weight near zero.
    """
    figure, axes = plt.subplots(figsize=(6.2, 5))
    image = axes.imshow(weights.float().cpu().numpy(), cmap="Blues", vmin=0, vmax=1)
    num_queries, num_keys = weights.shape
    for query in range(num_queries):
        first = num_keys - num_queries + query + 1  # of the keys that come after this query
        hidden = Rectangle(
            (first - 0.5, query - 0.5),
            num_keys - first,
            1,
            facecolor="white",
            edgecolor="#c4c4c4",
            hatch="///",
            linewidth=0,
        )
        axes.add_patch(hidden)
    future = Patch(facecolor="white", edgecolor="#c4c4c4", hatch="///", label="masked: the future")
    axes.legend(handles=[future], loc="upper right", frameon=True, framealpha=1)
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(tokens))[-weights.shape[0] :], tokens[-weights.shape[0] :])
    axes.set_xlabel("token that is looked at (its key)")
    axes.set_ylabel("token that looks (its query)")
    axes.grid(False)
    figure.colorbar(image, label="attention weight", shrink=0.8)
    axes.set_title(title)
    return figure


def plot_attention_growth(num_tokens: int) -> Figure:
    """The attention matrix of one more step: what is done, what a cache holds, what is new."""
    size = num_tokens + 1
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    for query in range(size):
        for key in range(query + 1):
            color = "#dfe3ea" if query < num_tokens else BLUE if key < num_tokens else ORANGE
            corner = (key - 0.5, query - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=color, edgecolor="white", linewidth=2))
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xticks(range(size), [f"k{i}" for i in range(size)])
    axes.set_yticks(range(size), [f"q{i}" for i in range(size)])
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.text(size * 0.62, size * 0.22, "masked:\nthe future", ha="center", color=GREY)
    axes.set_title("One new token adds one row.\nIt needs every key, but only its own query.")
    axes.set_xlabel("keys (and values)")
    axes.set_ylabel("queries")
    labels = {
        "#dfe3ea": "rows of old tokens:\ndone, never needed again",
        BLUE: "new query with an old key:\nthe key is in the cache",
        ORANGE: "new query with the new key:\nboth are computed now",
    }
    patches = [Patch(facecolor=color, label=label) for color, label in labels.items()]
    figure.legend(handles=patches, loc="outside right center", labelspacing=1.4)
    return figure


def plot_step_seconds(
    lengths: Sequence[int], without: Sequence[float], with_cache: Sequence[float]
) -> Figure:
    """Time of one decode step, and of a whole answer, against the length so far (tokens).

    The answer begins with the first token; steps shorter than the first measured one count as it.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    for values, label, color, marker in (
        (without, "without cache", ORANGE, "o"),
        (with_cache, "with cache", BLUE, "s"),
    ):
        left.plot(lengths, [1e3 * v for v in values], marker=marker, color=color, label=label)
        steps = [lengths[0] * values[0], *_trapezoids(lengths, values)]
        total = np.concatenate([[0], np.cumsum(steps)])
        right.plot([0, *lengths], total, marker=marker, color=color, label=label)
    left.set_title("One step: all tokens again, or one")
    left.set_ylabel("milliseconds for one more token")
    right.set_title("The whole answer: the sum of the steps")
    right.set_ylabel("seconds for all tokens up to here")
    for axes in (left, right):
        axes.set_xlabel("tokens so far")
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def _trapezoids(x: Sequence[int], y: Sequence[float]) -> list[float]:
    return [(x[i + 1] - x[i]) * (y[i + 1] + y[i]) / 2 for i in range(len(x) - 1)]
