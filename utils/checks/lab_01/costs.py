"""What lab 01 says of the FLOPs and bytes of a forward pass: exercise 7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from utils.checks.kit import model_mistakes
from utils.checks.kit.runner import Bug, NumberCase, compare_numbers


def judge_forward_cost(function: Callable[..., tuple[int, int]]) -> str:
    """Check `forward_cost(config, num_tokens, bytes_per_parameter) -> (flops, bytes)`."""
    small = LlamaConfig(
        vocab_size=11, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=2, tie_word_embeddings=True,
    )  # fmt: skip
    shapes = [
        ("a tiny model, 1 layer, MHA, 1 token, 1 byte", small, 1, 1),
        ("a tiny model, 3 layers, 4 query heads over 2 KV heads, head_dim 6, 5 tokens, 2 bytes",
         LlamaConfig(vocab_size=13, hidden_size=8, intermediate_size=10, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                     tie_word_embeddings=False), 5, 2),
        ("SmolLM2-135M's shape, 512 tokens, 2 bytes",
         LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536,
                     num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                     head_dim=64, tie_word_embeddings=True), 512, 2),
    ]  # fmt: skip
    cases = [
        NumberCase(f"{given} ({_shape_words(c)})", (c, n, width), _measured_cost(c, n, width))
        for given, c, n, width in shapes
    ]
    compare_numbers(function, cases, _cost_bugs())
    _, config, num_tokens, width = shapes[-1]
    prefill, decode = (
        flops / size for flops, size in (function(config, n, width) for n in (num_tokens, 1))
    )
    return (
        "FLOPs as torch's FLOP counter sees them, bytes as the weights occupy. By your count, "
        f"SmolLM2-135M in bfloat16 does {decode:g} FLOP per byte in decode, and {prefill:g} in a "
        f"prefill of {num_tokens} tokens."
    )


def _measured_cost(config: LlamaConfig, num_tokens: int, width: int) -> tuple[int, int]:
    """The oracle: build the model without memory, count its matmul FLOPs and linear weights."""
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, num_tokens, dtype=torch.long))
    counts = counter.get_flop_counts()["Global"]
    aten = torch.ops.aten
    flops = sum(counts.get(op, 0) for op in (aten.mm, aten.addmm))
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear))
    return int(flops), width * sum(m.weight.numel() for m in linear)


def _cost_bugs() -> list[Bug]:
    def miscounted(**mistake: Any) -> Callable[[Any, int, int], tuple[int, int]]:
        def wrong(c: Any, t: int, w: int) -> tuple[int, int]:
            weights = model_mistakes.linear_weights(c, **mistake)
            return 2 * t * weights, w * weights

        return wrong

    count = model_mistakes.linear_weights
    return [
        Bug("Key and value projections are counted with as many heads as the query has. With GQA "
            "they are smaller.",
            "K and V have `num_key_value_heads * head_dim` outputs.",
            miscounted(kv="query heads")),
        Bug("All four attention projections are counted as hidden x hidden.",
            "Q and O: `num_attention_heads * head_dim`; K and V: `num_key_value_heads * head_dim`. "
            "head_dim need not be hidden_size / num_attention_heads.",
            miscounted(kv="square")),
        Bug("The MLP is counted with two matrices. SwiGLU has three: gate, up and down.",
            "`3 * hidden_size * intermediate_size` per layer.",
            miscounted(mlp=2)),
        Bug("The LM head is missing: hidden x vocabulary, once per model.",
            "Tied embeddings save memory, not the multiplication.",
            miscounted(head=0)),
        Bug("The embedding table is counted as a multiplication. It is a lookup: only the LM head "
            "multiplies.",
            "Count `vocab_size * hidden_size` once.",
            miscounted(head=2)),
        Bug("Only one layer is counted.",
            "Multiply by `num_hidden_layers`.",
            miscounted(one_layer=True)),
        Bug("The attention projections are missing.",
            "q, k, v and o, in every layer.",
            miscounted(attention=0)),
        Bug("The FLOPs lack a factor of 2: a weight costs one multiplication *and* one addition "
            "per token.",
            "`2 * weights * num_tokens`.",
            lambda c, t, w: (t * count(c), w * count(c))),
        Bug("The FLOPs do not grow with the number of tokens.",
            "`2 * weights * num_tokens`.",
            lambda c, t, w: (2 * count(c), w * count(c))),
        Bug("The bytes grow with the number of tokens. Weights are read *once per pass*, however "
            "many tokens share it: that is the whole point.",
            "`weights * bytes_per_parameter`.",
            lambda c, t, w: (2 * t * count(c), t * w * count(c))),
        Bug("The bytes ignore `bytes_per_parameter`.",
            "`weights * bytes_per_parameter`.",
            lambda c, t, w: (2 * t * count(c), count(c))),
        Bug("The pair is in the wrong order: FLOPs first, bytes second.",
            "`return flops, num_bytes`.",
            lambda c, t, w: (w * count(c), 2 * t * count(c))),
    ]  # fmt: skip


def _shape_words(c: Any) -> str:
    return (
        f"vocab_size {c.vocab_size}, hidden_size {c.hidden_size}, intermediate_size "
        f"{c.intermediate_size}, {c.num_hidden_layers} layers, heads {c.num_attention_heads}, "
        f"KV heads {c.num_key_value_heads}, head_dim {c.head_dim}"
    )
