"""The bytes that caches take: exercises 1, 2 and 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.engine.config.model import ModelConfig

DTYPES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
WIDTHS = (2, 1, 4)


def model_config(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    """A model shape for checks; only the fields that decide the size of the cache matter."""
    return ModelConfig(
        vocab_size=32,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
    )


def draw_config(c: Choices, max_layers: int = 100, max_heads: int = 16) -> ModelConfig:
    """MHA, GQA and MQA; a head_dim that is hidden_size / heads, or is not."""
    layers, kv_heads, group = c.size(1, max_layers), c.size(1, max_heads), c.integer(1, 5)
    head_dim = 2 * c.size(1, 64)
    hidden = 2 * c.integer(1, 4096) if c.rarely(2) else kv_heads * group * head_dim
    return model_config(layers, kv_heads * group, kv_heads, head_dim, hidden)


# Exercise 1


def draw_shape(c: Choices) -> Given:
    config, tokens = draw_config(c), c.size(1, 200_000)
    if c.rarely(4):
        return Given(config, tokens)
    most = config.num_hidden_layers + 1 if c.rarely(2) else 6
    return Given(config, tokens, c.size(1, 300, 3), c.pick(WIDTHS), c.integer(1, most))


def allocated_bytes(
    config: ModelConfig,
    num_tokens: int,
    batch_size: int = 1,
    bytes_per_value: int = 2,
    layers_per_cache: int = 1,
) -> int:
    """Allocate the caches (without memory) layer by layer, and add up what they take."""
    shape = (2, batch_size, num_tokens, config.num_key_value_heads, config.head_dim)
    caches = {
        layer // layers_per_cache: torch.empty(shape, dtype=DTYPES[bytes_per_value], device="meta")
        for layer in range(config.num_hidden_layers)
    }
    return sum(cache.nbytes for cache in caches.values())


def _tell_shape(given: Given) -> str:
    c, tokens, *rest = given.args
    batch, width, share = rest or (1, 2, 1)
    return (
        f"{c.num_hidden_layers} layers, hidden_size {c.hidden_size}, {c.num_attention_heads} query "
        f"heads, {c.num_key_value_heads} KV heads, head_dim {c.head_dim}; {tokens} tokens, batch "
        f"{batch}, {width} bytes per value, {share} layers per cache"
        + ("" if rest else " (the last three by default)")
    )


def _size(
    pair: int = 2, heads: str = "kv", layers: str = "up", batch: bool = True, width: bool = True
) -> Callable[..., Any]:
    """`kv_cache_bytes` with a mistake in it."""

    def count(c: Any, tokens: int, batch_size: int = 1, w: int = 2, share: int = 1) -> Any:
        per_token = {
            "kv": c.num_key_value_heads * c.head_dim,
            "query": c.num_attention_heads * c.head_dim,
            "hidden": c.hidden_size,
            "divided": c.num_key_value_heads * (c.hidden_size // c.num_attention_heads),
        }[heads]
        n = c.num_hidden_layers
        caches = {
            "up": math.ceil(n / share),
            "all": n,
            "one": 1,
            "down": n // share,
            "round": round(n / share),
            "not at all": n / share,
        }[layers]
        sequences = tokens * (batch_size if batch else 1)
        return pair * caches * per_token * sequences * (w if width else 1)

    return count


def _passed_shape(answer: Any) -> str:
    llama = model_config(32, 32, 8, 128, 4096)
    return (
        "Equal to the memory of real tensors: MHA, GQA, MQA, and layers that share a cache. By "
        f"your count, Llama-3-8B in bfloat16 keeps {int(answer(llama, 1)):,} bytes per token, "
        f"{answer(llama, 8192) / 2**30:g} GiB for 8,192 tokens."
    )


KV_CACHE_BYTES = Contract(
    inputs=draw_shape,
    judge=Returns(allocated_bytes),
    tell=_tell_shape,
    passed=_passed_shape,
    clauses={
        "returns": Clause(
            "{says}",
            "2 * caches * KV heads * head_dim * tokens * batch * bytes per "
            "value, and nothing else. Which of these is in it twice, or not at all?",
        )
    },
    mistakes=(
        mistake(
            "The factor 2 is missing: each token leaves a key *and* a value.",
            "`2 * layers * kv_heads * head_dim * tokens * batch * bytes`.",
            _size(pair=1),
        ),
        mistake(
            "You count the query heads. The cache holds keys and values only, so it has "
            "`num_key_value_heads` heads.",
            "Queries are used once and thrown away.",
            _size(heads="query"),
        ),
        mistake(
            "You count hidden_size numbers per token (the d_model form). That is right only "
            "for MHA with head_dim = hidden_size / heads.",
            "`num_key_value_heads * head_dim`.",
            _size(heads="hidden"),
        ),
        mistake(
            "You compute head_dim as hidden_size / num_attention_heads. Some models choose it "
            "freely.",
            "Use `config.head_dim`.",
            _size(heads="divided"),
        ),
        mistake(
            "The layers are missing: each layer has its own keys and values.",
            "Multiply by the number of layers.",
            _size(layers="one"),
        ),
        mistake(
            "`layers_per_cache` is ignored: with cross-layer sharing, several layers use one "
            "cache.",
            "`ceil(num_hidden_layers / layers_per_cache)` caches.",
            _size(layers="all"),
        ),
        mistake(
            "The number of caches is rounded down: 3 layers in groups of 2 need 2 caches, not 1.",
            "Round up: `math.ceil(layers / layers_per_cache)`.",
            _size(layers="down"),
        ),
        mistake(
            "A rest of layers, however small, needs a whole cache of its own.",
            "Round up: `math.ceil(layers / layers_per_cache)`.",
            _size(layers="round"),
            _size(layers="not at all"),
        ),
        mistake(
            "The batch is missing: each sequence has its own cache.",
            "Multiply by `batch_size`.",
            _size(batch=False),
        ),
        mistake(
            "You count values, not bytes.", "Multiply by `bytes_per_value`.", _size(width=False)
        ),
    ),
)


# Exercise 2


def draw_latent(c: Choices) -> Given:
    sizes = c.size(1, 80), c.size(1, 2048), c.size(1, 256), c.size(1, 200_000)
    return Given(*sizes, c.pick(WIDTHS))


def allocated_latents(
    num_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, num_tokens: int, bytes_per_value: int
) -> int:
    dtype = DTYPES[bytes_per_value]
    latent = torch.empty(num_layers, num_tokens, kv_lora_rank, dtype=dtype, device="meta")
    rotated = torch.empty(num_layers, num_tokens, qk_rope_head_dim, dtype=dtype, device="meta")
    return latent.nbytes + rotated.nbytes


def _passed_latent(answer: Any) -> str:
    deepseek = answer(61, 512, 64, 1, 2)
    # What 128 heads of keys (128 + 64 numbers) and values (128 numbers) would take instead.
    full = 61 * 128 * (192 + 128) * 2
    return (
        f"Equal to the memory of real tensors. By your count, DeepSeek-V3 keeps {int(deepseek):,} "
        "bytes per token; with full keys and values for its 128 heads it would be "
        f"{full / deepseek:.0f} times as many."
    )


SIDE_BY_SIDE = "`kv_lora_rank + qk_rope_head_dim` numbers per token and layer."
LATENT_CACHE_BYTES = Contract(
    inputs=draw_latent,
    judge=Returns(allocated_latents),
    passed=_passed_latent,
    clauses={
        "returns": Clause(
            "{says}",
            "Each token leaves, in each layer, `kv_lora_rank + "
            "qk_rope_head_dim` numbers of `bytes_per_value` bytes.",
        )
    },
    mistakes=(
        mistake(
            "You count twice, as for a key and a value. MLA stores *one* latent, and rebuilds "
            "both from it.",
            "No factor 2.",
            lambda n, r, p, t, w: 2 * n * (r + p) * t * w,
        ),
        mistake(
            "Only the latent is counted. The part of the key that carries RoPE is stored "
            "beside it, once for all heads.",
            SIDE_BY_SIDE,
            lambda n, r, p, t, w: n * r * t * w,
        ),
        mistake(
            "The latent is counted twice. One latent serves keys and values.",
            SIDE_BY_SIDE,
            lambda n, r, p, t, w: n * (2 * r + p) * t * w,
        ),
        mistake(
            "The rotated part is counted twice. Only keys carry a position.",
            SIDE_BY_SIDE,
            lambda n, r, p, t, w: n * (r + 2 * p) * t * w,
        ),
        mistake(
            "Latent and rotated part are multiplied. They lie side by side.",
            "Add them.",
            lambda n, r, p, t, w: n * r * p * t * w,
        ),
        mistake(
            "The layers are missing.",
            "Multiply by `num_layers`.",
            lambda n, r, p, t, w: (r + p) * t * w,
        ),
        mistake(
            "You count values, not bytes.",
            "Multiply by `bytes_per_value`.",
            lambda n, r, p, t, w: n * (r + p) * t,
        ),
    ),
)


# Exercise 5


def draw_machine(c: Choices) -> Given:
    """Made from the answer backwards, so that exact fits are frequent."""
    per_token, tokens = c.size(1, 2**18), c.size(1, 2**17)
    request, weights = per_token * tokens, c.size(1, 2**36)
    rest = c.integer(0, request - 1) if c.rarely(2) else 0
    used = weights + c.size(0, 3000, 4) * request + rest
    if c.rarely(4):
        used = c.integer(0, weights)  # the weights alone are too large
    kind = c.pick(("all", "half", "a quarter", "decimal"))
    if kind != "decimal":
        part = {"all": 1, "half": 2, "a quarter": 4}[kind]
        return Given(used * part, 1.0 / part, weights, per_token, tokens)
    utilization = c.pick((0.9, 0.85, 0.3))
    memory = int(used / utilization)
    room = (memory * utilization - weights) / request
    if abs(room - round(room)) < 1e-6:  # no float is 0.9: stay off the border
        memory += 1 + request // 2
    return Given(memory, utilization, weights, per_token, tokens)


def requests_that_fit(
    memory_bytes: int,
    gpu_memory_utilization: float,
    weight_bytes: int,
    kv_bytes_per_token: int,
    tokens_per_request: int,
) -> int:
    """In exact fractions."""
    room = Fraction(gpu_memory_utilization) * memory_bytes - weight_bytes
    return max(0, int(room // (kv_bytes_per_token * tokens_per_request)))


MAX_NUM_REQUESTS = Contract(
    inputs=draw_machine,
    judge=Returns(requests_that_fit, rtol=0.0),
    passed="Equal to exact arithmetic: exact fits, rests, and weights that are too large.",
    clauses={
        "returns": Clause(
            "So many requests do not fit, or more would. {says}",
            "Room: `memory_bytes * gpu_memory_utilization - weight_bytes`. One "
            "request: `kv_bytes_per_token * tokens_per_request`.",
        )
    },
    mistakes=(
        mistake(
            "A request that fits only in part is counted.",
            "Round down.",
            lambda m, u, w, b, t: max(0, math.ceil((m * u - w) / (b * t))),
            lambda m, u, w, b, t: max(0, round((m * u - w) / (b * t))),
        ),
        mistake(
            "The result is not a whole number. There is no part of a request.",
            "Round down with `//` or `int(...)`.",
            lambda m, u, w, b, t: max(0, (m * u - w) / (b * t)),
        ),
        mistake(
            "The weights are forgotten: they lie in the same memory.",
            "Subtract `weight_bytes` first.",
            lambda m, u, w, b, t: int(m * u // (b * t)),
        ),
        mistake(
            "A negative number of requests. If the weights do not fit, the answer is 0.",
            "`max(0, ...)`.",
            lambda m, u, w, b, t: int((m * u - w) // (b * t)),
        ),
        mistake(
            "`gpu_memory_utilization` is ignored.",
            "Only `memory_bytes * gpu_memory_utilization` may be used, weights included.",
            lambda m, u, w, b, t: max(0, int((m - w) // (b * t))),
        ),
        mistake(
            "The utilization is applied after the weights were subtracted. In vLLM it limits "
            "everything, weights included.",
            "`memory_bytes * gpu_memory_utilization - weight_bytes`.",
            lambda m, u, w, b, t: max(0, int((m - w) * u // (b * t))),
        ),
        mistake(
            "You count tokens, not requests.",
            "Divide by `tokens_per_request`, too.",
            lambda m, u, w, b, t: max(0, int((m * u - w) // b)),
        ),
        mistake(
            "The length of a request is multiplied, not divided.",
            "One request takes `kv_bytes_per_token * tokens_per_request` bytes.",
            lambda m, u, w, b, t: max(0, int((m * u - w) // b * t)),
        ),
        mistake(
            "An exact fit counts: the last request may fill the memory to the last byte.",
            "`<=`, not `<`.",
            lambda m, u, w, b, t: max(0, math.ceil((m * u - w) / (b * t)) - 1),
        ),
    ),
)
