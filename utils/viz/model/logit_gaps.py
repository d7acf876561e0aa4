"""How far apart a model's best two tokens are, and what rounding makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import INK, ORANGE


def plot_noise(
    gaps: Sequence[float], noise: Sequence[float], changed: Sequence[bool], title: str
) -> Figure:
    """Each token's gap against what rounding moves it by. Above the diagonal, the choice flips.

    Args:
        gaps: best logit minus second best, in float32.
        noise: how much smaller that difference became in the coarse format; negative: larger.
        changed: whether the coarse format chose another token.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4.2))
    low, high = 1e-3, 1.1 * max(gaps)
    x, y, flipped = np.clip(gaps, low, None), np.array(noise), np.array(changed)
    axes.scatter(x[~flipped], y[~flipped], s=9, color="#a9c6ea", label="same choice")
    axes.scatter(
        x[flipped],
        y[flipped],
        s=38,
        color=ORANGE,
        edgecolor=INK,
        linewidth=0.8,
        label="another choice",
        zorder=3,
    )
    line = np.geomspace(low, high, 100)
    axes.plot(line, line, color=INK, linewidth=1.4, label="gap used up")
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    limit = 1.15 * float(np.abs(y).max())
    axes.set_ylim(-limit, limit)
    axes.set_xlabel("gap between the best two tokens in float32 (logits)")
    axes.set_ylabel("what bfloat16 takes from the gap")
    axes.set_title(title)
    axes.legend(loc="lower left", fontsize=9.5)
    return figure
