"""How far apart a model's best two tokens are, and what rounding makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.style import BLUE, INK, ORANGE


def plot_logit_gaps(
    gaps: Sequence[float], changed: Sequence[float], spacing: float, title: str
) -> Figure:
    """Histogram of top-2 logit gaps, all tokens against those where two runs chose differently.

    Args:
        gaps: best logit minus second best, of every token.
        changed: the gaps of those tokens where the choices differ.
        spacing: distance between neighbouring numbers of the coarse format, at the logits' size.
        title: the finding.
    """
    figure, axes = plt.subplots(figsize=(8.5, 4))
    # The smallest of thousands of gaps is far below what the axis needs to show.
    low = min(1e-2, 0.8 * min([*changed, 1e-2]))
    bins = np.geomspace(low, max(gaps) * 1.05, 31).tolist()
    heights, _, _ = axes.hist(
        np.clip(gaps, low, None), bins, color="#a9c6ea", label=f"all {len(gaps):,} tokens"
    )
    most = float(np.max(heights))
    axes.hist(
        np.clip(changed, low, None),
        bins,
        color=ORANGE,
        edgecolor=INK,
        hatch="////",
        label=f"the {len(changed)} tokens that bfloat16 changes",
    )
    axes.vlines(
        spacing,
        0,
        most,
        color=BLUE,
        linestyle="--",
        linewidth=1.6,
        label=f"{spacing:g}: neighbouring bfloat16 numbers at 16 to 32",
    )
    axes.set_xscale("log")
    axes.set_xlabel("float32 logit of the best token minus that of the second best")
    axes.set_ylabel("tokens")
    axes.set_title(title)
    axes.set_ylim(0, 1.45 * most)  # room for the legend
    axes.legend(loc="upper left")
    return figure


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
