"""The checks of lab 02. Oracles: real tensors' sizes, the engine's cache, a loop without a cache.

`tests/` holds these against transformers' caches and `generate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_02 import cache_mistakes, cache_sizes, learners_engine, text_mistakes


@exercise("Exercise 1: kv_cache_bytes", points=3)
def kv_cache_bytes(function: Callable[..., int]) -> str | Passed:
    """Check `kv_cache_bytes(config, num_tokens, batch_size, bytes_per_value, layers_per_cache)`."""
    return cache_sizes.KV_CACHE_BYTES.check(function)


@exercise("Exercise 2: latent_cache_bytes", points=1)
def latent_cache_bytes(function: Callable[..., int]) -> str | Passed:
    """Check `latent_cache_bytes(num_layers, kv_lora_rank, qk_rope_head_dim, num_tokens, width)`."""
    return cache_sizes.LATENT_CACHE_BYTES.check(function)


@exercise("Exercise 3: KVCache", points=4)
def kv_cache(cache_class: Callable[..., Any]) -> str | Passed:
    """Check the contract of `ContiguousKVCache` in random stories of appends and truncates."""
    return cache_mistakes.KV_CACHE.check(cache_class)


@exercise("Exercise 4: generate_with_cache", points=3)
def generate_with_cache(function: Callable[..., list[int]]) -> str | Passed:
    """Check `generate_with_cache(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids)`."""
    return text_mistakes.GENERATE_WITH_CACHE.check(function)


@exercise("Exercise 5: max_num_requests", points=2)
def max_num_requests(function: Callable[..., int]) -> str | Passed:
    """Check `max_num_requests(memory, utilization, weights, bytes_per_token, tokens)`."""
    return cache_sizes.MAX_NUM_REQUESTS.check(function)


@exercise("Exercise 6: your cache runs the engine", points=3)
def engine(cache_class: Callable[..., Any]) -> str:
    """Check that the engine speaks as HF does with the learner's cache, and recomputes nothing."""
    return learners_engine.run(cache_class)
