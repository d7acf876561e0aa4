"""The plots of notebook 05's measurements."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import same_color

from utils.viz.memory.prefix_timing import plot_probes, plot_same_tokens_other_prefix, plot_ttft
from utils.viz.style import RED


def test_ttft_is_drawn_in_milliseconds() -> None:
    predictions = {"long prompts": [0.1, 0.1], "short ones": [0.11, 0.11]}
    figure = plot_ttft([0, 64], [0.1, 0.3], [0.1, 0.12], predictions)
    miss, hit, *predicted = (list(line.get_ydata()) for line in figure.axes[0].lines)
    assert miss == pytest.approx([100, 300]) and hit == pytest.approx([100, 120])
    assert predicted[0] == pytest.approx([100, 100]) and predicted[1] == pytest.approx([110, 110])
    assert len({(line.get_marker(), line.get_linestyle()) for line in figure.axes[0].lines}) == 4
    assert "hit, predicted from short ones" in figure.axes[0].get_legend_handles_labels()[1]
    plt.close(figure)


def test_only_the_secrets_bars_stand_out() -> None:
    guesses = {"a": 0.3, "b": 0.1}
    figure = plot_probes(guesses, {"a": 0.3, "b": 0.3}, secret="b")
    for axes, widths in zip(figure.axes, ([300, 100], [300, 300]), strict=True):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(widths)
        red = [same_color(bar.get_facecolor(), RED) for bar in axes.patches]
        assert red == [False, True]
    plt.close(figure)


def test_keys_are_compared_in_every_layer() -> None:
    figure = plot_same_tokens_other_prefix([0.0, 0.1, 0.2], [0.0, 0.0, 0.0])
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.1, 0.2]
    assert list(axes.lines[0].get_ydata()) == [0.0, 0.0, 0.0]
    assert axes.get_ylim()[1] > 0.2
    plt.close(figure)
