"""The plots of notebook 05's measurements."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import same_color

from utils.viz.memory.prefix_timing import plot_probes, plot_same_tokens_other_prefix, plot_ttft
from utils.viz.style import RED


def test_ttft_is_drawn_in_milliseconds() -> None:
    predictions = {"flat": [0.1, 0.1], "with attention": [0.1, 0.12]}
    figure = plot_ttft([0, 64], [0.1, 0.3], [0.1, 0.12], predictions)
    left, right = (
        [list(line.get_ydata()) for line in axes.lines]  # the hits are drawn in both
        for axes in figure.axes
    )
    assert left == [pytest.approx([100, 300]), pytest.approx([100, 120])]
    assert right == [pytest.approx(line) for line in ([100, 120], [100, 100], [100, 120])]
    assert "with attention" in figure.axes[1].get_legend_handles_labels()[1]
    assert figure.get_suptitle().startswith("With 64 tokens cached, the first token comes 2 times")
    plt.close(figure)


def test_only_the_secrets_bars_stand_out() -> None:
    panels = {"open": {"a": [0.3, 0.5], "b": [0.1, 0.1]}, "salted": {"a": [0.3], "b": [0.3]}}
    figure = plot_probes(panels, secret="b")
    for axes, widths in zip(figure.axes, ([400, 100], [300, 300]), strict=True):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(widths)
        red = [same_color(bar.get_facecolor(), RED) for bar in axes.patches]
        assert red == [False, True]
    assert list(figure.axes[0].lines[0].get_xdata()) == pytest.approx([300, 500])  # each round
    plt.close(figure)


def test_keys_are_compared_in_every_layer() -> None:
    figure = plot_same_tokens_other_prefix([0.0, 0.1, 0.2], [0.0, 0.0, 0.0])
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.1, 0.2]
    assert list(axes.lines[0].get_ydata()) == [0.0, 0.0, 0.0]
    assert axes.get_ylim()[0] < 0 and axes.get_ylim()[1] > 0.2
    plt.close(figure)
