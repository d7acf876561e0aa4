"""Pictures of attention and of what a cache saves."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
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
    for query, row in enumerate(weights.tolist() if num_keys <= 8 else []):
        for key, weight in enumerate(row[: num_keys - num_queries + query + 1]):
            ink = "white" if weight > 0.6 else "black"
            axes.text(key, query, f"{weight:.2f}", ha="center", va="center", color=ink, fontsize=9)
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
            color = "#dfe3ea" if query < num_tokens else ORANGE if key < num_tokens else BLUE
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
        ORANGE: "new query with an old key:\nthe key is in the cache",
        BLUE: "new query with the new key:\nboth are computed now",
    }
    patches = [Patch(facecolor=color, label=label) for color, label in labels.items()]
    figure.legend(handles=patches, loc="outside right center", labelspacing=1.4)
    return figure


def plot_step_seconds(
    lengths: Sequence[int],
    without: Sequence[float],
    with_cache: Sequence[float],
    answers: tuple[Sequence[int], Sequence[float], Sequence[float]] | None = None,
) -> Figure:
    """Seconds of one decode step against the length so far (tokens); beside it, of whole answers.

    Args:
        lengths: of the text before the step.
        without: seconds of a step without a cache.
        with_cache: seconds of a step with one.
        answers: lengths of whole answers, and their seconds without a cache and with one.
    """
    panels = [
        ("tokens so far", "milliseconds for one more token", 1e3, lengths, without, with_cache)
    ]
    titles = ["A step of our own code: grows without\na cache, stays flat with one"]
    if answers is not None:
        panels.append(("tokens in the answer", "seconds for the whole answer", 1.0, *answers))
        titles.append("An answer by Hugging Face: linear with\na cache, grows faster without one")
    figure, grid = plt.subplots(1, len(panels), figsize=(4.75 * len(panels), 4), squeeze=False)
    for axes, title, panel in zip(grid[0], titles, panels, strict=True):
        x_label, y_label, scale, x, slow, fast = panel
        for values, label, color, marker in (
            (slow, "without cache", ORANGE, "o"),
            (fast, "with cache", BLUE, "s"),
        ):
            axes.plot(x, [scale * v for v in values], marker=marker, color=color, label=label)
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure
