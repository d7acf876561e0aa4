"""Every widget: each control moves once through its values, and no callback fails."""

from __future__ import annotations

from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
import pytest
import torch

from utils.viz.explore import DPI, LIVE_DPI, PLAY_MS, Explorer
from utils.viz.memory.kv_memory import memory_calculator, plot_memory_split
from utils.viz.model.tokens import TokenViewer, tokens_as_html


def values_of(control: ipywidgets.ValueWidget) -> list:
    if hasattr(control, "options"):
        return [o[1] if isinstance(o, tuple) else o for o in control.options]
    return [control.min, control.max]


def move_everything(explorer: Explorer) -> int:
    pictures = set()
    for control in explorer.controls.values():
        for value in values_of(control):
            control.value = value
            assert explorer.error is None, f"{control.description}={value}: {explorer.error}"
            assert bytes(explorer._image.value[:4]) == b"\x89PNG"
            pictures.add(bytes(explorer._image.value))
    return len(pictures)


def test_memory_calculator() -> None:
    calculator = memory_calculator()
    assert move_everything(calculator) > 20  # the picture really changes
    assert plt.get_fignums() == []  # and no figure is left open


@pytest.mark.parametrize(
    ("model", "memory_gib", "weight_bits", "room"),
    [
        ("Llama-2-7B", 24, 16, 5),
        ("Mistral-7B", 24, 16, 18),
        ("Llama-2-7B", 24, 4, 9),
        ("Mistral-7B", 24, 4, 38),
        ("Llama-2-7B", 80, 16, 31),
        ("Llama-2-7B", 80, 4, 36),
        ("DeepSeek-V3", 80, 16, 0),
    ],
)
def test_the_calculator_says_what_lesson_02_says(
    model: str, memory_gib: int, weight_bits: int, room: int
) -> None:
    figure = plot_memory_split(model, memory_gib, 4096, 8, kv_bits=16, weight_bits=weight_bits)
    title = figure.axes[0].get_title() or figure.axes[0].get_title(loc="left")
    assert f"room for {room} requests of this length" in title
    plt.close(figure)


def test_deepseeks_cache_in_lesson_02() -> None:
    figure = plot_memory_split("DeepSeek-V3", 80, 8192, 128, kv_bits=16, weight_bits=16)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "KV cache: 68.6 GiB" in names
    plt.close(figure)


def test_explorer_shows_an_error_in_words() -> None:
    def draw(x: int):
        if x > 1:
            raise ValueError("too <large>")
        return plt.figure()

    explorer = Explorer(draw, x=ipywidgets.IntSlider(0, min=0, max=2))
    explorer.controls["x"].value = 2
    assert isinstance(explorer.error, ValueError)
    assert "too &lt;large&gt;" in explorer._message.value
    explorer.controls["x"].value = 1
    assert explorer.error is None and explorer._message.value == ""


class Page:
    """A notebook's page, as a widget sees it: it keeps what it is told."""

    comm_id, kernel = "page", object()

    def __init__(self) -> None:
        self.told: list[set[str]] = []

    def on_msg(self, callback: object) -> None: ...

    def close(self) -> None: ...

    def send(self, data: dict[str, Any], buffers: list[bytes]) -> None:
        paths = {path[0] for path in data["buffer_paths"]}
        self.told.append(data["state"].keys() | paths)


def test_a_move_is_one_message() -> None:
    """With several, the page shows the old picture once more on the way to the new one."""
    explorer, page = memory_calculator(), Page()
    explorer._image.comm = page
    explorer.controls["batch"].value = 16
    assert len(page.told) == 1 and {"value", "tooltip"} <= page.told[0]


def test_a_picture_has_pixels_for_a_fine_screen() -> None:
    image = memory_calculator()._image
    assert int.from_bytes(image.value[16:20], "big") == pytest.approx(
        int(image.width) * LIVE_DPI / DPI, abs=1
    )


def test_what_goes_through_time_can_be_played() -> None:
    slider = ipywidgets.IntSlider(2, min=1, max=5, description="step")
    explorer = Explorer(lambda step, other: plt.figure(), other=ipywidgets.Checkbox(), step=slider)
    rows = [child for child in explorer.children if isinstance(child, ipywidgets.HBox)]
    [[shown, play]] = [row.children for row in rows]
    assert shown is slider
    assert (play.min, play.value, play.max) == (1, 2, 5)
    slider.max = 9  # of a longer run
    assert play.max == 9


def test_play_waits_for_pictures_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 0.1, 10.0, 12.0])
    monkeypatch.setattr("utils.viz.explore.monotonic", lambda: next(seconds))
    slider = ipywidgets.IntSlider(2, min=1, max=5, description="step")
    explorer = Explorer(lambda step: plt.figure(), step=slider)
    play = explorer.plays[0].children[1]
    assert play.interval == PLAY_MS
    slider.value = 3
    assert play.interval == 3000


@pytest.mark.parametrize("text", ["", " ", "a\nb", "<b>&", "Zürich 🙂", "1,299.00"])
def test_token_viewer(text: str, tokenizer) -> None:
    viewer = TokenViewer(tokenizer, "start")
    viewer.field.value = text
    ids = tokenizer(text).input_ids
    assert viewer.view.value == tokens_as_html(tokenizer, text)
    assert all(f">{token_id}</span>" in viewer.view.value for token_id in ids)
    assert viewer.view.value.count("<b>") == 0  # the text is shown, not interpreted


def test_roofline_prediction() -> None:
    from utils.viz.model.roofline import Machine

    machine = Machine(flops=100.0, bandwidth=10.0)
    assert machine.ridge == 10
    assert machine.seconds(flops=100, num_bytes=100) == 10  # waits for memory
    assert machine.seconds(flops=1000, num_bytes=10) == 10  # waits for arithmetic
    assert machine.attainable(5) == 50 and machine.attainable(50) == 100


def test_next_token_plot_marks_what_was_cut() -> None:
    from utils.viz.model.sampling import plot_next_token
    from utils.viz.style import use_course_style

    use_course_style()  # puts titles on the left
    before = torch.tensor([0.1, 0.6, 0.3])
    figure = plot_next_token(before, torch.tensor([0, 1.0, 0]), ["b", "c"], "x")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["cut"]  # of the two bars shown, only c's 0.3 was cut
    assert "1 of 3" in figure.axes[0].get_title(loc="left")
    plt.close(figure)
