"""The FLOPs and bytes of a forward pass: exercise 7."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.engine.config.model import ModelConfig


def model_config(
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    intermediate: int,
    vocab: int,
    tied: bool = True,
) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
        eos_token_ids=(2,),
    )


def draw(c: Choices) -> Given:
    """MHA, GQA, MQA; a head_dim that is hidden_size / heads, or is not; tied embeddings or not."""
    kv_heads, group, head_dim = c.size(1, 16), c.integer(1, 8), 2 * c.size(1, 64)
    hidden = c.size(1, 16_384) if c.rarely(2) else kv_heads * group * head_dim
    config = model_config(
        c.size(1, 40),
        kv_heads * group,
        kv_heads,
        head_dim,
        hidden,
        c.size(1, 53_000),
        c.size(1, 150_000),
        not c.rarely(2),
    )
    return Given(config, c.size(1, 1_000_000) * c.pick((1, 1, 10**9 + 7)), c.pick((2, 1, 4, 8)))


def weights(config: ModelConfig) -> list[Tensor]:
    """The weights of all linear layers, without memory."""
    h, i, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)]
    shapes = [*(shapes * config.num_hidden_layers), (h, config.vocab_size)]
    return [torch.empty(shape, device="meta") for shape in shapes]


def oracle(config: ModelConfig, num_tokens: int, bytes_per_parameter: int) -> tuple[int, int]:
    """Layer by layer. (A test compares this with what torch counts in transformers' Llama.)"""
    numbers = [weight.numel() for weight in weights(config)]
    return sum(2 * num_tokens * n for n in numbers), sum(numbers) * bytes_per_parameter


def wrong(expected: tuple[int, int], got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("pair", "", expected, got, difference(expected, got))
    for clause, want, came in zip(("flops", "bytes"), expected, got, strict=True):
        if not isinstance(came, Integral):
            return Fault("whole", "", expected, got, difference(want, came))
        if says := difference(want, came):
            return Fault(clause, "", expected, got, says)
    return None


def tell(given: Given) -> str:
    c, num_tokens, width = given.args
    return (
        f"vocab_size {c.vocab_size}, hidden_size {c.hidden_size}, intermediate_size "
        f"{c.intermediate_size}, {c.num_hidden_layers} layers, heads {c.num_attention_heads}, "
        f"KV heads {c.num_key_value_heads}, head_dim {c.head_dim}; {num_tokens} tokens, {width} "
        "bytes per parameter"
    )


def but(
    kv: str = "kv heads",
    mlp: int = 3,
    head: int = 1,
    layers: str = "all",
    attention: int = 1,
    cost: Callable[[int, int, int], Any] = lambda n, t, w: (2 * n * t, n * w),
) -> Callable[..., Any]:
    """The count with one thing changed; `cost` takes weights, tokens, bytes per parameter."""

    def count(c: Any, num_tokens: int, bytes_per_parameter: int) -> Any:
        q = c.hidden_size if kv == "square" else c.num_attention_heads * c.head_dim
        per_kv = {"kv heads": c.num_key_value_heads * c.head_dim}.get(kv, q)
        layer = c.hidden_size * (attention * 2 * (q + per_kv) + mlp * c.intermediate_size)
        num_layers = 1 if layers == "one" else c.num_hidden_layers
        weights = num_layers * layer + head * c.hidden_size * c.vocab_size
        return cost(weights, num_tokens, bytes_per_parameter)

    return count


def _passed(answer: Any) -> str:
    small = model_config(30, 9, 3, 64, 576, 1536, 49152)
    pairs = (answer(small, n, 2) for n in (1, 512))
    decode, prefill = (flops / size for flops, size in pairs)
    return (
        "FLOPs and bytes as the layers have them, for 150 random shapes. By your count, "
        f"SmolLM2-135M in bfloat16 does {decode:g} FLOP per byte in decode, and {prefill:g} in a "
        "prefill of 512 tokens."
    )


FORWARD_COST = Contract(
    inputs=draw,
    judge=Returns(oracle, wrong=wrong),
    passed=_passed,
    tell=tell,
    clauses={
        "pair": Clause("Expected the pair (flops, bytes). {says}", "`return flops, num_bytes`."),
        "whole": Clause(
            "Expected two ints; {got} came. A float has only 53 bits for its digits.",
            "`//` instead of `/`, `2` instead of `2.0`.",
        ),
        "flops": Clause(
            "The FLOPs are wrong. {says}",
            "`2 * weights * num_tokens`; q, k, v, o, "
            "gate, up and down in each layer, and the LM head once.",
        ),
        "bytes": Clause(
            "The FLOPs are right, the bytes are wrong. {says}", "`weights * bytes_per_parameter`."
        ),
    },
    mistakes=(
        mistake(
            "Key and value projections are counted with as many heads as the query has. With "
            "GQA they are smaller.",
            "K and V have `num_key_value_heads * head_dim` outputs.",
            but(kv="query heads"),
        ),
        mistake(
            "All four attention projections are counted as hidden x hidden.",
            "Q and O: `num_attention_heads * head_dim`; K and V: `num_key_value_heads * "
            "head_dim`. head_dim need not be hidden_size / num_attention_heads.",
            but(kv="square"),
        ),
        mistake(
            "The MLP is counted with two matrices. SwiGLU has three: gate, up and down.",
            "`3 * hidden_size * intermediate_size` per layer.",
            but(mlp=2),
        ),
        mistake(
            "The LM head is missing: hidden x vocabulary, once per model.",
            "Tied embeddings save memory, not the multiplication.",
            but(head=0),
        ),
        mistake(
            "The embedding table is counted as a multiplication. It is a lookup: only the LM "
            "head multiplies.",
            "Count `vocab_size * hidden_size` once.",
            but(head=2),
        ),
        mistake(
            "Only one layer is counted.", "Multiply by `num_hidden_layers`.", but(layers="one")
        ),
        mistake(
            "The attention projections are missing.",
            "q, k, v and o, in every layer.",
            but(attention=0),
        ),
        mistake(
            "The FLOPs lack a factor of 2: a weight costs one multiplication *and* one "
            "addition per token.",
            "`2 * weights * num_tokens`.",
            but(cost=lambda n, t, w: (n * t, n * w)),
        ),
        mistake(
            "The FLOPs do not grow with the number of tokens.",
            "`2 * weights * num_tokens`.",
            but(cost=lambda n, t, w: (2 * n, n * w)),
        ),
        mistake(
            "The bytes grow with the number of tokens. Weights are read *once per pass*, "
            "however many tokens share it: that is the whole point.",
            "`weights * bytes_per_parameter`.",
            but(cost=lambda n, t, w: (2 * n * t, n * w * t)),
        ),
        mistake(
            "You ignore `bytes_per_parameter`.",
            "`weights * bytes_per_parameter`.",
            but(cost=lambda n, t, w: (2 * n * t, n)),
        ),
        mistake(
            "The pair is in the wrong order: FLOPs first, bytes second.",
            "`return flops, num_bytes`.",
            but(cost=lambda n, t, w: (n * w, 2 * n * t)),
        ),
    ),
)
