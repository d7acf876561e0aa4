"""Widgets: a figure beside controls, redrawn whenever a control moves."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from time import monotonic

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from traitlets import Unicode

from utils.viz.figure_text import figure_text

DPI = 90  # of a saved picture; 90 pixels of the page are one inch of a figure
LIVE_DPI = 160  # of the picture that a widget shows, so that it is sharp on a fine screen, too
TIME = "step"  # a control of this name goes through time, so it can be played
PLAY_MS = 800  # between two steps, or more where drawing takes longer
# In a dark theme (JupyterLab, Colab, VS Code) a picture's lightness is turned over; hues stay.
CSS = """<style>
body[data-jp-theme-light="false"] .course-picture, html[theme="dark"] .course-picture,
body.vscode-dark .course-picture { filter: invert(0.9) hue-rotate(180deg); }
.course-controls .widget-toggle-buttons > .widget-label { text-align: right; margin-right: 8px; }
</style>"""


def png(figure: Figure, dpi: int = DPI) -> bytes:
    """Render a figure to PNG, and close it so that no notebook shows it a second time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


def show(figure: Figure, image: ipywidgets.Image) -> None:
    """Put a figure into a widget, with a text that is read out where the picture is not seen.

    In one message, so that the page doesn't show the old picture once more on the way to the new.
    """
    if not image.has_trait("description"):
        # The front end of ipywidgets 8 asks each widget with a tooltip for its description first,
        # and draws no widget that has none.
        image.add_traits(description=Unicode("").tag(sync=True))
        image.add_class("course-picture")
        image.layout.max_width = "100%"
    text, picture = figure_text(figure), png(figure, LIVE_DPI)
    num_pixels = int.from_bytes(picture[16:20], "big")  # of a row, says PNG's header
    with image.hold_sync():
        image.tooltip, image.value = text, picture
        image.width = str(round(num_pixels * DPI / LIVE_DPI))


class Explorer(ipywidgets.VBox):
    """Controls above the figure that `draw(**values of the controls)` returns.

    The figure is sent as a PNG, so it looks the same in JupyterLab, Colab and VS Code. A slider
    with the name `step` has a button that plays it. An error in `draw` is shown in words under the
    controls and kept in `error`, for tests to look at.
    """

    def __init__(self, draw: Callable[..., Figure], **controls: ipywidgets.ValueWidget) -> None:
        self.draw = draw
        self.controls = controls
        self.error: Exception | None = None
        self._image = ipywidgets.Image(format="png")
        self._message = ipywidgets.HTML()
        align(list(controls.values()))
        self.plays = [player(control) for name, control in controls.items() if name == TIME]
        others = [control for name, control in controls.items() if name != TIME]
        columns = "repeat(auto-fill, minmax(24em, 1fr))"
        grid = ipywidgets.Box(
            others, layout=ipywidgets.Layout(display="grid", grid_template_columns=columns)
        )
        grid.add_class("course-controls")
        super().__init__([grid, *self.plays, self._message, self._image, ipywidgets.HTML(CSS)])
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self._redraw()

    def _redraw(self, change: object = None) -> None:
        started = monotonic()
        try:
            values = {name: control.value for name, control in self.controls.items()}
            show(self.draw(**values), self._image)
            self.error, self._message.value = None, ""
        except Exception as error:
            self.error = error
            self._message.value = f"<b>{type(error).__name__}</b>: {html.escape(str(error))}"
        for row in self.plays:  # never faster than its pictures, or it would skip some
            row.children[1].interval = max(PLAY_MS, round(1500 * (monotonic() - started)))


def align(controls: list[ipywidgets.ValueWidget]) -> None:
    """Give all labels the width of the longest one, left of their controls."""
    width = f"{max(len(control.description) for control in controls) + 1}ch"
    for control in controls:
        control.style.description_width, control.layout.width = width, "auto"
        if isinstance(control, ipywidgets.ToggleButtons):
            control.style.button_width, control.layout.display = "auto", "flex"


def player(slider: ipywidgets.IntSlider) -> ipywidgets.HBox:
    """A slider as wide as the figure, and buttons that move it from step to step."""
    play = ipywidgets.Play(
        min=slider.min, max=slider.max, value=slider.value, interval=PLAY_MS, show_repeat=False
    )
    ipywidgets.dlink((slider, "max"), (play, "max"))  # another run may be longer
    ipywidgets.jslink((play, "value"), (slider, "value"))
    slider.layout.width, slider.layout.max_width = "100%", "40em"
    return ipywidgets.HBox([slider, play])
