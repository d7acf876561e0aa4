"""Pictures of formats."""

from __future__ import annotations

import torch
from matplotlib import pyplot as plt

from utils.viz.quant.formats import (
    SCALES,
    block_explorer,
    plot_block,
    plot_channels,
    plot_errors,
    plot_quality,
)


def error_in_title(largest: float, scale: str) -> float:
    title = plot_block(largest, scale).axes[0].get_title()
    plt.close("all")
    return float(title.split(":")[1].split("%")[0])


def test_the_error_jumps_where_a_power_of_two_does() -> None:
    power, e4m3 = SCALES
    assert error_in_title(3.5, power) > 2 * error_in_title(3.4, power)
    assert error_in_title(3.5, e4m3) < 1.5 * error_in_title(3.4, e4m3)
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
