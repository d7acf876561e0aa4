"""The widget of lesson 08c says tie exactly where bfloat16 makes one number of two."""

from __future__ import annotations

import pytest

from utils.viz.model.rounding_widget import plot_rounded_pair, rounding_explorer


@pytest.mark.parametrize(("gap", "tie"), [(0.0, True), (0.02, True), (0.2, False)])
def test_the_title_says_whether_it_is_a_tie(gap: float, tie: bool) -> None:
    title = plot_rounded_pair(17.26, gap).axes[0].get_title()
    assert ("tie" in title) == tie


def test_every_control_redraws() -> None:
    explorer = rounding_explorer()
    explorer.controls["gap"].value = 0.2
    assert explorer.error is None
