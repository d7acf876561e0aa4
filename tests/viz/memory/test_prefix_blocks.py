"""The picture of a prefix cache shows what its manager does, and its widget works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.input_processor import InputProcessor
from utils.viz.memory.prefix_blocks import plot_prefix_blocks
from utils.viz.memory.prefix_blocks_widget import EXAMPLES, PrefixBlocksWidget


@pytest.fixture(scope="module")
def inputs(model_path: Path, tokenizer) -> InputProcessor:
    config = EngineConfig(512, torch.float32, torch.device("cpu"), num_gpu_blocks=64)
    return InputProcessor(ModelConfig.from_pretrained(model_path), config, tokenizer)


@pytest.fixture
def widget(inputs: InputProcessor) -> Iterator[PrefixBlocksWidget]:
    yield PrefixBlocksWidget(inputs)
    assert plt.get_fignums() == []  # no picture is left open


def send(widget: PrefixBlocksWidget, prompt: str) -> str:
    widget.prompt.value = prompt
    widget.send.click()
    return widget._message.value


def drawn(widget: PrefixBlocksWidget) -> list[str]:
    """All words in the picture, from top left to bottom right."""
    tokenizer = widget.inputs.tokenizer
    figure = plot_prefix_blocks(widget.manager, widget.running, tokenizer, "title", widget.ended)
    words = [text.get_text() for text in figure.axes[0].texts]
    plt.close(figure)
    return words


def order_of_reuse(words: list[str]) -> list[int]:
    """The free blocks as drawn, the next to be reused first."""
    found = [re.fullmatch(r"(\d+): reused (\d+)(?:st|nd|rd|th)", word) for word in words]
    return [int(m[1]) for m in sorted((m for m in found if m), key=lambda m: int(m[2]))]


def test_shared_blocks_are_drawn_as_shared(widget: PrefixBlocksWidget) -> None:
    assert send(widget, EXAMPLES[0]) == "A has 13 tokens: 0 found, 13 computed."
    assert send(widget, EXAMPLES[1]) == "B has 10 tokens: 8 found, 2 computed."
    words = drawn(widget)
    for expected in (
        "block 0, found",
        "block 1, found",
        "block 4, not full",
        "block 3, not full",
        "0: held by 2",
        "1: held by 2",
        "2: held by 1",
        "5: reused 1st",
    ):
        assert words.count(expected) == 1, expected
    assert words.count("A gentle breeze\nstirred") == 3  # twice in a row, once in the pool


def test_order_of_reuse_is_the_order_in_which_blocks_are_handed_out(
    widget: PrefixBlocksWidget,
) -> None:
    for prompt in (EXAMPLES[0], EXAMPLES[2], EXAMPLES[1]):
        send(widget, prompt)
    for _ in range(3):
        widget.finish.click()
        assert widget.error is None
    order = order_of_reuse(drawn(widget))
    pool = widget.manager.block_pool
    assert order == [pool.get_new_blocks(1)[0].block_id for _ in range(pool.num_gpu_blocks)]


def test_a_picture_can_have_a_title_of_its_own(widget: PrefixBlocksWidget) -> None:
    for title, drawn_title in (("", "0 running. Found so far: 0 of 0 tokens"), ("mine", "mine")):
        figure = widget.draw(title)
        axes = figure.axes[0]
        assert (axes.get_title() or axes.get_title(loc="left")) == drawn_title
        plt.close(figure)


def test_contents_of_free_blocks_stay_visible_until_they_are_evicted(
    widget: PrefixBlocksWidget,
) -> None:
    send(widget, EXAMPLES[0])
    widget.finish.click()
    assert drawn(widget).count("the leaves as\nchildren") == 1
    widget.manager.block_pool.get_new_blocks(12)
    assert drawn(widget).count("the leaves as\nchildren") == 0


def test_every_button_changes_the_picture(widget: PrefixBlocksWidget) -> None:
    pictures = [bytes(widget._image.value)]
    for example in EXAMPLES[1:]:
        widget.examples.value = example
        assert widget.prompt.value == example
        widget.send.click()
        assert widget.error is None
        pictures.append(bytes(widget._image.value))
    widget.finish.click()
    pictures.append(bytes(widget._image.value))
    assert len(set(pictures)) == len(pictures)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    widget.restart.click()
    assert widget._image.value == pictures[0]
    assert send(widget, EXAMPLES[0]).startswith("A has 13 tokens: 0 found")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("", "empty"), ("word " * 60, "whole pool has room for 48"), ("a b c d " * 5, "Too few")],
)
def test_what_cannot_be_sent_is_explained_and_changes_nothing(
    widget: PrefixBlocksWidget, prompt: str, message: str
) -> None:
    send(widget, EXAMPLES[0])
    send(widget, EXAMPLES[3])
    before = drawn(widget)
    assert message in send(widget, prompt)
    assert isinstance(widget.error, ValueError)
    assert drawn(widget) == before
    widget.finish.click()
    assert widget.error is None


def test_finishing_nothing_is_explained(widget: PrefixBlocksWidget) -> None:
    widget.finish.click()
    assert "Send one first" in widget._message.value


def test_prompts_are_text_and_no_formula(widget: PrefixBlocksWidget) -> None:
    send(widget, "$\\frac$ costs <b>5</b>\nnow")
    assert widget.error is None
    assert drawn(widget).count("$\\frac$ costs") == 2  # in its row and in the pool
    assert "<" not in widget._message.value


def test_long_texts_are_cut(widget: PrefixBlocksWidget) -> None:
    send(widget, "communication administration international understanding")
    assert drawn(widget).count("communication\nadministration\ninternational …") == 2


def test_a_block_has_one_color_in_its_tables_and_in_the_pool(widget: PrefixBlocksWidget) -> None:
    for prompt in EXAMPLES[:2]:
        send(widget, prompt)
    for num_holders in (2, 1):
        figure = plot_prefix_blocks(
            widget.manager, widget.running, widget.inputs.tokenizer, "x", widget.ended
        )
        axes = figure.axes[0]
        texts = [text for text in axes.texts if text.get_text() == "A gentle breeze\nstirred"]
        boxes = [
            p
            for p in axes.patches
            if any(
                p.contains_point(axes.transData.transform(text.get_position())) for text in texts
            )
        ]
        colors = {box.get_facecolor() for box in boxes}
        plt.close(figure)
        assert len(texts) == len(boxes) == num_holders + 1 and len(colors) == 1
        widget.finish.click()
