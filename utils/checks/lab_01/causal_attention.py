"""What lab 01 says of causal attention with grouped heads: exercise 3."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import model_mistakes, pictures
from utils.checks.kit.runner import Bug, Case, compare


def judge_attention(function: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> str:
    """Check causal GQA of one request; query i stands at position T_k - T_q + i."""

    def case(
        given: str, t_q: int, t_k: int, heads: int, kv_heads: int, dim: int,
        scale: float | None = None, dtype: torch.dtype = torch.float32, **tolerance: float,
    ) -> Case:  # fmt: skip
        query = torch.randn(t_q, heads, dim, dtype=dtype)
        key = torch.randn(t_k, kv_heads, dim, dtype=dtype)
        value = torch.randn(t_k, kv_heads, dim, dtype=dtype)
        scale = dim**-0.5 if scale is None else scale
        return Case(given, (query, key, value, scale), _sdpa(query, key, value, scale), **tolerance)

    half = {"rtol": 5e-2, "atol": 5e-2}
    cases = [
        case("2 tokens, 1 head, head_dim 2", 2, 2, 1, 1, 2),
        case("decode: 1 new token, 3 keys, 1 head", 1, 3, 1, 1, 2),
        case("2 new tokens, 4 keys (2 from earlier), 1 head", 2, 4, 1, 1, 4),
        case("3 tokens, 4 query heads over 2 KV heads", 3, 3, 4, 2, 4),
        case("2 new tokens, 5 keys, 6 query heads over 3 KV heads", 2, 5, 6, 3, 8),
        case("3 tokens, 3 query heads over 1 KV head (MQA)", 3, 3, 3, 1, 4),
        case("4 tokens, 2 heads, scale 0.3 (not 1 / sqrt(head_dim))", 4, 4, 2, 2, 4, 0.3),
        case("3 tokens, 2 heads, scores up to several hundred", 3, 3, 2, 2, 4, 200.0, atol=1e-3),
        case("3 tokens, 4 over 2 heads, bfloat16", 3, 3, 4, 2, 8, None, torch.bfloat16, **half),
    ]
    bugs = [
        Bug("The causal mask is missing: your queries attend to the future.",
            "Query i stands at position `T_k - T_q + i` and may see keys up to that position.",
            functools.partial(model_mistakes.attention, mask="none")),
        Bug("The mask is off by the number of earlier tokens: you count query positions from 0, "
            "but query 0 stands at position T_k - T_q.",
            "Compare key positions `arange(T_k)` with query positions `arange(T_q) + T_k - T_q`. "
            "(`torch.tril(ones(T_q, T_k))` and `is_causal=True` both count from 0.)",
            functools.partial(model_mistakes.attention, mask="from zero")),
        Bug("A token may not see itself in your mask. It must: key position <= query position.",
            "Hide keys with `position > query position`, strictly greater.",
            functools.partial(model_mistakes.attention, mask="strict")),
        Bug("The mask is upside down: your queries see the future and not the past.",
            "Keep keys with position <= query position; fill the others with -inf.",
            functools.partial(model_mistakes.attention, mask="future")),
        Bug("You mask after the softmax. The weights of a row then no longer add up to 1.",
            "Put -inf into the *scores* and take the softmax afterwards.",
            functools.partial(model_mistakes.attention, mask="after softmax")),
        Bug("Masked scores are 0 and not -inf: exp(0) = 1, so the future still gets weight.",
            "`scores.masked_fill(hidden, float('-inf'))`.",
            functools.partial(model_mistakes.attention, mask="zero")),
        Bug("Your heads are repeated in the order 0, 1, 0, 1; expected 0, 0, 1, 1. Neighbouring "
            "query heads share one KV head.",
            "`repeat_interleave(group, dim=1)` gives 0, 0, 1, 1; `repeat` gives 0, 1, 0, 1.",
            functools.partial(model_mistakes.attention, repeat="tile")),
        Bug("All query heads read KV head 0.",
            "Query head h reads KV head `h // (H // H_kv)`.",
            functools.partial(model_mistakes.attention, repeat="first")),
        Bug("The scale is missing.",
            "Multiply the scores by `scale` before the softmax.",
            functools.partial(model_mistakes.attention, power=0)),
        Bug("The scale is applied twice.",
            "Multiply the scores by `scale` once. (torch's scaled_dot_product_attention has a "
            "scale of its own.)",
            functools.partial(model_mistakes.attention, power=2)),
        Bug("You divide by the scale. It is a factor: `scale` is already 1 / sqrt(head_dim).",
            "`scores = (query . key) * scale`.",
            functools.partial(model_mistakes.attention, power=-1)),
        Bug("You use 1 / sqrt(head_dim) and ignore the argument `scale`.",
            "Some models use another scale; the caller decides.",
            functools.partial(model_mistakes.attention, power=None)),
        Bug("The softmax runs over the wrong dimension: over the queries.",
            "For each query the weights over all *keys* add up to 1: the dimension of length T_k.",
            functools.partial(model_mistakes.attention, softmax_dim=-2)),
        Bug("The softmax runs over the wrong dimension: over the heads.",
            "For each query the weights over all *keys* add up to 1: the dimension of length T_k.",
            functools.partial(model_mistakes.attention, softmax_dim=0)),
        Bug("Your softmax overflows when scores are large: exp(200) is infinite in float32.",
            "Subtract the row's maximum before `exp`, or use `torch.softmax`.",
            functools.partial(model_mistakes.attention, safe=False)),
        Bug("The weights multiply the keys. They must multiply the values.",
            "Scores come from query and key; the output mixes *values*.",
            lambda q, k, v, s: model_mistakes.attention(q, k, k, s)),
    ]  # fmt: skip

    def picture(_: Case, __: Tensor) -> tuple[Figure, str]:
        # One-hot values turn the output into the attention weights themselves.
        t_q, t_k, heads, kv_heads = 2, 4, 4, 2
        query, key = torch.randn(t_q, heads, t_k), torch.randn(t_k, kv_heads, t_k)
        value = torch.eye(t_k)[:, None, :].expand(t_k, kv_heads, t_k).contiguous()
        expected = _sdpa(query, key, value, 0.5).transpose(0, 1)
        yours = function(query, key, value, 0.5).transpose(0, 1).detach()
        figure = pictures.attention_maps(expected, yours, kv_heads)
        return figure, "Attention weights, expected above and yours below, one map per head."

    compare(function, cases, bugs, picture)
    return (
        "Equal to torch's scaled_dot_product_attention on 9 inputs: prefill, decode, "
        "a chunk after earlier tokens, MHA, GQA, MQA."
    )


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The oracle: torch's kernel, in float32, with a mask aligned to the last key."""
    t_q, t_k = query.shape[0], key.shape[0]
    mask = torch.ones(t_q, t_k).tril(diagonal=t_k - t_q).bool()
    q, k, v = (t.float().transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)
