"""The pictures of notebook 11 show what they are given; its widget redraws with every control."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor

from utils.viz.finetune.merge import (
    GRIDS,
    SIZES,
    changed_share,
    merge_explorer,
    plot_candidates,
    plot_update_sizes,
    round_to,
    survival,
)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def normal(seed: int, size: float) -> Tensor:
    return size * torch.randn(96, 128, generator=torch.Generator().manual_seed(seed))


def test_update_sizes() -> None:
    ratios = torch.tensor([0.1, 0.1, 0.1, 10.0, torch.inf, 0.0])
    figure = plot_update_sizes({"NF4": ratios, "bfloat16": torch.tensor([5.0])}, "Finding")
    [axes] = figure.axes
    assert axes.get_title(loc="left") or axes.get_title() == "Finding"
    tops = [float(np.asarray(patch.get_path().vertices)[:, 1].max()) for patch in axes.patches]
    assert tops == pytest.approx([75, 100])  # of the updates that have a finite way to go


def test_candidates() -> None:
    panels = {"KL": [0.001, 0.1], "perplexity": [1.5, 1.7]}
    figure = plot_candidates(["c", "d"], panels, "Finding", {"perplexity": 1.6}, ["KL"])
    left, right = figure.axes
    assert left.get_xscale() == "log" and right.get_xscale() == "linear"
    assert [text.get_text() for text in right.texts] == ["as trained", "1.5", "1.7"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["c", "d"]
    assert np.asarray(right.lines[1].get_xdata()).tolist() == [1.6, 1.6]


def test_small_updates_vanish_on_the_grid_and_not_beside_it() -> None:
    weight, update = normal(0, 0.1), normal(1, 0.001)
    for grid in GRIDS:
        on_grid = round_to(grid, weight)
        tiny = update if grid == "NF4" else update / 50
        assert survival(on_grid, tiny, grid) < 0.3 < 0.6 < survival(weight, tiny, grid) < 1.5
        assert changed_share(on_grid, 0 * tiny, grid) == 0
        assert changed_share(weight, 1000 * tiny, grid) > 0.5
    with pytest.raises(ValueError, match="Unknown grid 'int8'"):
        round_to("int8", weight)


def test_every_control_redraws() -> None:
    layers = {"q_proj": (normal(0, 0.1), normal(1, 0.01)), "k_proj": (normal(2, 0.1), normal(3, 1))}
    explorer = merge_explorer(layers)
    seen = {bytes(explorer._image.value)}
    moves = (("layer", "k_proj"), ("base", "Q(W)"), ("grid", "NF4"), ("size", SIZES[0]))
    for name, value in moves:
        explorer.controls[name].value = value
        assert explorer.error is None
        seen.add(bytes(explorer._image.value))
    assert len(seen) == 5
    assert plt.get_fignums() == []
    with pytest.raises(ValueError, match="at least one layer"):
        merge_explorer({})
