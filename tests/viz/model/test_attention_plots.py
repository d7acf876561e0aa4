"""Pictures of notebooks 01 and 02 show the numbers that they were given."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle

from utils.sim.memory import MODEL_SHAPES
from utils.viz.memory.kv_memory import plot_kv_per_token
from utils.viz.model.attention import plot_attention, plot_attention_growth, plot_step_seconds
from utils.viz.style import BLUE, ORANGE


@pytest.mark.parametrize("num_queries", [2, 4])
def test_the_future_is_hatched_and_the_past_is_not(num_queries: int) -> None:
    weights = torch.full((num_queries, 4), 0.25)
    axes = plot_attention(weights, list("abcd"), "Title").axes[0]
    covered = set()
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        assert patch.get_hatch()
        row, first = round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)
        covered |= {(row, first + i) for i in range(round(patch.get_width()))}
    past = 4 - num_queries
    assert covered == {(q, k) for q in range(num_queries) for k in range(4) if k > q + past}


def test_growth_tells_cached_keys_from_the_new_one() -> None:
    axes = plot_attention_growth(num_tokens=3).axes[0]
    assert len(axes.patches) == 4 + 3 + 2 + 1
    last_row = axes.patches[-4:]
    expected = [ORANGE, ORANGE, ORANGE, BLUE]
    for patch, color in zip(last_row, expected, strict=True):
        assert same_color(patch.get_facecolor(), color)


def test_whole_answers_stand_beside_the_steps() -> None:
    [steps] = plot_step_seconds([10, 20], [1.0, 3.0], [1.0, 1.0]).axes
    assert list(steps.lines[0].get_ydata()) == [1000, 3000]  # milliseconds
    answers = ([16, 32], [5.0, 12.0], [1.0, 2.0])
    _, right = plot_step_seconds([10, 20], [1.0, 3.0], [1.0, 1.0], answers).axes
    assert [list(line.get_ydata()) for line in right.lines] == [[5, 12], [1, 2]]
    assert list(right.lines[0].get_xdata()) == [16, 32]


def test_kv_per_token_rounds_no_half_away() -> None:
    axes = plot_kv_per_token(list(MODEL_SHAPES.values())).axes[0]
    labels = {text.get_text().strip() for text in axes.texts}
    assert {"22.5", "800", "8"} <= labels
