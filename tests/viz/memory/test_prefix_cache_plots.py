"""Pictures of prefix caching show what the simulators and the tree hold."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.sim.radix_cache import RadixTree
from utils.viz.memory.prefix_cache import plot_block_tree, plot_hit_rates, plot_radix_tree
from utils.viz.style import use_course_style

SYSTEM = "You are a helpful assistant.\nAnswer in one sentence. "
QUESTIONS = ("What is a KV cache?", "What is a radix tree?", "Costs $5 or $6?")


@pytest.fixture(autouse=True)
def style():
    use_course_style()
    yield
    plt.close("all")


def title_of(figure) -> str:
    return figure.axes[0].get_title(loc="left")


def texts_of(figure) -> list[str]:
    figure.canvas.draw()  # a text that cannot be drawn fails here
    return [text.get_text() for text in figure.axes[0].texts]


def test_hit_rates_are_told_apart_without_color() -> None:
    rates = {"LRU": [0.1, 0.5, 0.7], "FIFO": [0.1, 0.2, 0.6], "LFU": [0.0, 0.3, 0.5]}
    figure = plot_hit_rates(rates, [1024, 2048, 4096], 0.8, "LRU leads")
    assert title_of(figure) == "LRU leads"
    lines = figure.axes[0].lines
    assert [float(y) for y in lines[1].get_ydata()] == pytest.approx([10, 20, 60])
    looks = {(line.get_marker(), line.get_linestyle()) for line in lines[:3]}
    assert len(looks) == 3
    assert lines[0].get_linewidth() > 2 * lines[1].get_linewidth()  # a band below the others
    assert [line.get_label() for line in lines[:2]] == ["LRU (drawn wide)", "FIFO"]


def test_an_axis_that_does_not_begin_at_zero_says_so() -> None:
    whole, cut = (
        plot_hit_rates({"LRU": [0.7]}, [1], 0.9, "x", lowest).axes[0] for lowest in (0.0, 0.65)
    )
    assert whole.get_ylim() == (0, 100) and "from" not in whole.get_ylabel()
    assert cut.get_ylim() == (65, 100) and cut.get_ylabel().endswith("(%, from 65)")


def test_hit_rates_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(ValueError, match="LRU: 1 hit rates for 2 cache sizes"):
        plot_hit_rates({"LRU": [0.1]}, [1, 2], 0.5, "x")
    with pytest.raises(ValueError, match="1 to 6 policies"):
        plot_hit_rates({}, [1, 2], 0.5, "x")


def test_radix_tree_picture(tokenizer) -> None:
    prompts = [tokenizer(SYSTEM + question).input_ids for question in QUESTIONS]
    tree = RadixTree()
    ends = [tree.insert(prompt) for prompt in prompts]
    tree.lock(ends[0])
    figure = plot_radix_tree(tree, tokenizer.decode)
    texts = texts_of(figure)
    assert len(texts) == 2 * len(list(tree.nodes()))
    assert {text.split("ref_cnt ")[1] for text in texts[1::2]} == {"0", "1"}
    assert texts[0].startswith("You·are·a") or "You·are·a·h…e·sentence." in texts
    assert any("$5" in text for text in texts)  # shown as it is, not read as a formula
    assert f"{tree.num_tokens} tokens stored" in title_of(figure)


def test_block_tree_picture() -> None:
    figure = plot_block_tree([[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 9, 9]], 2, str)
    texts = texts_of(figure)
    boxes = dict(zip(texts[::2], texts[1::2], strict=True))
    assert boxes == {
        "[1,·2]": "ref_cnt 3",
        "[3,·4]": "ref_cnt 2",
        "[9,·9]": "ref_cnt 1",
        "[5]": "not full",
    }
    assert title_of(figure) == "7 tokens stored, 4 of them for several prompts"


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        plot_radix_tree(RadixTree(), str)
    with pytest.raises(ValueError, match="at least one prompt"):
        plot_block_tree([], 2, str)
    with pytest.raises(ValueError, match="block_size"):
        plot_block_tree([[1]], 0, str)
