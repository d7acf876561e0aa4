"""What the memory holds under each policy: the picture of exercise 7."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from utils.viz.memory.memory_map import STATE_COLORS, STATE_LABELS
from utils.viz.style import INK


def plot_shares(shares: Mapping[str, Mapping[str, float]]) -> tuple[Figure, str]:
    """A stacked bar per policy, and the same in words."""
    figure = Figure(figsize=(8.5, 0.5 * len(shares) + 1.7), layout="constrained")
    axes = figure.subplots()
    for row, share in enumerate(shares.values()):
        left = 0.0
        for state, color in STATE_COLORS.items():
            width = 100 * share[state]
            label = STATE_LABELS[state] if row == 0 else None
            axes.barh(
                row,
                width,
                left=left,
                height=0.7,
                color=color,
                edgecolor=INK,
                linewidth=0.6,
                label=label,
            )
            if width > 4 and state != "free":
                axes.text(
                    left + width / 2,
                    row,
                    f"{width:.1f}",
                    ha="center",
                    va="center",
                    size=9,
                    color="white" if state == "used" else INK,
                )
            left += width
    axes.set_yticks(range(len(shares)), list(shares))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the KV memory, mean over time")
    axes.set_title("What the memory holds, with your parts")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    told = (
        f"{name}: " + ", ".join(f"{state} {value:.1%}" for state, value in share.items())
        for name, share in shares.items()
    )
    return figure, "Bars, one for each policy. " + "; ".join(told) + "."
