"""Widgets: a figure beside controls, redrawn whenever a control moves."""

from __future__ import annotations

import html
import io
from collections.abc import Callable

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from traitlets import Unicode

from utils.viz.figure_text import figure_text


def png(figure: Figure) -> bytes:
    """Render a figure to PNG, and close it so that no notebook shows it a second time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


def show(figure: Figure, image: ipywidgets.Image) -> None:
    """Put a figure into a widget, with a text that is read out where the picture is not seen."""
    if not image.has_trait("description"):
        # The front end of ipywidgets 8 asks each widget with a tooltip for its description first,
        # and draws no widget that has none.
        image.add_traits(description=Unicode("").tag(sync=True))
    image.tooltip = figure_text(figure)
    image.value = png(figure)


class Explorer(ipywidgets.VBox):
    """Controls above the figure that `draw(**values of the controls)` returns.

    The figure is sent as a PNG, so it looks the same in JupyterLab, Colab and VS Code. An error in
    `draw` is shown in words under the controls and kept in `error`, for tests to look at.
    """

    def __init__(self, draw: Callable[..., Figure], **controls: ipywidgets.ValueWidget) -> None:
        self.draw = draw
        self.controls = controls
        self.error: Exception | None = None
        self._image = ipywidgets.Image(format="png")
        self._message = ipywidgets.HTML()
        row = ipywidgets.HBox(
            list(controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        super().__init__([row, self._message, self._image])
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self._redraw()

    def _redraw(self, change: object = None) -> None:
        try:
            values = {name: control.value for name, control in self.controls.items()}
            show(self.draw(**values), self._image)
            self.error, self._message.value = None, ""
        except Exception as error:
            self.error = error
            self._message.value = f"<b>{type(error).__name__}</b>: {html.escape(str(error))}"
