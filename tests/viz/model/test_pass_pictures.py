"""Lesson 01's pictures of a pass: the widget, a layer, its time, and the roofline."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from utils.engine.config.model import ModelConfig
from utils.viz.model.layer import plot_layer
from utils.viz.model.passes import ANSWER, PROMPT, passes_explorer, plot_passes
from utils.viz.model.roofline import Machine, plot_predicted_measured, plot_roofline


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("step", [1, 2, len(ANSWER)])
def test_each_pass_writes_one_token(step: int) -> None:
    figure = plot_passes(step)
    assert [w[2:].strip('"') for w in words(figure) if w.startswith("→")] == [
        word.strip() for word in ANSWER[:step]
    ]
    squares = [patch for patch in figure.axes[0].patches]
    assert len(squares) == len(PROMPT) + step - 1
    assert f"{len(squares)} tokens" in figure.axes[0].get_title()


def test_the_slider_goes_through_all_passes() -> None:
    control = passes_explorer().controls["step"]
    assert (control.min, control.max) == (1, len(ANSWER))


def test_the_layer_shows_the_models_own_widths(model_path: str) -> None:
    config = ModelConfig.from_pretrained(model_path)
    text = " ".join(words(plot_layer(config)))
    for width in (f"{config.hidden_size} wide", f"2 × {config.intermediate_size:,}", "9 + 3 + 3"):
        assert width in text


def test_titles_say_what_the_points_show() -> None:
    packed = [0.03, 0.06, 0.6]
    figure = plot_predicted_measured([1, 8, 512], [0.02, 0.02, 0.5], [0.04, 0.07, 0.8], packed)
    title = figure.axes[0].get_title().replace("\n", " ")
    assert (
        title == "With our kernels, 8 tokens take 2.0 times as long as one, and 512 take 20 times"
    )

    machines = {"here": Machine(flops=200e9, bandwidth=20e9), "card": Machine(600e12, 2e12)}
    achieved = {"fast": [10e9, 150e9], "slow": [5e9, 100e9]}
    figure = plot_roofline(machines, [1.0, 100.0], achieved, ["1 token", "512"])
    title = figure.axes[0].get_title().replace("\n", " ")
    assert "50% to 75% of the roof with fast" in title
    assert "The ridge is at 10 FLOPs per byte here, and at up to 300 on a GPU" in title
