"""The figure of growth: medians of the rounds, ratios within a round, the steepest place."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.viz.engine.growth import plot_growth, steepest, times_as_fast
from utils.vllm.recipe import describe

CURVE = {
    "1": {"ours": [0.001, 0.003, 0.002], "vLLM": [0.002, 0.006, 0.003]},
    "2": {"ours": [0.004, 0.004, 0.004], "vLLM": [0.008, 0.004, 0.012]},
    "8": {"ours": [0.064, 0.064, 0.064], "vLLM": [0.008, 0.008, 0.008]},
}


def test_points_are_medians_and_titles_say_least_and_most() -> None:
    results = {"float32": {"requests": CURVE}}
    figure = plot_growth({"results": results, "machine": {"threads": 2}, "vllm": describe()})
    figure.canvas.draw()  # while it is measured, it is drawn with what there is
    axes, *others = figure.axes
    ours, theirs = axes.lines
    assert list(ours.get_xdata()) == [1, 2, 8]
    assert list(ours.get_ydata()) == [2, 4, 64]
    assert list(theirs.get_ydata()) == [3, 8, 8]
    assert axes.get_title("left") == "float32: 0.12 to 2.00 times as fast as vLLM"
    assert [a.get_title("left") for a in others] == ["float32: not measured"] * 2
    plt.close(figure)


def test_ratios_are_taken_within_a_round() -> None:
    assert times_as_fast(CURVE["1"]) == 2.0
    assert times_as_fast(CURVE["2"]) == 2.0


def test_the_steepest_place_is_relative_to_the_size() -> None:
    assert steepest(CURVE, "ours") == pytest.approx(64 / 4 / 4)
    assert steepest(CURVE, "vLLM") == pytest.approx(8 / 3 / 2)
