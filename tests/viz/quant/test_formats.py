"""Pictures of formats."""

from __future__ import annotations

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


def test_formats_are_drawn_by_their_kind() -> None:
    figure = plot_errors({"int4": (4.5, 0.01), "NF4": (4.1, 0.009), "MXFP4": (4.25, 0.013)}, "t")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert sorted(labels) == ["4-bit floats", "NF4", "integers"]
    plt.close(figure)


def test_quality_has_a_row_for_each_case_and_channels_two_lines() -> None:
    rows = [("a", 1.1, 1.0, 1.2), ("b", 1.3, 1.2, 1.4)]
    figure = plot_quality(rows, "t")
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["b", "a"]
    plt.close(figure)
    figure = plot_channels(torch.tensor([1.0, 40, 2]), torch.tensor([1.0, 3, 2]), "t")
    assert len(figure.axes[0].lines) == 3
    plt.close(figure)
