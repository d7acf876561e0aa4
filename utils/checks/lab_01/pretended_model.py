"""Exercise 6: a loop around a pretended model, which watches what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.lab_01.judging import many

SMALL_VOCAB, LARGE_VOCAB = 8, 70_000
OFFSETS = (-9.0, 0.0, -20_000.0)  # of all logits
LENGTHS = (*("short",) * 22, "long", "long", "long", "beyond any window")  # of prompts
SHOWN = 8  # tokens


@dataclass(frozen=True)
class Text:
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]

    def __str__(self) -> str:
        eos = sorted(self.eos) or "none"
        return f"prompt {told(self.prompt)}, max_tokens {self.max_tokens}, EOS {eos}"


SIMPLEST = Text((0,), 1, frozenset())


@dataclass(frozen=True)
class Requests:
    """One text, or two after another."""

    texts: tuple[Text, ...]
    vocab: int
    offset: float

    def __str__(self) -> str:
        return "; then ".join(map(str, self.texts))


def told(tokens: Any) -> str:
    """Token ids; of a long list the first and the last, and how many there are."""
    if not isinstance(tokens, list | tuple) or len(tokens) <= 2 * SHOWN:
        return str(list(tokens)) if isinstance(tokens, tuple) else str(tokens)
    first, last = (", ".join(map(str, part)) for part in (tokens[:SHOWN], tokens[-3:]))
    return f"[{first}, ..., {last}] ({len(tokens)} tokens)"


def draw(c: Choices) -> Requests:
    """EOS tokens in the prompt, as the first new token, several, none; long prompts and texts."""
    vocab = LARGE_VOCAB if c.rarely(8) else SMALL_VOCAB

    def token() -> int:
        return c.integer(0, vocab - 1)

    def text() -> Text:
        kind, some = c.pick(LENGTHS), c.integer(0, 300)
        long = {"short": 0, "long": some, "beyond any window": 2100}[kind]
        prompt = (*c.some(token, 1, 6), *(3,) * long)
        talks = c.rarely(6) and long < 2100
        max_tokens = c.integer(30, 150) if talks else c.integer(1, 6)
        eos = c.some(token, 0, 0 if talks else 3)
        if vocab == LARGE_VOCAB:
            max_tokens, prompt = min(max_tokens, 4), prompt[:6]
            eos += from_scratch(prompt, 4, frozenset(), vocab)[2:3] if c.rarely(2) else []
        return Text(prompt, max_tokens, frozenset(eos))

    offset = c.pick(OFFSETS)
    texts = c.some(text, 0, 2)  # drawn at the end, so that one that doesn't matter is struck out
    return Requests(tuple(texts) or (SIMPLEST,), vocab, offset)


def next_tokens(text: Sequence[int], vocab: int) -> list[int]:
    """What follows after each token of a text; all tokens before it count, and their order."""
    state, following = 1, []
    for position, token in enumerate(text):
        state = (state * 1_000_003 + 31 * token + 7 * position + 5) % 2_147_483_647
        following.append((state >> 7) % vocab)
    return following


def from_scratch(
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
        stage, offset = self.stage, self.requests.offset
        self.num_calls += 1
        stage.now(f"call {self.num_calls} of the model")
        if not isinstance(token_ids, Tensor) or token_ids.is_floating_point():
            stage.blame("tensor", "a tensor of token ids, shape [T]", token_ids)
        if token_ids.dim() != 1:
            stage.blame("batch", "shape [T]", f"shape {list(token_ids.shape)}")
        if self.num_calls > self.max_tokens + 1:
            most = many(self.max_tokens, "new token")
            stage.blame("end", most, f"call {self.num_calls} of the model")
        clause = "other token" if len(token_ids) == len(self.text) else "text"
        stage.expect(clause, self.text, token_ids.tolist(), told)
        following = next_tokens(self.text, self.requests.vocab)
        logits = torch.full((len(following), self.requests.vocab), offset)
        rows = torch.arange(len(following))
        logits[rows, torch.tensor(following).roll(1)] += 2.0  # the second best is another row's
        logits[rows, torch.tensor(following)] = offset + 4.0
        self.text.append(following[-1])
        return logits


def play(stage: Stage, loop: Any, requests: Requests) -> None:
    """The texts, one after another. Of the second it is known that the first went well."""
    answers: list[tuple[list[int], Any]] = []
    for text in requests.texts:
        behind = "second: " if answers else ""
        model = Model(stage, text, requests)
        prompt, eos = list(text.prompt), set(text.eos)
        expected = from_scratch(text.prompt, text.max_tokens, text.eos, requests.vocab)
        got = stage.do(loop, model, prompt, text.max_tokens, eos)
        stage.now("what your function returns")
        if isinstance(got, Raised):
            stage.blame(f"{behind}result", expected, got, told)
        if not isinstance(got, list) or not all(isinstance(token, int) for token in got):
            stage.blame("ints", expected, got)
        stage.expect(f"{behind}result", expected, got, told)
        calls = f"{many(model.num_calls, 'call')} of the model for {many(len(got), 'new token')}"
        if model.num_calls != len(expected):
            clause = "fewer calls" if model.num_calls < len(expected) else "calls"
            stage.blame(clause, "one call for each new token", calls)
        answers.append((expected, got))
    for expected, got in answers:
        stage.now("what you returned at first, after the second text")
        stage.expect("own", expected, got, told)
