"""Lesson 00's widget appends what is chosen, asks again, and says what it shows."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import pytest
import torch

from utils.viz.figure_text import figure_text
from utils.viz.model.next_token import (
    NUM_BARS,
    NextTokenWidget,
    at_temperature,
    plot_top_tokens,
    visible,
)


def favors(token: int, vocab: int) -> Callable[[list[int]], torch.Tensor]:
    """A model whose favorite is the number of the last token, plus `token`."""

    def probabilities(ids: list[int]) -> torch.Tensor:
        scores = torch.linspace(0, 1, vocab)
        scores[(ids[-1] + token) % vocab] = 9.0
        return scores.softmax(dim=-1)

    return probabilities


@pytest.fixture
def widget(tokenizer) -> NextTokenWidget:
    return NextTokenWidget(favors(1, len(tokenizer)), tokenizer, "The sun")


def test_a_chosen_token_is_appended_and_the_model_asked_again(widget) -> None:
    before, first = list(widget.ids), widget.likeliest[0]
    assert first == before[-1] + 1
    picture = bytes(widget._image.value)
    widget.buttons[0].click()
    assert widget.ids == [*before, first] and widget.likeliest[0] == first + 1
    assert bytes(widget._image.value) != picture
    widget.buttons[NUM_BARS - 1].click()
    assert len(widget.ids) == len(before) + 2
    widget.restart.click()
    assert widget.ids == before
    assert plt.get_fignums() == []


def test_another_text_starts_again_and_an_empty_one_is_refused(widget, tokenizer) -> None:
    widget.buttons[0].click()
    widget.field.value = "Once upon a time"
    assert widget.ids == tokenizer("Once upon a time").input_ids
    widget.field.value = ""
    assert "Type a few words" in widget._message.value
    assert widget.ids == tokenizer("Once upon a time").input_ids


def test_the_token_that_ends_a_text_ends_it(tokenizer) -> None:
    ids = tokenizer("The sun").input_ids
    step = tokenizer.eos_token_id - ids[-1]
    widget = NextTokenWidget(favors(step, len(tokenizer)), tokenizer, "The sun")
    widget.buttons[0].click()
    assert widget.ended and all(button.disabled for button in widget.buttons)
    assert "ends the text" in widget._message.value
    widget.restart.click()
    assert not any(button.disabled for button in widget.buttons)


def test_the_temperature_divides_the_scores_and_one_changes_nothing(widget) -> None:
    scores = torch.tensor([1.0, 3.0, -2.0, 0.5])
    for temperature in (0.2, 1.0, 2.0):
        expected = (scores / temperature).softmax(dim=-1)
        torch.testing.assert_close(at_temperature(scores.softmax(dim=-1), temperature), expected)
    before, likeliest = bytes(widget._image.value), list(widget.likeliest)
    widget.temperature.value = 0.5
    assert bytes(widget._image.value) != before and widget.likeliest == likeliest
    figure = widget.draw()
    assert "At temperature 0.5, the likeliest" in figure_text(figure)
    plt.close(figure)


@pytest.mark.parametrize("text", ["The sun", "costs $5 or $6", "a\nb", "word " * 60])
def test_the_picture_says_what_is_likeliest(text: str) -> None:
    figure = plot_top_tokens(text, [" $", "\n", ""], torch.tensor([0.1, 0.6, 0.002, 0.298]))
    figure.canvas.draw()  # a formula that cannot be read would fail here
    assert "at 60%" in figure_text(figure)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts[:3] == ["60%", "30%", "10%"]
    assert texts[3] == "all other 1 tokens together: 0.2%"
    plt.close(figure)


def test_spaces_and_line_breaks_are_visible() -> None:
    assert [visible(p) for p in (" a", "\n", "\t", "")] == ["·a", "⏎", "⇥", "(nothing)"]
