"""What learners' attention gets wrong, and the words for it: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.contracts import mistake

KEYS = "For each query the weights over all *keys* add up to 1: the dimension of length T_k."


def but(
    mask: str = "causal",
    heads: str = "interleaved",
    power: int = 1,
    dim: int = -1,
    safe: bool = True,
    mixed: str = "value",
    at: str = "scaled scores",
) -> Callable[..., Any]:
    """Attention with one thing changed."""

    def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        (t_q, num_heads, _), (t_k, num_kv_heads, _) = query.shape, key.shape
        head = torch.arange(num_heads)
        source = {
            "interleaved": head // (num_heads // num_kv_heads),
            "tiled": head % num_kv_heads,
            "first": head * 0,
        }[heads]
        k, v = key[:, source], (value if mixed == "value" else key)[:, source]
        position, keys = torch.arange(t_q)[:, None] + t_k - t_q, torch.arange(t_k)
        hidden = {
            "causal": keys > position,
            "none": torch.zeros(t_q, t_k, dtype=torch.bool),
            "from zero": keys > torch.arange(t_q)[:, None],
            "strict": keys >= position,
        }[mask]
        nothing = 0.0 if at == "zero" else -torch.inf
        scores = torch.einsum("qhd,khd->hqk", query, k)
        if at == "scores":
            scores = scores.masked_fill(hidden, nothing)
        scores = scores / scale if power < 0 else scores * scale**power
        if at in ("scaled scores", "zero"):
            scores = scores.masked_fill(hidden, nothing)
        weights = (
            scores.float().softmax(dim)
            if safe
            else (scores.exp() / scores.exp().sum(dim, keepdim=True))
        )
        if at == "weights":
            weights = weights.masked_fill(hidden, 0.0)
        return torch.einsum("hqk,khd->qhd", weights.to(v.dtype), v)

    return attention


def _torch_is_causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def _own_scale(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return but()(query, key, value, query.shape[-1] ** -0.5)


def _own_division(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return but(power=-1)(query, key, value, query.shape[-1] ** 0.5)


MISTAKES = (
    mistake(
        "The causal mask is missing: your queries attend to the future.",
        "Query i stands at position `T_k - T_q + i` and may see keys up to that position.",
        but(mask="none"),
    ),
    mistake(
        "The mask is off by the number of earlier tokens: you count query positions from 0, "
        "but query 0 stands at position T_k - T_q.",
        "Compare key positions `arange(T_k)` with query positions `arange(T_q) + T_k - T_q`. "
        "(`torch.tril(ones(T_q, T_k))` and `is_causal=True` both count from 0.)",
        but(mask="from zero"),
        _torch_is_causal,
    ),
    mistake(
        "A token may not see itself in your mask. It must: key position <= query position.",
        "Hide keys with `position > query position`, strictly greater.",
        but(mask="strict"),
    ),
    mistake(
        "You mask after the softmax. The weights of a row then no longer add up to 1.",
        "Put -inf into the *scores* and take the softmax afterwards.",
        but(at="weights"),
    ),
    mistake(
        "You mask before you scale. Times a negative scale, -inf becomes inf; times 0, NaN.",
        "First the scale, then the mask.",
        but(at="scores"),
    ),
    mistake(
        "Masked scores are 0 and not -inf: exp(0) = 1, so the future still gets weight.",
        "`scores.masked_fill(hidden, float('-inf'))`.",
        but(at="zero"),
    ),
    mistake(
        "Your heads are repeated in the order 0, 1, 0, 1; expected 0, 0, 1, 1. Neighbouring "
        "query heads share one KV head.",
        "`repeat_interleave(group, dim=1)` gives 0, 0, 1, 1; `repeat` gives 0, 1, 0, 1.",
        but(heads="tiled"),
    ),
    mistake(
        "The scale is missing.", "Multiply the scores by `scale` before the softmax.", but(power=0)
    ),
    mistake(
        "The scale is applied twice, or you divide by it.",
        "`(query . key) * scale`, once. "
        "(torch's scaled_dot_product_attention has a scale of its own.)",
        but(power=2),
        but(power=-1),
    ),
    mistake(
        "You use 1 / sqrt(head_dim) and ignore the argument `scale`.",
        "Some models use another scale; the caller decides.",
        _own_scale,
        _own_division,
    ),
    mistake(
        "The softmax runs over the wrong dimension: over the queries, or the heads.",
        KEYS,
        but(dim=-2),
        but(dim=0),
    ),
    mistake(
        "The weights multiply the keys. They must multiply the values.",
        "Scores come from query and key; the output mixes *values*.",
        but(mixed="key"),
    ),
    mistake(
        "Your softmax overflows when scores are large: exp(200) is infinite in float32.",
        "Subtract the row's maximum before `exp`, or use `torch.softmax`.",
        but(safe=False),
    ),
)
