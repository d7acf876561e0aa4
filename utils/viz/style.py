"""One look for every figure: quiet axes, and colours that differ in brightness, so that a figure
also reads in grey, and for those who see no red or no green. tests/viz/test_colours.py computes it.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from cycler import cycler

INK = "#1b1b1b"
# From dark to light, by nine or more of CIE's 100 steps of lightness each: INK, BLUE, RED, GREY,
# ORANGE, GREEN. GREEN is too pale on white for words and thin lines: it fills, or has a marker.
BLUE = "#1a4288"
ORANGE = "#e07b00"
GREEN = "#7bbf6a"
GREY = "#767676"
RED = "#b3261e"
# Inches, of a widget's figure: at 90 pixels each it fits a laptop's screen, its controls above it.
MAX_HEIGHT = 6.1
COLORS = (BLUE, ORANGE, GREEN, RED, GREY)


def use_course_style() -> None:
    """Set matplotlib's defaults for this kernel."""
    plt.rcParams.update(
        {
            "figure.figsize": (7.5, 4.2),
            "figure.dpi": 90,
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "axes.prop_cycle": cycler(color=COLORS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.labelsize": 11,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "lines.linewidth": 2.2,
            "lines.markersize": 6,
            "font.size": 10.5,
        }
    )
