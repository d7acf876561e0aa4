"""Pictures of attention and of what a cache saves."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREY, ORANGE


def plot_attention(weights: torch.Tensor, tokens: Sequence[str], title: str) -> Figure:
    """Draw attention weights `[T_q, T_k]`: a row is a token that looks, a column what it sees."""
    figure, axes = plt.subplots(figsize=(6.2, 5))
    image = axes.imshow(weights.float().cpu().numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(tokens)), tokens, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(tokens))[-weights.shape[0] :], tokens[-weights.shape[0] :])
    axes.set_xlabel("token that is looked at (its key)")
    axes.set_ylabel("token that looks (its query)")
    axes.grid(False)
    figure.colorbar(image, label="attention weight", shrink=0.8)
    axes.set_title(title)
    return figure


def plot_attention_growth(num_tokens: int) -> Figure:
    """The attention matrix of one more step: one new row, everything else as it was."""
    size = num_tokens + 1
    grid = np.full((size, size), np.nan)
    grid[np.tril_indices(size)] = 0.35
    grid[-1, :] = 1.0
    figure, axes = plt.subplots(figsize=(5.2, 4.6))
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=1.4)
    axes.set_xticks(range(size), [f"k{i}" for i in range(size)])
    axes.set_yticks(range(size), [f"q{i}" for i in range(size)])
    axes.set_xticks(np.arange(-0.5, size), minor=True)
    axes.set_yticks(np.arange(-0.5, size), minor=True)
    axes.grid(False)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.text(size * 0.62, size * 0.22, "masked:\nthe future", ha="center", color=GREY)
    axes.set_title("One new token adds one row.\nIt needs every key, but only its own query.")
    axes.set_xlabel("keys (and values)")
    axes.set_ylabel("queries")
    return figure


def plot_step_seconds(
    lengths: Sequence[int], without: Sequence[float], with_cache: Sequence[float]
) -> Figure:
    """Time of one decode step, and of a whole answer, against the length so far (tokens)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4))
    for values, label, color, marker in (
        (without, "without cache", ORANGE, "o"),
        (with_cache, "with cache", BLUE, "s"),
    ):
        left.plot(lengths, [1e3 * v for v in values], marker=marker, color=color, label=label)
        total = np.concatenate([[0], np.cumsum(_trapezoids(lengths, values))])
        right.plot(lengths, total, marker=marker, color=color, label=label)
    left.set_title("One step: grows, or stays flat")
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
