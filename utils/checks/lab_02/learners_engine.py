"""The engine with a learner's cache in it: the last check of lab 02."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_02.cache_stories import fill
from utils.engine.attention.kv_cache import ContiguousKVCache
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul


def run(cache_class: Callable[..., Any]) -> str:
    """Check that the engine speaks as HF does with the learner's cache, and recomputes nothing."""
    if cache_class is ContiguousKVCache:
        raise Mismatch(
            "That is the engine's own cache.", look="Pass the class that you wrote: `KVCache`."
        )
    fill(cache_class, "a")  # a class that is not written yet answers before the model is loaded
    appends = rows = 0

    def factory(*args: Any, **kwargs: Any) -> Any:
        cache = cache_class(*args, **kwargs)
        append = cache.append

        def counted_append(layer: int, key: Tensor, value: Tensor) -> Any:
            nonlocal appends
            appends += 1
            return append(layer, key, value)

        cache.append = counted_append
        return cache

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
        if list(output.outputs[0].token_ids) != tokens:
            raise Mismatch(
                "The engine's text differs from Hugging Face's.",
                input=f"the prompt {prompt!r}",
                expected=repr(llm.get_tokenizer().decode(tokens)),
                got=repr(output.outputs[0].text),
                look="Run the check of exercise 3 again. The engine makes one cache per request, "
                "and appends the new tokens of each layer in turn.",
            )  # fmt: skip
    layers = llm.model_config.num_hidden_layers
    if appends < layers * sum(len(o.outputs[0].token_ids) for o in outputs):
        raise Mismatch("The engine does not use your cache in every step and layer.")
    through = rows // layers
    needed = sum(
        len(o.prompt_token_ids) + len(o.outputs[0].token_ids) - 1 for o in outputs
    )  # fmt: skip
    naive = sum(
        sum(len(o.prompt_token_ids) + i for i in range(len(o.outputs[0].token_ids)))
        for o in outputs
    )
    if through != needed:
        raise Mismatch(
            "The text is right, but tokens are computed more than once.",
            expected=f"{needed} tokens through the model", got=f"{through}",
        )  # fmt: skip
    return (
        f"Token for token what Hugging Face generates. {through} tokens went through the model, "
        f"each once; without a cache it would have been {naive:,}. "
        f"The engine says: {outputs[0].outputs[0].text.strip()!r}"
    )
