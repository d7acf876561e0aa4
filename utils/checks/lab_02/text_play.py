"""The loop that feeds each token once, with a pretended model that watches: exercise 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Raised, Stage

VOCAB_SIZE = 8


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]
    left: int  # tokens of the request before, still in the cache

    def __str__(self) -> str:
        left = f"; tokens of the request before, still in the cache: {self.left}"
        eos = sorted(self.eos) or "none"
        text = f"prompt {list(self.prompt)}, max_tokens {self.max_tokens}, EOS {eos}"
        return text + (left if self.left else "")


def draw_request(c: Choices) -> Request:
    def token() -> int:
        return c.integer(0, VOCAB_SIZE - 1)

    prompt = (*c.some(token, 1, 6), *(3,) * (c.integer(1, 80) if c.rarely(8) else 0))
    max_tokens = c.integer(30, 90) if c.rarely(8) else c.integer(1, 6)
    return Request(prompt, max_tokens, frozenset(c.some(token, 0, 3)), c.integer(0, 6))


def after(state: int, token: int, position: int) -> int:
    """What the pretended model remembers of a text: each token and its position counts."""
    return (state * 1_000_003 + 31 * token + 7 * position + 5) % 2_147_483_647


def next_token(state: int) -> int:
    return (state >> 7) % VOCAB_SIZE


def generate(prompt: list[int], max_tokens: int, eos: frozenset[int]) -> list[int]:
    """The whole text goes through the model for each token, without a cache."""
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        state = 1
        for position, token in enumerate(text):
            state = after(state, token, position)
        text.append(next_token(state))
        if text[-1] in eos:
            break
    return text[len(prompt) :]


class Cache:
    """Holds what the model remembers after each token, instead of keys and values."""

    def __init__(self, left: int) -> None:
        self.states = list(range(1000, 1000 + left))

    @property
    def num_tokens(self) -> int:
        return len(self.states)

    def truncate(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self.states):
            raise ValueError(f"cannot keep {num_tokens} of {len(self.states)} tokens")
        del self.states[num_tokens:]


class Model:
    """Says the next token, and tells the stage if it is not fed as agreed."""

    def __init__(self, stage: Stage, request: Request) -> None:
        self.stage = stage
        self.text = list(request.prompt)  # as far as it is known
        self.num_fed = self.num_calls = 0

    def __call__(self, token_ids: Tensor, positions: Tensor, kv_cache: Cache) -> Tensor:
        stage, start = self.stage, kv_cache.num_tokens
        self.num_calls += 1
        stage.now(f"call {self.num_calls} of the model, tokens in the cache: {start}")
        for name, tensor in (("token_ids", token_ids), ("positions", positions)):
            right = isinstance(tensor, Tensor) and tensor.dim() == 1 and tensor.numel() > 0
            if not right or tensor.is_floating_point():
                stage.blame("tensors", f"{name}: whole numbers, shape [T]", tensor)
        if not self.num_fed:
            stage.expect("reset", 0, start)
        if start < self.num_fed:
            stage.expect("again", f"{self.num_fed} tokens in the cache", f"{start}")
        tokens, places = token_ids.tolist(), positions.tolist()
        stage.expect("tokens", self.text[start : start + len(tokens)], tokens)
        stage.expect("positions", list(range(start, start + len(tokens))), places)
        self.num_fed = start + len(tokens)
        rows = torch.rand(len(tokens), VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) - 9
        for row, token, position in zip(rows, tokens, places, strict=True):
            state = after((kv_cache.states or [1])[-1], token, position)
            kv_cache.states.append(state)
            row[next_token(state)] += 3
        if self.num_fed == len(self.text):
            self.text.append(int(rows[-1].argmax()))
        return rows


def right_loop(
    model: Any, cache: Any, prompt: list[int], max_tokens: int, eos: set[int]
) -> list[int]:
    cache.truncate(0)
    new: list[int] = []
    fed = list(prompt)
    while len(new) < max_tokens and not (new and new[-1] in eos):
        places = torch.arange(cache.num_tokens, cache.num_tokens + len(fed))
        fed = [int(model(torch.tensor(fed), places, cache)[-1].argmax())]
        new += fed
    return new


def play(stage: Stage, loop: Any, request: Request) -> None:
    model, cache = Model(stage, request), Cache(request.left)
    prompt, eos = list(request.prompt), set(request.eos)
    expected = generate(prompt, request.max_tokens, request.eos)
    got = stage.do(loop, model, cache, prompt, request.max_tokens, eos)
    if isinstance(got, Raised):
        stage.blame("result", expected, got)
    stage.now("what your function returns")
    if not isinstance(got, list) or not all(isinstance(token, int) for token in got):
        stage.blame("ints", expected, got)
    stage.expect("result", expected, got)
    needed = len(prompt) + len(expected) - 1
    stage.expect("once more", f"{needed} tokens through the model", _through(model.num_fed, needed))


def _through(num_fed: int, needed: int) -> str:
    return f"{max(num_fed, needed)} tokens through the model"
