"""Figures and widget of notebook 16."""

from __future__ import annotations

import pytest

from utils.viz.disaggregation.fetch_or_compute import (
    LINKS,
    MACHINES,
    MODELS,
    fetch_explorer,
    plot_choice,
    smallest_bandwidth,
)
from utils.viz.disaggregation.figures import (
    in_time,
    plot_bars,
    plot_fetch_or_compute,
    plot_gaps,
    plot_goodput,
    plot_in_time,
)


@pytest.mark.parametrize(("machine", "published"), [("8 x A800", 5.9e9), ("8 x H800", 18.6e9)])
def test_the_papers_bandwidths(machine: str, published: float) -> None:
    """Mooncake, FAST'25, section 2: 6 and 19 GB/s."""
    needed = smallest_bandwidth(MODELS["LLaMA-3 70B"], MACHINES[machine], 8192)
    assert needed == pytest.approx(published, rel=0.01)


def test_at_the_break_even_both_take_as_long() -> None:
    for shape in MODELS.values():
        speed = smallest_bandwidth(shape, 1e12, 3000)
        assert 3000 * shape.kv_bytes / speed == pytest.approx(shape.operations(3000) / 1e12)
    assert MODELS["LLaMA-3 70B"].kv_bytes == 80 * 2 * 8 * 128 * 2
    assert MODELS["SmolLM2-135M"].kv_bytes == 30 * 2 * 3 * 64 * 2


def test_every_choice_draws_and_says_who_wins() -> None:
    for model in MODELS:
        for link in LINKS:
            axes = plot_choice(model, "1 x A100", link, 0.5, 0.5).axes[0]
            title = axes.get_title() or axes.get_title(loc="left")
            assert "times as fast; break-even at" in title
    widget = fetch_explorer()
    assert widget.error is None
    widget.controls["share"].value = 0.05
    assert widget.error is None


def test_figures_show_what_they_are_given() -> None:
    figure = plot_gaps({"alone": [0.1, 0.1], "together": [0.1, 2.0, 0.1], "none": []}, "title")
    assert [text.get_text() for text in figure.axes[0].texts] == ["100 ms", "2000 ms"]
    figure = plot_fetch_or_compute([1e6, 1e8], [2.0, 0.1], {1e7: 0.5}, 0.8, (5e6, 7e6))
    title = figure.axes[0].get_title() or figure.axes[0].get_title(loc="left")
    assert "from 7 MB/s on" in title and "was 5 MB/s" in title
    assert len(plot_bars({"a": 1.0, "b": 2.0}, "x", "t").axes[0].patches) == 2
    rates = {"published": {"x": 1.0, "y": 2.0}, "simulated": {"x": 3.0, "y": 4.5}}
    heights = [bar.get_height() for bar in plot_goodput(rates).axes[0].patches]
    assert heights == [1.0, 2.0, 1.0, 1.5]  # multiples of the first arrangement


def test_in_time_counts_what_keeps_both_limits() -> None:
    pairs = [(1.0, 0.1), (1.0, 0.3), (5.0, 0.1)]
    assert [in_time(pairs, 4.0, gap) for gap in (0.05, 0.1, 0.3)] == [0, 1, 2]
    figure = plot_in_time({"a": pairs, "b": [(1.0, 0.2)] * 3}, 4.0, (0.1, 0.25))
    title = figure.axes[0].get_title() or figure.axes[0].get_title(loc="left")
    assert "at 100 ms: a (1)" in title and "at 250 ms: b (3)" in title
    assert figure.axes[0].get_lines()[0].get_ydata().max() == 2
