"""The loop that generates token by token, with a pretended model that watches: exercise 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Raised, Stage

SMALL_VOCAB, LARGE_VOCAB = 8, 70_000
# How the model's logits look: all far below zero, or in half precision.
LOGITS = (
    (-9.0, torch.float32),
    (0.0, torch.float32),
    (-20_000.0, torch.float32),
    (-9.0, torch.bfloat16),
)


@dataclass(frozen=True)
class Text:
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]

    def __str__(self) -> str:
        eos = sorted(self.eos) or "none"
        return f"prompt {list(self.prompt)}, max_tokens {self.max_tokens}, EOS {eos}"


@dataclass(frozen=True)
class Requests:
    """One text, or two after another."""

    texts: tuple[Text, ...]
    vocab: int
    logits: tuple[float, torch.dtype]

    def __str__(self) -> str:
        return "; then ".join(map(str, self.texts))


def draw(c: Choices) -> Requests:
    """EOS tokens in the prompt, as the first new token, several, none; long prompts and texts."""
    vocab = LARGE_VOCAB if c.rarely(8) else SMALL_VOCAB

    def token() -> int:
        return c.integer(0, vocab - 1)

    def text() -> Text:
        prompt = (*c.some(token, 1, 6), *(3,) * (c.integer(1, 150) if c.rarely(8) else 0))
        max_tokens = c.integer(30, 90) if c.rarely(8) else c.integer(1, 6)
        eos = c.some(token, 0, 3)
        if vocab == LARGE_VOCAB:
            max_tokens, prompt = min(max_tokens, 4), prompt[:6]
            eos += generate(prompt, 4, frozenset(), vocab)[2:3] if c.rarely(2) else []
        return Text(prompt, max_tokens, frozenset(eos))

    return Requests(tuple(c.some(text, 1, 2)), vocab, c.pick(LOGITS))


def next_tokens(text: tuple[int, ...] | list[int], vocab: int) -> list[int]:
    """What follows after each token of a text; all tokens before it count, and their order."""
    state, following = 1, []
    for position, token in enumerate(text):
        state = (state * 1_000_003 + 31 * token + 7 * position + 5) % 2_147_483_647
        following.append((state >> 7) % vocab)
    return following


def generate(
    prompt: tuple[int, ...], max_tokens: int, eos: frozenset[int], vocab: int
) -> list[int]:
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        text.append(next_tokens(text, vocab)[-1])
        if text[-1] in eos:
            break
    return text[len(prompt) :]


class Model:
    """Gives logits [T, vocab], and tells the stage if it is not fed the whole text so far."""

    def __init__(self, stage: Stage, text: Text, requests: Requests) -> None:
        self.stage, self.max_tokens, self.requests = stage, text.max_tokens, requests
        self.text = list(text.prompt)
        self.num_calls = 0

    def __call__(self, token_ids: Tensor) -> Tensor:
        stage, (offset, dtype) = self.stage, self.requests.logits
        self.num_calls += 1
        stage.now(f"call {self.num_calls} of the model")
        if not isinstance(token_ids, Tensor) or token_ids.is_floating_point():
            stage.blame("tensor", "a tensor of token ids, shape [T]", token_ids)
        if token_ids.dim() != 1:
            stage.blame("batch", "shape [T]", f"shape {list(token_ids.shape)}")
        if self.num_calls > self.max_tokens + 1:
            stage.blame("end", f"{self.max_tokens} calls at most", f"call {self.num_calls}")
        stage.expect("text", self.text, token_ids.tolist())
        following = next_tokens(self.text, self.requests.vocab)
        logits = torch.full((len(following), self.requests.vocab), offset, dtype=dtype)
        rows = torch.arange(len(following))
        logits[rows, torch.tensor(following).roll(1)] += 2.0  # the second best is another row's
        logits[rows, torch.tensor(following)] = offset + 4.0
        self.text.append(following[-1])
        return logits


def right_loop(model: Any, prompt: list[int], max_tokens: int, eos: set[int]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens:
        ids.append(int(model(torch.tensor(ids))[-1].argmax()))
        if ids[-1] in eos:
            break
    return ids[len(prompt) :]


def play(stage: Stage, loop: Any, requests: Requests) -> None:
    answers: list[tuple[list[int], Any]] = []
    for text in requests.texts:
        model = Model(stage, text, requests)
        prompt, eos = list(text.prompt), set(text.eos)
        expected = generate(text.prompt, text.max_tokens, text.eos, requests.vocab)
        got = stage.do(loop, model, prompt, text.max_tokens, eos)
        stage.now("what your function returns")
        if isinstance(got, Raised):
            stage.blame("result", expected, got)
        if not isinstance(got, list) or not all(isinstance(token, int) for token in got):
            stage.blame("ints", expected, got)
        stage.expect("result", expected, got)
        calls = f"{model.num_calls} calls of the model for {len(expected)} new tokens"
        stage.expect("calls", calls if model.num_calls == len(expected) else "one for each", calls)
        answers.append((expected, got))
    for expected, got in answers:
        stage.now("what you returned at first, after the second text")
        stage.expect("own", expected, got)
