"""What lab 02 says of the bytes that caches take: exercises 1, 2 and 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from utils.checks.kit.runner import Bug, NumberCase, compare_numbers
from utils.checks.lab_02.cache_stories import small_config
from utils.engine.config.model import ModelConfig

# Exercise 1


def judge_kv_cache_bytes(function: Callable[..., int]) -> str:
    """Check `kv_cache_bytes(config, num_tokens, batch_size, bytes_per_value, layers_per_cache)`."""

    def case(
        given: str, config: ModelConfig, tokens: int, batch: int = 1, width: int = 2, share: int = 1
    ) -> NumberCase:
        given = (
            f"{given}: {config.num_hidden_layers} layers, hidden_size {config.hidden_size}, "
            f"{config.num_attention_heads} query heads, {config.num_key_value_heads} KV heads, "
            f"head_dim {config.head_dim}; {tokens} tokens, batch {batch}, {width} bytes per value, "
            f"{share} layers per cache"
        )
        expected = _allocated_bytes(config, tokens, batch, width, share)
        return NumberCase(given, (config, tokens, batch, width, share), expected)

    mha = small_config(layers=1, heads=2, kv_heads=2, head_dim=4, hidden=8)
    gqa = small_config(layers=3, heads=6, kv_heads=2, head_dim=4, hidden=24)
    odd = small_config(layers=2, heads=4, kv_heads=1, head_dim=16, hidden=40)
    cases = [
        case("MHA, one token", mha, 1),
        case("GQA", gqa, 5),
        case("GQA, batch of 3, float32", gqa, 5, 3, 4),
        case("MQA with a head_dim that is not hidden_size / heads", odd, 7),
        case("every 2 layers share a cache", gqa, 5, 1, 2, 2),
        case("Llama-3-8B's shape", small_config(32, 32, 8, 128, 4096), 8192, 1, 2),
    ]
    # A real cache, filled by transformers, is the oracle's own oracle.
    for config, tokens, batch in ((mha, 1, 1), (gqa, 5, 3)):
        assert _filled_bytes(config, tokens, batch) == _allocated_bytes(config, tokens, batch, 4, 1)

    def wrong(
        *, pair: int = 2, heads: str = "kv", layers: str = "shared", batch: bool = True,
        width: str = "bytes", tokens: bool = True,
    ) -> Callable[..., int]:  # fmt: skip
        def count(c: ModelConfig, t: int, b: int, w: int, s: int) -> int:
            per_token = {
                "kv": c.num_key_value_heads * c.head_dim,
                "query": c.num_attention_heads * c.head_dim,
                "hidden": c.hidden_size,
                "divided": c.num_key_value_heads * c.hidden_size // c.num_attention_heads,
            }[heads]
            n = c.num_hidden_layers
            n = {"shared": math.ceil(n / s), "all": n, "one": 1, "floor": n // s, "times": n * s}[
                layers
            ]
            size = {"bytes": w, "bits": 8 * w, "none": 1}[width]
            return pair * n * per_token * (t if tokens else 1) * (b if batch else 1) * size

        return count

    bugs = [
        Bug("The factor 2 is missing: each token leaves a key *and* a value.",
            "`2 * layers * kv_heads * head_dim * tokens * batch * bytes`.", wrong(pair=1)),
        Bug("You count the query heads. The cache holds keys and values only, so it has "
            "`num_key_value_heads` heads.",
            "Queries are used once and thrown away.", wrong(heads="query")),
        Bug("You count hidden_size numbers per token (the d_model form). That is right only for "
            "MHA with head_dim = hidden_size / heads.",
            "`num_key_value_heads * head_dim`.", wrong(heads="hidden")),
        Bug("You compute head_dim as hidden_size / num_attention_heads. Some models choose it "
            "freely.",
            "Use `config.head_dim`.", wrong(heads="divided")),
        Bug("The layers are missing: each layer has its own keys and values.",
            "Multiply by the number of layers.", wrong(layers="one")),
        Bug("`layers_per_cache` is ignored: with cross-layer sharing, several layers use "
            "one cache.",
            "`ceil(num_hidden_layers / layers_per_cache)` caches.", wrong(layers="all")),
        Bug("The number of caches is rounded down: 3 layers in groups of 2 need 2 caches, not 1.",
            "Round up: `math.ceil(layers / layers_per_cache)`.", wrong(layers="floor")),
        Bug("Sharing makes your cache larger: you multiply by layers_per_cache.",
            "Divide, and round up.", wrong(layers="times")),
        Bug("The batch is missing: each sequence has its own cache.",
            "Multiply by `batch_size`.", wrong(batch=False)),
        Bug("You count bits, not bytes.", "`bytes_per_value` is in bytes already.",
            wrong(width="bits")),
        Bug("You count values, not bytes.", "Multiply by `bytes_per_value`.", wrong(width="none")),
        Bug("The number of tokens is missing.", "Multiply by `num_tokens`.", wrong(tokens=False)),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    llama = cases[-1].args[0]
    return (
        "Equal to the memory of real tensors: MHA, GQA, MQA, and layers that share a cache. By "
        f"your count, Llama-3-8B in bfloat16 keeps {int(function(llama, 1)):,} bytes per token, "
        f"{function(llama, 8192) / 2**30:g} GiB for 8,192 tokens."
    )


def _allocated_bytes(config: ModelConfig, tokens: int, batch: int, width: int, share: int) -> int:
    """Allocate the caches (without memory) layer by layer, and add up what they take."""
    dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}[width]
    shape = (2, batch, tokens, config.num_key_value_heads, config.head_dim)
    caches = {
        layer // share: torch.empty(shape, dtype=dtype, device="meta")
        for layer in range(config.num_hidden_layers)
    }
    return sum(cache.nbytes for cache in caches.values())


def _filled_bytes(config: ModelConfig, tokens: int, batch: int) -> int:
    """Run transformers' Llama in float32, and add up the tensors in its cache."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=config.hidden_size,
            intermediate_size=8,
            num_hidden_layers=config.num_hidden_layers,
            head_dim=config.head_dim,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
        )
    )
    with torch.no_grad():
        out = model(torch.zeros(batch, tokens, dtype=torch.long), use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)


# Exercise 2


def judge_latent_cache_bytes(function: Callable[..., int]) -> str:
    """Check `latent_cache_bytes(num_layers, kv_lora_rank, qk_rope_head_dim, num_tokens, width)`."""

    def case(given: str, *args: int) -> NumberCase:
        layers, rank, rope, tokens, width = args
        dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}[width]
        latent = torch.empty(layers, tokens, rank, dtype=dtype, device="meta")
        rotated = torch.empty(layers, tokens, rope, dtype=dtype, device="meta")
        given = (
            f"{given}: {layers} layers, kv_lora_rank {rank}, qk_rope_head_dim {rope}, "
            f"{tokens} tokens, {width} bytes per value"
        )
        return NumberCase(given, args, latent.nbytes + rotated.nbytes)

    cases = [
        case("one token", 1, 4, 2, 1, 1),
        case("two layers, bfloat16", 2, 8, 4, 3, 2),
        case("DeepSeek-V3's shape", 61, 512, 64, 4096, 2),
    ]
    bugs = [
        Bug("You count twice, as for a key and a value. MLA stores *one* latent, and rebuilds both "
            "from it.",
            "No factor 2.",
            lambda n, r, p, t, w: 2 * n * (r + p) * t * w),
        Bug("Only the latent is counted. The part of the key that carries RoPE is stored beside "
            "it, once for all heads.",
            "`kv_lora_rank + qk_rope_head_dim` values per token and layer.",
            lambda n, r, p, t, w: n * r * t * w),
        Bug("The latent is counted twice. One latent serves keys and values.",
            "`kv_lora_rank + qk_rope_head_dim`.",
            lambda n, r, p, t, w: n * (2 * r + p) * t * w),
        Bug("The rotated part is counted twice. Only keys carry a position.",
            "`kv_lora_rank + qk_rope_head_dim`.",
            lambda n, r, p, t, w: n * (r + 2 * p) * t * w),
        Bug("Latent and rotated part are multiplied. They lie side by side.",
            "Add them.",
            lambda n, r, p, t, w: n * r * p * t * w),
        Bug("The layers are missing.", "Multiply by `num_layers`.",
            lambda n, r, p, t, w: (r + p) * t * w),
        Bug("You count values, not bytes.", "Multiply by `bytes_per_value`.",
            lambda n, r, p, t, w: n * (r + p) * t),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    deepseek = function(61, 512, 64, 1, 2)
    # What 128 heads of keys (128 + 64 numbers) and values (128 numbers) would take instead.
    full = 61 * 128 * (192 + 128) * 2
    return (
        "Equal to the memory of real tensors. By your count, DeepSeek-V3 keeps "
        f"{int(deepseek):,} bytes per token; with full keys and values for its 128 heads it would "
        f"be {full / deepseek:.0f} times as many."
    )


# Exercise 5


def judge_max_num_requests(function: Callable[..., int]) -> str:
    """Check `max_num_requests(memory, utilization, weights, bytes_per_token, tokens)`."""

    def case(given: str, *args: Any) -> NumberCase:
        memory, utilization, weights, per_token, tokens = args
        # Counted one by one, without a division.
        count, used = 0, weights + per_token * tokens
        while used <= memory * utilization:
            count, used = count + 1, used + per_token * tokens
        given = (
            f"{given}: {memory} bytes of memory, utilization {utilization}, weights {weights} "
            f"bytes, {per_token} bytes per token, {tokens} tokens per request"
        )
        return NumberCase(given, args, count)

    gib = 1024**3
    cases = [
        case("exact fit", 100, 1.0, 40, 3, 10),
        case("a rest that is too small", 100, 1.0, 45, 3, 10),
        case("half of the memory may be used", 200, 0.5, 40, 3, 10),
        case("the weights alone are too large", 30, 1.0, 40, 3, 10),
        case("Llama-3-8B in bfloat16 on 24 GiB", 24 * gib, 0.9, 16 * gib, 131072, 4096),
    ]

    def room(m: int, u: float, w: int) -> float:
        return m * u - w

    bugs = [
        Bug("A request that fits only in part is counted.",
            "Round down.",
            lambda m, u, w, b, t: max(0, math.ceil(room(m, u, w) / (b * t)))),
        Bug("The result is not a whole number. There is no part of a request.",
            "Round down with `//` or `int(...)`.",
            lambda m, u, w, b, t: max(0, room(m, u, w) / (b * t))),
        Bug("The weights are forgotten: they lie in the same memory.",
            "Subtract `weight_bytes` first.",
            lambda m, u, w, b, t: int(m * u // (b * t))),
        Bug("A negative number of requests. If the weights do not fit, the answer is 0.",
            "`max(0, ...)`.",
            lambda m, u, w, b, t: int(room(m, u, w) // (b * t))),
        Bug("`gpu_memory_utilization` is ignored.",
            "Only `memory_bytes * gpu_memory_utilization` may be used, weights included.",
            lambda m, u, w, b, t: max(0, int((m - w) // (b * t)))),
        Bug("The utilization is applied after the weights were subtracted. In vLLM it limits "
            "everything, weights included.",
            "`memory_bytes * gpu_memory_utilization - weight_bytes`.",
            lambda m, u, w, b, t: max(0, int((m - w) * u // (b * t)))),
        Bug("You count tokens, not requests.",
            "Divide by `tokens_per_request`, too.",
            lambda m, u, w, b, t: max(0, int(room(m, u, w) // b))),
        Bug("The length of a request is multiplied, not divided.",
            "One request takes `kv_bytes_per_token * tokens_per_request` bytes.",
            lambda m, u, w, b, t: max(0, int(room(m, u, w) // b * t))),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    return "Equal to counting requests one by one until the memory is full."
