"""Pictures of formats."""

from __future__ import annotations

import pytest
import torch
from matplotlib import pyplot as plt

from utils.viz.quant.formats import (
    block_explorer,
    plot_block,
    plot_channels,
    plot_errors,
    plot_quality,
)


def errors_in_titles(largest: float) -> list[float]:
    """Of the weights besides the largest: with a power of two as scale, and with an E4M3 number."""
    titles = [axes.get_title() for axes in plot_block(largest).axes]
    plt.close("all")
    return [float(title.split("have ")[1].split("%")[0]) for title in titles]


def test_the_error_jumps_where_a_power_of_two_does() -> None:
    power, e4m3 = zip(*(errors_in_titles(largest) for largest in (2.0, 3.4, 3.5, 6.9)), strict=True)
    assert power[0] == power[1] and power[2] == power[3]  # nothing happens between the jumps
    assert power[2] > 2 * power[1]
    assert e4m3[2] < 1.5 * e4m3[1]
    explorer = block_explorer()
    assert explorer.error is None


def test_each_format_has_a_row_with_both_errors() -> None:
    rows = {"int4": (4.5, 0.01, 0.009), "NF4": (4.1, 0.009, 0.008), "MXFP4": (4.25, 0.013, 0.012)}
    axes = plot_errors(rows, "t").axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["int4 (4.50 bits)", "NF4 (4.10 bits)", "MXFP4 (4.25 bits)"]
    assert all(list(line.get_ydata()) == [2, 1, 0] for line in axes.lines)
    drawn = [list(line.get_xdata()) for line in axes.lines]
    assert drawn == [pytest.approx([1.0, 0.9, 1.3]), pytest.approx([0.9, 0.8, 1.2])]
    plt.close("all")


def test_a_row_beyond_the_axis_is_a_number_at_its_edge() -> None:
    rows = [("a", 1.1, 1.0, 1.2), ("b", 1.862, 1.789, 1.939)]
    axes = plot_quality(rows, "t").axes[0]
    assert [text.get_text() for text in axes.texts] == ["86 % \N{RIGHTWARDS ARROW}"]
    assert len(axes.lines) == 3  # an interval, its dot, and zero
    plt.close("all")


def test_quality_has_a_row_for_each_case_and_channels_two_lines() -> None:
    rows = [("a", 1.1, 1.0, 1.2), ("b", 1.3, 1.2, 1.4)]
    figure = plot_quality(rows, "t")
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["b", "a"]
    plt.close(figure)
    figure = plot_channels(torch.tensor([1.0, 40, 2]), torch.tensor([1.0, 3, 2]), "t")
    assert len(figure.axes[0].lines) == 3
    plt.close(figure)
