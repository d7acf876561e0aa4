"""The widget of lesson 08d adds up what a step takes."""

from __future__ import annotations

import pytest

from utils.viz.model.fixed_costs import fixed_costs_explorer, plot_fixed_costs


def test_the_parts_are_what_the_numbers_say() -> None:
    axes = plot_fixed_costs(megabytes=540, bandwidth=20, operations=300, each_us=10).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([27.0, 3.0])
    assert "10%" in axes.get_title()


def test_every_control_redraws() -> None:
    explorer = fixed_costs_explorer()
    explorer.controls["operations"].value = 30
    assert explorer.error is None
