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


def test_waits_behind_cached_tokens_lie_against_the_same_tokens_alone() -> None:
    waits = {256: ([100, 110], [102, 108]), 1920: ([60], [80])}
    axes = vllm_prefix.plot_alone_and_behind(waits, "A title").axes[0]
    diagonal, few, many = axes.get_lines()
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    assert (list(few.get_xdata()), list(few.get_ydata())) == ([100, 110], [102, 108])
    assert (list(many.get_xdata()), list(many.get_ydata())) == ([60], [80])
    assert many.get_label() == "behind 1,920 cached tokens"


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
