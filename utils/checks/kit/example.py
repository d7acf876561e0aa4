"""The check that notebook 00 shows. No lab asks for this function, so nothing is given away."""

from __future__ import annotations

from collections.abc import Callable

import torch

from utils.checks.kit.runner import Mismatch, call, exercise

VOCAB, END, RAMBLE = 10, 2, 9
# (prompt, reply, max_tokens). Like a chat's, the first prompt holds the token that ends a message.
TRIED = (
    ([1, 5, END, 1, 6], [4, 3, END], 8),
    ([1, 5], [3, 4, 3, 5, 4], 4),
    ([1, 6], [END], 3),
    ([1, 7], [4, END], 2),
)

Ask = Callable[[list[int]], torch.Tensor]


def pretended_model(prompt: list[int], reply: list[int], asked: list[list[int]]) -> Ask:
    """A model that gives one reply to one prompt, and after its end only rambles.

    Args:
        prompt, reply: token IDs. A text that isn't the prompt and a part of the reply rambles, too.
        asked: each text that the model is asked about is appended here.
    """

    def ask(token_ids: list[int]) -> torch.Tensor:
        text, told = list(token_ids), [*prompt, *reply]
        asked.append(text)
        begun = len(prompt) <= len(text) < len(told) and text == told[: len(text)]
        scores = torch.zeros(VOCAB)
        scores[told[len(text)] if begun else RAMBLE] = 4.0
        return scores.softmax(dim=-1)

    return ask


@exercise("An example: answer", points=1)
def answer(function: Callable[[Ask, list[int], int, int], list[int]]) -> str:
    """Check `answer(ask, token_ids, eos_token_id, max_tokens)`: the likeliest tokens to the end."""
    for prompt, reply, max_tokens in TRIED:
        expected = [*prompt, *reply[:max_tokens]]
        asked: list[list[int]] = []
        given = f"the prompt {prompt}, eos_token_id={END}, max_tokens={max_tokens}"
        ask = pretended_model(prompt, reply, asked)
        got = call(function, ask, list(prompt), END, max_tokens, given=given)
        right = isinstance(got, list) and got == expected
        needed = len(expected) - len(prompt)
        if right and len(asked) <= needed:
            continue
        if right:
            headline = "The tokens are right, but your loop asks the model more often than needed."
            look = f"It asked {len(asked)} times for {needed} tokens."
        elif isinstance(got, list) and got[: len(expected)] == expected:
            headline = "Your loop goes on after the answer is over."
            look = "Which token did the loop just append, and what should happen after the last?"
        else:
            headline = "These aren't the prompt and its answer."
            look = (
                "Return the prompt's tokens and then the answer's, with the token that ends it. "
                "That token may also be in the prompt, where it ends nothing."
            )
        raise Mismatch(headline, input=given, expected=str(expected), got=str(got), look=look)
    return f"Right for all {len(TRIED)} prompts: your loop ends where the answer ends."
