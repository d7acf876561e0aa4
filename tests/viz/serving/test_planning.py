"""The pictures of notebook 14b say what the planner computes."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pytest

from utils.planning.plan import Deployment, Load, capacity, dollars
from utils.planning.prices import PRICES
from utils.viz.serving.planning import plan_explorer, plot_by_card, plot_in_and_out, plot_price


@pytest.fixture(autouse=True)
def _close_figures() -> Any:
    yield
    plt.close("all")


def title_of(axes: Any) -> str:
    """The course's style puts titles left; another style may not."""
    return axes.get_title(loc="left") or axes.get_title()


def test_the_title_names_the_cheapest_and_the_dearest() -> None:
    setups = [Deployment("Llama-3-70B", "H100", cards) for cards in (2, 4)]
    load = Load(2000, 300)
    prices = {"H100": 3.0}
    axes = plot_by_card(setups, load, 0.05, prices).axes[0]
    costs = [dollars(s, capacity(s, load, promise=0.05), 3.0).per_million_out for s in setups]
    title = title_of(axes)
    assert f"4 x H100, 16 bits, a million tokens out cost ${costs[1]:.2f}" in title
    assert f"${costs[0]:.2f} with 2 x H100" in title


def test_the_explorer_moves_and_never_fails() -> None:
    explorer = plan_explorer()
    for name, control in explorer.controls.items():
        before = control.value
        for option in (control.options[0], control.options[-1]):
            control.value = option
            assert explorer.error is None, (name, option, explorer.error)
        control.value = before
    assert "doesn't fit" in title_of(plot_price("Llama-3-70B", "T4", 1, 16, 2000, 0.0).axes[0])
    assert set(explorer.controls["gpu"].options) == set(PRICES)


def test_in_and_out() -> None:
    axes = plot_in_and_out([1, 8], [1e-3, 1e-3], [50e-3, 7e-3], ridge=40).axes[0]
    assert "50 times" in title_of(axes) and "7.0 times" in title_of(axes)
    [bound] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(bound.get_ydata()) == [40.0, 5.0]
