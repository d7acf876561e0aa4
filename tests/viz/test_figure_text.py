"""Each figure has a text: its titles and labels, in the output's metadata and in widgets."""

from __future__ import annotations

from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.figure import Figure

from utils.viz import figure_text as module
from utils.viz.explore import Explorer
from utils.viz.figure_text import describe_figures, figure_text


def figure(title: str = "Steps grow\nwith the text") -> Figure:
    made, (left, right) = plt.subplots(1, 2)
    made.suptitle("Two ways.")
    left.plot([1, 2], label="without a cache")
    left.set(xlabel="tokens so far", ylabel="ms")
    left.set_title(title, loc="left")
    left.legend()
    right.set_title(title, loc="left")
    plt.close(made)
    return made


def test_a_text_says_what_the_figure_says_once() -> None:
    assert figure_text(figure()) == (
        "Two ways. Steps grow with the text. ms over tokens so far. without a cache. "
        "Steps grow with the text"
    )
    assert figure_text(Figure()) == ""


def test_what_stands_on_the_figure_and_no_axes_is_said_too() -> None:
    made, axes = plt.subplots()
    lines = axes.plot([1, 2]) + axes.plot([2, 1])
    axes.set_title("Which is it?", loc="left")
    axes.legend(lines[:1], ["64"], title="budget")
    made.supylabel("tokens")
    made.supxlabel("step")
    made.legend(lines, ["ours", "vLLM"])
    plt.close(made)
    assert figure_text(made) == "Which is it? budget: 64. tokens over step. ours, vLLM"


def test_a_kernel_shows_figures_with_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    display = DisplayFormatter()
    monkeypatch.setattr(module, "get_ipython", lambda: SimpleNamespace(display_formatter=display))
    describe_figures()
    data, metadata = display.format(figure())
    assert len(data["image/png"]) > 1000
    assert metadata["image/png"]["alt"].startswith("Two ways. Steps grow")


def test_outside_of_a_kernel_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "get_ipython", lambda: None)
    describe_figures()


def test_a_widget_says_what_its_picture_shows_now() -> None:
    slider = ipywidgets.IntSlider(1, 1, 3)
    explorer = Explorer(lambda number: figure(f"{number} blocks"), number=slider)
    assert "1 blocks" in explorer._image.tooltip
    slider.value = 2
    assert "2 blocks" in explorer._image.tooltip
