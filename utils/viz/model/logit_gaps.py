"""How far apart a model's best two tokens are, and what rounding makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import INK, ORANGE

PALE = "#a9c6ea"
MARKERS = (("o", 150), ("s", 75), ("^", 30))  # with their sizes: one inside the other


def plot_noise(points: Mapping[str, Sequence[tuple[float, float, bool]]], title: str) -> Figure:
    """Each token's gap against what rounding moves it by. Above the diagonal, the choice flips.

    Args:
        points: by engine, for each token: best logit minus second best, in float32; how much
            smaller that difference became in the coarse format (negative: larger); and whether the
            coarse format chose another token.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    everything = [point for found in points.values() for point in found]
    low, high = 1e-3, 1.1 * max(gap for gap, *_ in everything)
    for (name, found), (marker, size) in zip(points.items(), MARKERS, strict=False):
        x, y, changed = map(np.array, zip(*found, strict=True))
        x = np.clip(x, low, None)
        axes.scatter(x[~changed], y[~changed], s=9, color=PALE, marker=marker)
        axes.scatter(
            x[changed],
            y[changed],
            s=size,
            facecolor="none",
            edgecolor=ORANGE,
            linewidth=1.8,
            marker=marker,
            label=f"{name}: another token",
            zorder=3,
        )
    axes.scatter([], [], s=9, color=PALE, label="the same token")
    line = np.geomspace(low, high, 100)
    axes.plot(line, line, color=INK, linewidth=1.4, label="the whole gap")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    limit = 1.15 * max(abs(taken) for _, taken, _ in everything)
    axes.set_ylim(-limit, limit)
    axes.set_xlabel("gap between the best two tokens in float32 (logits)")
    axes.set_ylabel("what bfloat16 takes from the gap")
    axes.set_title(title)
    axes.legend(loc="lower left", fontsize=9.5)
    return figure
