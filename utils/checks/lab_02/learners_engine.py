"""The engine with a learner's cache in it: the last check of lab 02."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.reference import greedy, hf_greedy, is_hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_02.cache_mistakes import KV_CACHE
from utils.engine.attention.kv_cache import ContiguousKVCache
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul


def run(cache_class: Callable[..., Any]) -> str:
    """Check that the engine speaks as HF does with the learner's cache, and recomputes nothing."""
    if cache_class is ContiguousKVCache:
        raise Mismatch(
            "That is the engine's own cache.", look="Pass the class that you wrote: `KVCache`."
        )
    try:
        KV_CACHE.check(cache_class)
    except Mismatch as wrong:
        wrong.headline = f"Exercise 3 is not right yet. {wrong.headline}"
        raise
    watched: list[_Watched] = []
    rows = 0

    def factory(*args: Any, **kwargs: Any) -> Any:
        watched.append(_Watched(cache_class, *args, **kwargs))
        return watched[-1]

    def counted_silu_and_mul(gate_up: Tensor) -> Tensor:
        nonlocal rows
        rows += gate_up.shape[0]
        return silu_and_mul(gate_up)

    prompts = reference_prompts()
    expected = hf_greedy(prompts)
    ops = LlamaOps(silu_and_mul=counted_silu_and_mul)
    llm = LLM(dtype="float32", ops=ops, kv_cache_class=factory)
    outputs = call(greedy, llm, prompts, given=f"the prompts {prompts[0]!r} and two more")
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        if not is_hf_greedy(prompt, output.outputs[0].token_ids, tokens):
            raise Mismatch(
                "The engine's text differs from Hugging Face's.",
                input=f"the prompt {prompt!r}",
                expected=repr(llm.get_tokenizer().decode(tokens)),
                got=repr(output.outputs[0].text),
                look="Each append gave the engine what its own cache gives. Does something in your "
                "class change keys or values later?",
            )
    layers = llm.model_config.num_hidden_layers
    steps = sum(len(o.outputs[0].token_ids) for o in outputs)
    if sum(cache.num_appends for cache in watched) < layers * steps:
        raise Mismatch("The engine does not use your cache in every step and layer.")
    through = rows // layers
    needed = sum(len(o.prompt_token_ids) + len(o.outputs[0].token_ids) - 1 for o in outputs)
    naive = sum(
        sum(len(o.prompt_token_ids) + i for i in range(len(o.outputs[0].token_ids)))
        for o in outputs
    )
    if through != needed:
        raise Mismatch(
            "The text is right, but tokens are computed more than once.",
            expected=f"{needed} tokens through the model",
            got=f"{through}",
        )
    return (
        f"Token for token what Hugging Face generates. {through} tokens went through the model, "
        f"each once; without a cache it would have been {naive:,}. "
        f"The engine says: {outputs[0].outputs[0].text.strip()!r}"
    )


class _Watched:
    """The learner's cache in the engine, with the engine's own beside it: both are told the same.

    So a difference is shown where it begins, not by the text that comes of it.
    """

    def __init__(self, cache_class: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.yours = call(cache_class, *args, **kwargs)
        self.right = ContiguousKVCache(*args, **kwargs)
        self.num_appends = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> Any:
        self.num_appends += 1
        given = (
            f"the engine's append number {self.num_appends} to one request's cache: layer {layer}, "
            f"{len(key)} new tokens, {self.right.num_tokens} tokens in every layer"
        )
        got = call(self.yours.append, layer, key, value, given=given)
        right = self.right.append(layer, key, value)
        pairs = zip(right, got, strict=True)
        if not all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs):
            raise Mismatch(
                "`append` gives the engine other keys or values than its own cache. "
                + difference(right, got),
                input=given,
                look="What is here that no story of exercise 3 has: sizes, dtype?",
            )
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self.yours, name)
