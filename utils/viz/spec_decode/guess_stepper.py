"""A widget that steps through guessing and verifying, from runs of the engine."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ipywidgets

from utils.engine.llm_engine import LLMEngine
from utils.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BOX = (
    "display:inline-block;margin:1px;padding:1px 4px;border-radius:3px;color:#1b1b1b;"
    "font-family:monospace;"
)
# Colour, and a border and a line that tell them apart in grey.
STYLES = {
    "accepted": _BOX + "background:#a9c6ea;border:1px solid #1f4e9c",
    "rejected": _BOX + "background:#f6d5d2;border:1px dotted #b3261e;text-decoration:line-through",
    "recovered": _BOX + "background:#fbe3c4;border:2px solid #e07b00",
    "bonus": _BOX + "background:#d3ebcc;border:2px double #3c7a2d",
    "plain": _BOX + "background:#eeeeee;border:1px solid #8a8a8a",
}
MEANINGS = {
    "accepted": "guessed and accepted",
    "rejected": "guessed and rejected",
    "recovered": "recovered: the model's own token after a rejection",
    "bonus": "bonus: the model's own token after the last guess",
    "plain": "nothing was guessed",
}


@dataclass(frozen=True)
class GuessStep:
    """One step of one request.

    Args:
        before: tokens of the answer before the step.
        guesses: tokens that were verified in it.
        gained: tokens of the answer that came out of it.
    """

    before: list[int]
    guesses: list[int]
    gained: list[int]

    @property
    def num_accepted(self) -> int:
        """How many guesses stay. An answer may end with one of them."""
        pairs = zip(self.guesses, self.gained, strict=False)
        wrong = (i for i, (guess, token) in enumerate(pairs) if guess != token)
        return next(wrong, min(len(self.guesses), len(self.gained)))

    def kinds(self) -> list[tuple[str, int]]:
        """The step's tokens with what became of them, as (kind, token)."""
        accepted = self.num_accepted
        found = [("accepted", token) for token in self.gained[:accepted]]
        found += [("rejected", token) for token in self.guesses[accepted:]]
        for token in self.gained[accepted:]:
            if not self.guesses:
                found.append(("plain", token))
            else:
                found.append(("bonus" if accepted == len(self.guesses) else "recovered", token))
        return found


def record_guesses(
    engine: LLMEngine, prompt_token_ids: list[int], params: SamplingParams
) -> list[GuessStep]:
    """Let the engine answer one prompt, and keep what it guessed and gained in each step.

    The first step, which computes the prompt, is left out.

    Raises:
        ValueError: the engine guesses trees, whose tokens do not follow one another, or it has
            other requests.
    """
    spec = engine.config.speculative_config
    if spec is not None and spec.tree_widths is not None:
        raise ValueError("A tree cannot be shown as a row of tokens. Record a chain.")
    if engine.has_unfinished_requests():
        raise ValueError("The engine has unfinished requests. Finish or abort them first.")
    engine.add_request("recorded", {"prompt_token_ids": prompt_token_ids}, params)
    [output] = engine.step()
    steps = []
    trace, engine.step_trace = engine.step_trace, []
    while not output.finished:
        [request] = engine.scheduler.running
        guesses, before = list(request.spec_token_ids), list(output.outputs[0].token_ids)
        [output] = engine.step()
        num_guesses = engine.step_trace[-1].tokens["recorded"].num_draft  # there may be no room
        gained = output.outputs[0].token_ids[len(before) :]
        steps.append(GuessStep(before, guesses[:num_guesses], gained))
    engine.step_trace = trace
    return steps


def step_as_html(steps: Sequence[GuessStep], index: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The answer so far, and after it the tokens of step number `index`, from 0."""
    step = steps[index]
    num_gained = sum(len(other.gained) for other in steps[: index + 1])
    boxes = "".join(_box(tokenizer, kind, token) for kind, token in step.kinds())
    text = html.escape(tokenizer.decode(step.before)).replace("\n", "<br>")
    legend = " ".join(
        f'<span style="{style}">{name}</span> <small>{MEANINGS[name]}</small>'
        for name, style in STYLES.items()
    )
    num_tokens = len(step.gained)
    return (
        f"<div style='max-width:900px;line-height:1.7'><b>Step {index + 1} of {len(steps)}: "
        f"{len(step.guesses)} guessed, {step.num_accepted} accepted, {num_tokens} "
        f"token{'' if num_tokens == 1 else 's'} gained.</b> So far {num_gained} tokens in "
        f"{index + 1} passes.<hr>{text}{boxes}<hr>{legend}</div>"
    )


def _box(tokenizer: PreTrainedTokenizerBase, kind: str, token: int) -> str:
    text = html.escape(tokenizer.decode([token])).replace(" ", "&middot;")
    text = text.replace("\n", "&#9166;") or "&nbsp;"
    return f'<span style="{STYLES[kind]}">{text}</span>'


class GuessStepper(ipywidgets.VBox):
    """A choice of runs, and a slider over the steps of the chosen one.

    Args:
        runs: name -> steps, as `record_guesses` returns them.
        tokenizer: turns tokens into text.
    """

    def __init__(
        self, runs: Mapping[str, Sequence[GuessStep]], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._runs, self._tokenizer = runs, tokenizer
        self.run = ipywidgets.Dropdown(options=list(runs), description="guesser")
        self.step = ipywidgets.IntSlider(1, min=1, max=1, description="step")
        self.step.layout.width = "520px"
        self.view = ipywidgets.HTML()
        super().__init__([ipywidgets.HBox([self.run, self.step]), self.view])
        self.run.observe(self._choose, names="value")
        self.step.observe(self._show, names="value")
        self._choose()

    def _choose(self, change: object = None) -> None:
        self.step.max = len(self._runs[self.run.value])
        self._show()

    def _show(self, change: object = None) -> None:
        steps = self._runs[self.run.value]
        self.view.value = step_as_html(steps, self.step.value - 1, self._tokenizer)
