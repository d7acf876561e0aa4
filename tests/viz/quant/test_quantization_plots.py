"""The pictures of 09 and 09b show what they are given; their widgets redraw with every control."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest
import torch

from utils.quant import InputStats, gptq, relative_error, rtn
from utils.viz.quant.levels import (
    plot_code_use,
    plot_equal_bits,
    plot_loud_channels,
    plot_weight_tails,
)
from utils.viz.quant.rounding import GRIDS, plot_rounding, read_back, rounding_explorer
from utils.viz.quant.sweep import plot_sweep_step, sweep_explorer
from utils.viz.quant.weights import plot_calibration, plot_layer_errors, plot_perplexity_ratios


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(8, 192, generator=torch.Generator().manual_seed(0)) * 0.1


def titles(figure) -> str:
    return " | ".join(axes.get_title(loc) for axes in figure.axes for loc in ("left", "center"))


def test_weight_tails() -> None:
    weight = torch.ones(5, 200)
    weight[:, ::2] *= -1
    weight[0, :10] *= -20  # 10 of 1,000 weights are far from 0, and next to each other
    normal = torch.randn(500, 640, generator=torch.Generator().manual_seed(1))
    left, right = titles(plot_weight_tails(weight, normal, 10, "q_proj")).split(" |  | ")[:2]
    assert "Matrix: 1.00% beyond 3 σ" in left
    assert "Groups of 10: 0.00% beyond 3 σ" in right  # within its group none of them is far
    said = titles(plot_weight_tails(normal, normal, 64, "normal"))
    assert "(normal 0.2" in said
    assert "Matrix: 0.2" in said


def test_loud_channels() -> None:
    mean_abs = torch.ones(200)
    mean_abs[5] = 30
    figure = plot_loud_channels(mean_abs, "q_proj")
    [axes] = figure.axes
    assert "30 times as loud as the median" in titles(figure)
    assert axes.patches[0].get_height() == 30
    assert axes.get_xticklabels()[0].get_text() == "5"


def test_equal_bits_compares_nf4_with_rtn_in_equal_groups() -> None:
    errors = {  # bits, error with the whole range and with a searched one
        "RTN, large": (4.1, 0.012, 0.010),
        "RTN, medium": (4.1, 0.010, 0.009),
        "RTN, small": (4.2, 0.009, 0.008),
        "NF4, large": (4.1, 0.009, 0.008),
        "NF4, small": (4.1, 0.0081, 0.007),
    }
    equal = {192: ("RTN, large", "NF4, large"), 64: ("RTN, small", "NF4, small")}
    figure = plot_equal_bits(errors, equal)
    said = figure.get_suptitle()
    assert "25% in groups of 192" in said  # not 32%, which the smaller groups help to gain
    assert "10% in groups of 64" in said
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([1.2, 1, 0.9, 0.9, 0.81, 1, 0.9, 0.8, 0.8, 0.7])


def test_code_use() -> None:
    uses = {"even": ([-1, 0, 1], [0.2, 0.6, 0.2]), "NF4": ([-1, 0, 1], [0.3, 0.4, 0.3])}
    figure = plot_code_use(uses)
    assert "even: the busiest code gets 60%" in titles(figure)
    assert "NF4: the busiest code gets 40%" in titles(figure)


def test_gptq_sweep_shows_what_has_moved() -> None:
    inputs = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    inputs[:, 4] = inputs[:, 0]  # so channel 4 makes up for channel 0
    weight = torch.tensor([[0.34, 1.0, 0.0, 0.2, 0.1, 0.3]])
    figures = [plot_sweep_step(weight, InputStats.of(inputs), i, 4, 0.05) for i in (0, 4)]
    first, last = (figure.axes[0].images[0].get_array() for figure in figures)
    assert "blue: column 4; hatched: done" in titles(figures[1])
    moved = first.filled(float("nan"))[0]
    assert abs(moved[4]) > 0.1 and abs(moved[2]) < 0.1
    assert first.mask.tolist()[0] == [True] + 5 * [False]  # the rounded one is not coloured
    assert last.mask.tolist()[0] == 5 * [True] + [False]


def test_layer_errors() -> None:
    errors = {name: {"RTN": 0.02, "GPTQ": 0.01} for name in ("q_proj", "down_proj")}
    [axes] = plot_layer_errors(errors, "Finding").axes
    assert sorted({round(bar.get_height(), 6) for bar in axes.patches}) == [1.0, 2.0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["q_proj", "down_proj"]


def test_perplexity_ratios_are_hollow_where_nothing_is_found() -> None:
    ratios = {"RTN, range search": (0.97, 0.93, 1.01), "GPTQ": (0.9, 0.87, 0.93)}
    [axes] = plot_perplexity_ratios(ratios, "RTN", "Finding").axes
    assert [text.get_text().strip() for text in axes.texts] == ["0.970", "0.900"]
    bars, dots = axes.lines[1::2], axes.lines[2::2]
    assert [list(bar.get_xdata()) for bar in bars] == [[0.93, 1.01], [0.87, 0.93]]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [True, False]
    assert axes.yaxis_inverted()


def test_calibration() -> None:
    errors = {"GPTQ": [0.02, 0.01], "AWQ": [0.013, 0.012]}
    figure = plot_calibration([128, 2048], errors, 0.015, 1536)
    [axes] = figure.axes
    assert "1.54 times AWQ's with 128 tokens, 0.83 times with 2,048" in titles(figure)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["128", "2,048"]
    assert list(axes.lines[1].get_ydata()) == [2.0, 1.0]


@pytest.mark.parametrize("grid", GRIDS)
def test_read_back(weight, grid: str) -> None:
    after, bits = read_back(weight, 4, 64, grid)
    assert after.shape == weight.shape
    assert 4 < bits <= 4.5
    assert 0 < (after - weight).norm() / weight.norm() < 0.15


def test_an_outlier_spoils_its_group_only(weight) -> None:
    def heights(outlier: int) -> list[float]:
        figure = plot_rounding(weight, 4, 64, outlier, "symmetric")
        bars = [bar.get_height() for bar in figure.axes[1].patches]
        plt.close(figure)
        return bars

    before, after = heights(0), heights(30)
    assert sum(before) == pytest.approx(100) == sum(after)
    assert after[0] / sum(after[1:]) > 10 * before[0] / sum(before[1:])
    assert after[1] / after[2] == pytest.approx(before[1] / before[2], rel=1e-3)
    figure = plot_rounding(weight, 4, 64, 30, "symmetric")
    drawn = float(30 * weight[0].std())
    said = figure.axes[0].texts[0].get_text()  # it lies beyond the axis, which the others fill
    assert said.startswith(f"{drawn:.2f}, read back as ")
    assert figure.axes[0].get_ylim()[1] < drawn
    assert weight[0, 9] < 1  # the weight that was passed in is left alone


def test_the_title_counts_the_outliers_neighbours_alone(weight) -> None:
    def said(outlier: int) -> float:
        figure = plot_rounding(weight, 4, 64, outlier, "symmetric")
        return float(titles(figure).split("group: ")[1].split(" %")[0])

    assert said(0) < 2
    assert said(60) > 95  # nearly all of them come back as 0


def test_every_control_redraws(weight) -> None:
    explorer = rounding_explorer(weight)
    seen = {explorer._image.value}
    for name, value in (("bits", 2), ("group_size", 192), ("outlier", 40), ("grid", "NF4")):
        explorer.controls[name].value = value
        assert explorer.error is None
        seen.add(explorer._image.value)
    assert len(seen) == 5
    assert list(explorer.controls["group_size"].options) == [16, 32, 64, 192]


@pytest.fixture(scope="module")
def inputs() -> InputStats:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 24, generator=generator) @ torch.randn(24, 24, generator=generator)
    return InputStats.of(x)


def test_a_sweep_ends_where_gptq_and_rounding_end(weight, inputs) -> None:
    figure = plot_sweep_step(weight[:, :24], inputs, 5, 3, 0.05)
    plain, ours = (list(line.get_ydata()) for line in figure.axes[1].lines[:2])
    settings = {"bits": 3, "group_size": 24, "sym": True}
    for drawn, quantized in (
        (plain, rtn(weight[:, :24], **settings)),
        (ours, gptq(weight[:, :24], inputs.hessian, damp_percent=0.05, **settings)),
    ):
        right = relative_error(weight[:, :24], quantized.dequantize(), inputs)
        assert drawn[-1] == pytest.approx(100 * right, rel=1e-3)
    assert ours[-1] < plain[-1]
    shown = figure.axes[0].images[0].get_array()
    assert shown.mask[0].tolist() == 6 * [True] + 18 * [False]


def test_every_control_of_the_sweep_redraws(weight, inputs) -> None:
    explorer = sweep_explorer(weight[:, :24], inputs)
    seen = {explorer._image.value}
    for name, value in (("column", 7), ("bits", 2), ("damp", 100.0)):
        explorer.controls[name].value = value
        assert explorer.error is None
        seen.add(explorer._image.value)
    assert len(seen) == 4
