"""The pictures and the widget of notebook 13."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.viz.serving import vllm_prefix
from utils.viz.serving.vllm_prefix_widget import hit_explorer, plot_hits, tenant_prompts
from utils.viz.style import use_course_style


@pytest.fixture(autouse=True)
def _style():
    use_course_style()
    yield
    plt.close("all")


def test_staircase_draws_predicted_and_measured_for_each_block_size() -> None:
    steps = {size: ([0, 40, 80], [0, 32, 64]) for size in (32, 128)}
    axes = vllm_prefix.plot_staircase(steps, steps).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "blocks of 32: predicted",
        "blocks of 32: vLLM",
        "blocks of 128: predicted",
        "blocks of 128: vLLM",
    ]


def test_ttft_splits_hits_from_misses() -> None:
    lines = {"two numbers": lambda n: 20 + 0.3 * n}
    figure = vllm_prefix.plot_ttft_by_tokens_left(
        [300, 40, 50], [100, 30, 40], [False, True, True], lines, "A title"
    )
    drawn = figure.axes[0].get_lines()
    assert [len(line.get_xdata()) for line in drawn] == [309, 1, 2]
    assert drawn[0].get_ydata()[99] == pytest.approx(50)
    assert drawn[2].get_ydata().tolist() == pytest.approx([30, 40])


def test_cache_sizes_are_points_and_the_title_says_what_was_measured() -> None:
    figure = vllm_prefix.plot_cache_sizes(
        [4, 8], {"turns": [0, 0.5], "grouped": [0.5, 0.6]}, 4, {"turns": 0, "grouped": 0.5}
    )
    axes = figure.axes[0]
    assert len(axes.get_lines()) == 5
    assert list(axes.get_lines()[0].get_ydata()) == [0, 50]
    title = axes.get_title(loc="left")
    assert title == "With 4 blocks, vLLM finds 50% in one order and 0% in another"


def test_hits_of_the_widget() -> None:
    assert [len(p) for p in tenant_prompts(2, 4, 10, 3)] == [13] * 4
    blocks, each = plot_hits(268, 80, 128, 3, 2048).axes
    assert blocks.get_title(loc="left").startswith("256 of 348 tokens found")
    found = [bar.get_height() for bar in each.containers[1]]
    assert found == [0] * 3 + [256] * 21
    assert [text.get_text() for text in each.get_legend().get_texts()] == ["computed", "found"]
    with pytest.raises(ValueError, match="One prompt needs 8 blocks; the cache has 4"):
        plot_hits(800, 200, 128, 1, 512)


def test_every_control_of_the_widget_moves() -> None:
    explorer = hit_explorer()
    for control in explorer.controls.values():
        values = getattr(control, "options", None) or [control.min, control.max]
        before = control.value
        for value in values:
            control.value = value
            assert explorer.error is None, f"{control.description}={value}: {explorer.error}"
        control.value = before
    assert plt.get_fignums() == []
