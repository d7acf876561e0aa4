"""The checks of lab 02. Oracles: transformers' caches and `generate`, and real tensors' sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import exercise
from utils.checks.lab_02 import cache_sizes, cached_loop, learners_engine
from utils.checks.lab_02.cache_stories import STORIES


@exercise("Exercise 1: kv_cache_bytes", points=3)
def kv_cache_bytes(function: Callable[..., int]) -> str:
    """Check `kv_cache_bytes(config, num_tokens, batch_size, bytes_per_value, layers_per_cache)`."""
    return cache_sizes.judge_kv_cache_bytes(function)


@exercise("Exercise 2: latent_cache_bytes", points=1)
def latent_cache_bytes(function: Callable[..., int]) -> str:
    """Check `latent_cache_bytes(num_layers, kv_lora_rank, qk_rope_head_dim, num_tokens, width)`."""
    return cache_sizes.judge_latent_cache_bytes(function)


@exercise("Exercise 3: KVCache", points=4)
def kv_cache(cache_class: Callable[..., Any]) -> str:
    """Check the contract of `ContiguousKVCache`, one small story after another."""
    for story in STORIES:
        story(cache_class)
    return (
        "Appends, lengths, truncate, overflow and bytes are right; nothing is copied; "
        "equal to transformers' DynamicCache over chunks of 3, 2, 1 and 5 tokens."
    )


@exercise("Exercise 4: generate_with_cache", points=3)
def generate_with_cache(function: Callable[..., list[int]]) -> str:
    """Check `generate_with_cache(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids)`."""
    return cached_loop.judge_generate_with_cache(function)


@exercise("Exercise 5: max_num_requests", points=2)
def max_num_requests(function: Callable[..., int]) -> str:
    """Check `max_num_requests(memory, utilization, weights, bytes_per_token, tokens)`."""
    return cache_sizes.judge_max_num_requests(function)


@exercise("Exercise 6: your cache runs the engine", points=3)
def engine(cache_class: Callable[..., Any]) -> str:
    """Check that the engine speaks as HF does with the learner's cache, and recomputes nothing."""
    return learners_engine.run(cache_class)
