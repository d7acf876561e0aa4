"""A text for every figure, for those who cannot see it: it says what the figure itself says.

A figure's title states its finding (CONTRIBUTING.md), so titles and labels make the text. It goes
into the output's metadata, `{"image/png": {"alt": ...}}`, which the site and nbconvert read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
from IPython.core.getipython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend


def figure_text(figure: Figure) -> str:
    """The titles, labels and legends of a figure, in one line."""
    labels = [figure.get_supylabel(), figure.get_supxlabel()]
    parts = [
        figure.get_suptitle(),
        *(_axes_text(axes) for axes in figure.axes),
        " over ".join(filter(None, labels)),
        *map(_legend_text, figure.legends),
    ]
    return _sentences(dict.fromkeys(" ".join(part.split()) for part in parts)).rstrip(".")


def _axes_text(axes: Axes) -> str:
    title = next((t for place in ("left", "center", "right") if (t := axes.get_title(place))), "")
    labels = [text for text in (axes.get_ylabel(), axes.get_xlabel()) if text]
    legend = axes.get_legend()
    return _sentences([title, " over ".join(labels), _legend_text(legend) if legend else ""])


def _legend_text(legend: Legend) -> str:
    title, entries = legend.get_title().get_text(), legend.get_texts()
    return ": ".join(filter(None, [title, ", ".join(text.get_text() for text in entries)]))


def _sentences(parts: Iterable[str]) -> str:
    """One after the other, each with a dot behind it unless it ends in a mark of its own."""
    text = ""
    for part in filter(None, parts):
        text += f"{'' if not text else ' ' if text[-1] in '.?!' else '. '}{part}"
    return text


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
