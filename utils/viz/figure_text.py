"""A text for every figure, for those who cannot see it: it says what the figure itself says.

A figure's title states its finding (CONTRIBUTING.md), so titles and labels make the text. It goes
into the output's metadata, `{"image/png": {"alt": ...}}`, which the site and nbconvert read.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from IPython.core.getipython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def figure_text(figure: Figure) -> str:
    """The titles and labels of a figure, in one line."""
    parts = [figure.get_suptitle(), *(_axes_text(axes) for axes in figure.axes)]
    shown = dict.fromkeys(" ".join(part.split()).rstrip(".") for part in parts)
    return ". ".join(part for part in shown if part)


def _axes_text(axes: Axes) -> str:
    title = next((t for place in ("left", "center", "right") if (t := axes.get_title(place))), "")
    labels = [text for text in (axes.get_ylabel(), axes.get_xlabel()) if text]
    legend = axes.get_legend()
    lines = [text.get_text() for text in legend.get_texts()] if legend else []
    return ". ".join(filter(None, [title, " over ".join(labels), ", ".join(lines)]))


def describe_figures() -> None:
    """Let this kernel give every figure that it shows its text. Does nothing outside of IPython."""
    shell: Any = get_ipython()
    if shell is None:
        return
    plt.close(plt.figure())  # the inline backend registers its own way at the first figure
    formatter = shell.display_formatter.formatters["image/png"]

    def described(figure: Figure) -> tuple[Any, dict[str, str]] | None:
        png = print_figure(figure, "png", base64=True, bbox_inches="tight")
        return png and (png, {"alt": figure_text(figure)})

    formatter.for_type(Figure, described)
