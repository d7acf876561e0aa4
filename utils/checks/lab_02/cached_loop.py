"""What lab 02 says of the loop that feeds each token once: exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from utils.checks.kit.runner import Mismatch, call, describe
from utils.checks.kit.tiny_model import TinyModel


def judge_generate_with_cache(function: Callable[..., list[int]]) -> str:
    """Check `generate_with_cache(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids)`."""
    tiny = TinyModel()
    free = tiny.greedy([3, 1, 4, 1, 5], 8)
    stop = next(t for i, t in enumerate(free[1:6], 1) if t not in free[:i])
    cases: list[tuple[list[int], int, set[int]]] = [
        ([7], 1, set()),
        ([7], 3, set()),
        ([3, 1, 4, 1, 5], 8, set()),
        ([3, 1, 4, 1, 5], 8, {stop}),
        ([stop, 3, 1], 4, {stop}),
    ]
    cache = _SimpleCache()
    fed = 0
    for index, (prompt, max_tokens, eos) in enumerate(cases):
        given = f"prompt {prompt}, max_tokens {max_tokens}, EOS {sorted(eos) or 'none'}"
        if index:
            given += f"; tokens of the request before, still in the cache: {cache.num_tokens}"
        expected = tiny.greedy(prompt, max_tokens, eos)
        model = _CachedModel(tiny, given, prompt, max_tokens)
        got = call(function, model, cache, list(prompt), max_tokens, eos, given=given)
        _judge_cached(given, prompt, eos, expected, got, model)
        fed += len(model.fed)
    return (
        f"Equal to Hugging Face `generate` on {len(cases)} prompts with one cache, and only "
        f"{fed} tokens went through the model: each exactly once."
    )


class _SimpleCache:
    """The cache that exercise 4 hands to the learner: lists, no bounds."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_tokens(self) -> int:
        return min((keys.shape[0] for keys, _ in self.layers.values()), default=0)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            key = torch.cat((self.layers[layer][0], key))
            value = torch.cat((self.layers[layer][1], value))
        self.layers[layer] = (key, value)
        return key, value

    def truncate(self, num_tokens: int) -> None:
        self.layers = {n: (k[:num_tokens], v[:num_tokens]) for n, (k, v) in self.layers.items()}


class _Bridge(DynamicCache):
    """Lets transformers' Llama read and write a cache of the course's interface."""

    def __init__(self, kv_cache: Any) -> None:
        super().__init__()
        self.kv_cache = kv_cache

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        pair = self.kv_cache.append(
            layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        )
        keys, values = (t.transpose(0, 1)[None] for t in pair)
        return keys, values


class _CachedModel:
    """The `model` that the learner's loop calls: it watches tokens, positions and the cache."""

    def __init__(self, tiny: TinyModel, given: str, prompt: list[int], max_tokens: int) -> None:
        self.fed: list[int] = []
        self.calls: list[list[int]] = []
        self._tiny, self._given, self._prompt, self._max = tiny, given, prompt, max_tokens
        self._newest = -1

    @torch.no_grad()
    def __call__(self, token_ids: Tensor, positions: Tensor, kv_cache: Any) -> Tensor:
        self._look_at(token_ids, positions, kv_cache)
        self.calls.append(token_ids.tolist())
        self.fed += token_ids.tolist()
        start, count = kv_cache.num_tokens, len(token_ids)
        visible = torch.ones(count, start + count).tril(diagonal=start).bool()
        out = self._tiny.hf(
            token_ids[None], position_ids=positions[None], attention_mask=visible[None, None],
            past_key_values=_Bridge(kv_cache), use_cache=True,
        )  # fmt: skip
        self._newest = int(out.logits[0, -1].argmax())
        return out.logits[0]

    def _look_at(self, token_ids: Any, positions: Any, kv_cache: Any) -> None:
        for name, tensor in (("token_ids", token_ids), ("positions", positions)):
            if not isinstance(tensor, Tensor) or tensor.dim() != 1:
                raise Mismatch(
                    f"`{name}` must be a tensor of shape [T]; the model was given "
                    f"{describe(tensor)}.",
                    input=self._given, look="`torch.tensor([token])`, `torch.arange(start, end)`.",
                )  # fmt: skip
        step = f"{self._given}; call {len(self.calls) + 1} of the model"
        if len(self.calls) > len(self._prompt) + self._max + 2:
            raise Mismatch(
                "Your loop does not stop.", input=self._given,
                look="Leave after max_tokens new tokens or after an EOS token.",
            )  # fmt: skip
        start = kv_cache.num_tokens
        if not self.calls and start:
            raise Mismatch(
                "The cache was not reset: the new request would attend to the one before. Tokens "
                f"still in it: {start}.",
                input=step, look="`kv_cache.truncate(0)` before the prompt goes in.",
            )  # fmt: skip
        if self.calls and start > len(self.fed):
            raise Mismatch("The cache holds more tokens than the model was given.", input=step)
        known = self._prompt[:]
        if self.calls and len(token_ids) >= len(known) and start and (
            token_ids.tolist()[: len(known)] == known and len(token_ids) > 1
        ):  # fmt: skip
            raise Mismatch(
                f"The whole sequence went through the model again: {len(token_ids)} tokens in "
                f"call {len(self.calls) + 1}, although the cache already holds {start} of them.",
                input=step, expected="only the new token", got=f"`{token_ids.tolist()}`",
                look="After the prompt, feed `torch.tensor([token])`: one token per step.",
            )  # fmt: skip
        sequence = [*known, self._newest]
        wanted = sequence[start : start + len(token_ids)]
        emptied = bool(self.calls) and start == 0  # judged at the end, by what it costs
        if not emptied and start <= len(known) and token_ids.tolist() != wanted:
            raise Mismatch(
                "The last token of the prompt goes in twice: it is in the cache already."
                if token_ids.tolist() == known[-1:]
                else "These are not the tokens that come next.",
                input=f"{step}; tokens in the cache: {start}", expected=f"`{wanted}`",
                got=f"`{token_ids.tolist()}`",
                look="First the prompt; its last row of logits gives the first new token; then "
                "each new token once.",
            )  # fmt: skip
        right = list(range(start, start + len(token_ids)))
        if positions.tolist() != right:
            says = "The positions are wrong."
            if positions.numel() != token_ids.numel():
                says = f"{positions.numel()} positions for {token_ids.numel()} tokens."
            elif start and positions[0] == 0:
                says = (
                    "Positions restart at zero. A new token stands *behind* those in the cache, "
                    "and RoPE needs to know."
                )
            elif abs(int(positions[0]) - start) == 1:
                says = "Positions are off by one."
            raise Mismatch(
                says, input=f"{step}; tokens in the cache: {start}", expected=f"`{right}`",
                got=f"`{positions.tolist()}`",
                look="The first new token stands at position `kv_cache.num_tokens`.",
            )  # fmt: skip


def _judge_cached(
    given: str, prompt: list[int], eos: set[int], expected: list[int], got: Any,
    model: _CachedModel,
) -> None:  # fmt: skip
    def wrong(says: str, look: str) -> Mismatch:
        return Mismatch(
            says, input=given, expected=f"`{expected}`", got=describe(got), look=look
        )  # fmt: skip

    once = prompt + expected[:-1]
    if not isinstance(got, list) or not all(isinstance(t, int) for t in got):
        raise wrong("Expected a list of plain ints.", "`int(logits[-1].argmax())`.")
    if got == expected and len(model.fed) > len(once):
        if model.fed[: len(once)] == once:
            raise wrong(
                "The tokens are right, but the model ran once more after the last one.",
                "Stop before you feed a token whose successor nobody asked for.",
            )
        raise wrong(
            f"The tokens are right, but {len(model.fed)} tokens went through the model; "
            f"{len(once)} would do. The cache saves nothing: earlier tokens are recomputed.",
            "Feed the prompt once, then only the newest token. Empty the cache only at the start.",
        )
    if got == expected:
        return
    if got == prompt + expected:
        raise wrong("Your list begins with the prompt. Return the new tokens only.", "")
    if expected[-1] in eos and got[: len(expected)] == expected:
        raise wrong(
            "Generation goes on after the EOS token.", "Leave the loop if `token in eos_token_ids`."
        )
    if expected[-1] in eos and got == expected[:-1]:
        raise wrong(
            "The EOS token is missing at the end.", "Append the token, then ask whether it is EOS."
        )
    if got[: len(expected)] == expected:
        raise wrong("Too many tokens: max_tokens is off by one.", "`len(new) < max_tokens`.")
    if got == expected[: len(got)]:
        raise wrong(
            f"Too few tokens: {len(got)} instead of {len(expected)}.",
            "The prompt's own pass already yields the first token. A prompt may contain EOS.",
        )
    raise wrong(
        "The tokens differ from Hugging Face `generate`.",
        f"The model was fed {model.calls[:6]}: first the prompt, then one new token per call? "
        "The next token is the argmax of the last row.",
    )
