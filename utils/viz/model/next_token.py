"""Lesson 00's widget: a language model's answer to its only question, and you choose from it."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from utils.viz.explore import CSS, show
from utils.viz.style import BLUE, GREY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_BARS = 10
MAX_TEXT = 68  # characters of the text that fit above the bars


def visible(piece: str) -> str:
    """A token's text, with its spaces and line breaks made visible."""
    return piece.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "(nothing)"


def at_temperature(probabilities: torch.Tensor, temperature: float) -> torch.Tensor:
    """What an engine draws from: softmax of the model's scores, each divided by the temperature.

    Args:
        probabilities: the model's own, `[vocab]`. Their logarithms are its scores, but for a
            constant, which softmax takes out.
        temperature: above 0. At 1 nothing changes.
    """
    return (probabilities.log() / temperature).softmax(dim=-1)


def plot_top_tokens(
    text: str, tokens: Sequence[str], probabilities: torch.Tensor, temperature: float = 1.0
) -> Figure:
    """Bars of the likeliest next tokens, the likeliest on top.

    Args:
        text: the text so far.
        tokens: the text of each of the likeliest tokens; decides how many bars there are.
        probabilities: of all tokens, `[vocab]`, at this temperature.
        temperature: what the title says of it; at 1 nothing.
    """
    top = probabilities.topk(len(tokens)).values.tolist()
    figure, axes = plt.subplots(figsize=(8, 3.9))
    rows = range(len(tokens))
    axes.barh(rows, top, height=0.72, color=BLUE)
    for row, share in zip(rows, top, strict=True):
        axes.text(share + 0.008, row, _percent(share), va="center", fontsize=10)
    # Ranks stand in a column of their own. A dollar sign would begin a formula.
    names = [visible(token) for token in tokens]
    width = max(map(len, names))
    labels = [f"{row + 1:>2}  {name:>{width}}" for row, name in zip(rows, names, strict=True)]
    axes.set_yticks(rows, [label.replace("$", r"\$") for label in labels], family="monospace")
    axes.set_ylim(len(tokens) - 0.4, -0.6)
    axes.set_xlim(0, 1.08)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_xlabel("probability that this token comes next")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    others = len(probabilities) - len(tokens)
    rest = f"all other {others:,} tokens together: {_percent(1 - sum(top))}"
    axes.text(1.07, len(tokens) - 1, rest, ha="right", va="center", color=GREY)
    text = " ".join(text.split("\n")).replace("$", r"\$")
    shown = text if len(text) <= MAX_TEXT else f"… {text[-MAX_TEXT:].lstrip()}"
    name, share = names[0].replace("$", r"\$"), _percent(top[0])
    if temperature == 1:
        axes.set_title(f"“{shown} …”\nThe likeliest next token is “{name}”, at {share}")
    else:
        at = f"At temperature {temperature:g}"
        axes.set_title(f"“{shown} …”\n{at}, the likeliest next token, “{name}”, has {share}")
    return figure


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0095 else f"{max(share, 0):.1%}"


class NextTokenWidget(ipywidgets.VBox):
    """Choose the next token, look at the next bars, and so on. You are the sampler.

    A slider sets the temperature at which the bars are drawn.

    Args:
        probabilities: from the numbers of a text's tokens to the probability of each token to be
            the next one, `[vocab]`.
        tokenizer: the model's.
        text: how the text begins.
    """

    def __init__(
        self,
        probabilities: Callable[[list[int]], torch.Tensor],
        tokenizer: PreTrainedTokenizerBase,
        text: str,
    ) -> None:
        self._ask, self._tokenizer = probabilities, tokenizer
        self.field = ipywidgets.Text(
            value=text,
            description="begin with",
            continuous_update=False,
            layout=ipywidgets.Layout(width="95%"),
        )
        self.temperature = ipywidgets.FloatSlider(
            value=1.0,
            min=0.2,
            max=2.0,
            step=0.1,
            description="temperature",
            continuous_update=False,
            readout_format=".1f",
        )
        narrow = ipywidgets.Layout(width="auto")
        self.buttons = [ipywidgets.Button(layout=narrow) for _ in range(NUM_BARS)]
        self.restart = ipywidgets.Button(description="Start again", layout=narrow)
        self._message = ipywidgets.HTML()
        self._image = ipywidgets.Image(format="png")
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        row = ipywidgets.Box([*self.buttons, self.restart], layout=wrap)
        above = [self.field, row, self.temperature, self._message]
        super().__init__([*above, self._image, ipywidgets.HTML(CSS)])
        for number, button in enumerate(self.buttons):
            button.on_click(lambda _, number=number: self._do(lambda: self.take(number)))
        self.restart.on_click(lambda _: self._do(self.start_again))
        self.field.observe(lambda _: self._do(self.start_again), names="value")
        self.temperature.observe(lambda _: self._do(lambda: None), names="value")
        self._do(self.start_again)

    def start_again(self) -> None:
        """Back to the text in the field.

        Raises:
            ValueError: it is empty.
        """
        ids = self._tokenizer(self.field.value).input_ids
        if not ids:
            raise ValueError("Type a few words for the text to begin with.")
        self._be(ids)

    def take(self, number: int) -> None:
        """Append the token of a bar, counted from 0."""
        self._be([*self.ids, self.likeliest[number]])

    @property
    def ended(self) -> bool:
        """Whether the last token says that the text ends here."""
        return self.ids[-1] == self._tokenizer.eos_token_id

    def draw(self) -> Figure:
        """The bars after the text so far."""
        pieces = [self._tokenizer.decode([token]) for token in self.likeliest]
        temperature = round(self.temperature.value, 1)
        bars = at_temperature(self.probabilities, temperature)
        return plot_top_tokens(self._tokenizer.decode(self.ids), pieces, bars, temperature)

    def _be(self, ids: list[int]) -> None:
        self.ids, self.probabilities = ids, self._ask(ids)
        self.likeliest = self.probabilities.topk(NUM_BARS).indices.tolist()

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ValueError as error:
            self._message.value = html.escape(str(error))
            return
        self._message.value = "This token ends the text. Start again." if self.ended else ""
        for number, (button, token) in enumerate(zip(self.buttons, self.likeliest, strict=True)):
            button.description = f"{number + 1}  {visible(self._tokenizer.decode([token]))}"
            button.disabled = self.ended
        show(self.draw(), self._image)
