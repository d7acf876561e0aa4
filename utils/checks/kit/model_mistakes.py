"""Known mistakes of labs 01 and 04 about the model, as functions with one switch per mistake.

They serve to recognise a mistake by its result. They are never the oracle.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swap(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def swap_neighbours(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)


def neighbour_angles(angles: Tensor) -> Tensor:
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, dim=-1)


def restarted(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Angles counted from the first row: cos(a - a0), sin(a - a0)."""
    c = cos * cos[:1] + sin * sin[:1]
    s = sin * cos[:1] - cos * sin[:1]
    return x * c[:, None] + swap(x) * s[:, None]


def kv_head_of(heads: int, kv_heads: int, repeat: str) -> Tensor:
    """Which KV head each query head reads: int64 [heads]. Only "interleave" is right."""
    head = torch.arange(heads)
    return {
        "interleave": head // (heads // kv_heads),
        "tile": head % kv_heads,
        "first": torch.zeros_like(head),
    }[repeat]


def attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, mask: str = "causal",
    repeat: str = "interleave", power: int | None = 1, softmax_dim: int = -1, safe: bool = True,
) -> Tensor:  # fmt: skip
    """Attention with one switch per known mistake; used to recognise mistakes, never as oracle."""
    t_q, heads, dim = query.shape
    t_k, kv_heads, _ = key.shape
    source = kv_head_of(heads, kv_heads, repeat)
    factor = dim**-0.5 if power is None else scale**power
    scores = torch.einsum("qhd,khd->hqk", query.float(), key[:, source].float()) * factor
    position = torch.arange(t_q)[:, None] + t_k - t_q
    keys = torch.arange(t_k)[None]
    hidden = {
        "causal": keys > position,
        "after softmax": keys > position,
        "zero": keys > position,
        "none": torch.zeros(t_q, t_k, dtype=torch.bool),
        "from zero": keys > torch.arange(t_q)[:, None],
        "strict": keys >= position,
        "future": keys < position,
    }[mask]
    if mask != "after softmax":
        scores = scores.masked_fill(hidden, 0.0 if mask == "zero" else float("-inf"))
    if safe:
        weights = scores.softmax(softmax_dim)
    else:
        weights = scores.exp() / scores.exp().sum(softmax_dim, keepdim=True)
    if mask == "after softmax":
        weights = weights.masked_fill(hidden, 0.0)
    out = torch.einsum("hqk,khd->qhd", weights, value[:, source].float())
    return out.to(query.dtype)


def probabilities(
    logits: Tensor, t: float, k: int, p: float, *, nucleus: str = "right", heat: str = "right",
    topk: str = "right", order: str = "right", normalise: bool = True,
) -> Tensor:  # fmt: skip
    """Sampling with one switch per known mistake; used to recognise mistakes, never as oracle."""
    if t == 0.0 and heat not in ("no zero", "zero is one"):
        return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)
    divisor = {"times": 1 / t if t else 1.0, "after softmax": 1.0, "off": 1.0}.get(heat, t)
    if heat == "zero is one" and t == 0.0:
        divisor = 1.0
    heated = logits / divisor

    def keep_k(x: Tensor) -> Tensor:
        count = min({"extra": k + 1, "fewer": k - 1}.get(topk, k), x.numel())
        if k <= 0 or topk == "off" or count == 0:
            return torch.ones_like(x, dtype=torch.bool)
        if topk == "smallest":
            return x <= x.topk(count, largest=False).values[-1]
        return x >= x.topk(count).values[-1]

    def keep_p(probabilities: Tensor) -> Tensor:
        if p >= 1.0 or nucleus == "off":
            return torch.ones_like(probabilities, dtype=torch.bool)
        if nucleus == "unsorted":
            return probabilities.cumsum(0) - probabilities < p
        if nucleus == "single":
            return probabilities >= 1 - p
        values, index = probabilities.sort(descending=True)
        before = values.cumsum(0) - values
        kept = {
            "drop": values.cumsum(0) <= p,
            "drop but first": (values.cumsum(0) <= p) | (torch.arange(len(values)) == 0),
            "extra": torch.cat((torch.ones(1, dtype=torch.bool), (before < p)[:-1])),
        }.get(nucleus, before < p)
        return torch.zeros_like(kept).scatter(0, index, kept)

    minus_inf = torch.tensor(float("-inf"))
    if order == "p first":
        kept = keep_p(heated.softmax(0))
        kept = kept & keep_k(torch.where(kept, heated, minus_inf))
    elif order == "p before heat":
        kept = keep_k(heated)
        kept = kept & keep_p(torch.where(kept, logits, minus_inf).softmax(0))
    elif order == "p on old sum":
        kept = keep_k(heated) & keep_p(heated.softmax(0))
    else:
        kept = keep_k(heated)
        kept = kept & keep_p(torch.where(kept, heated, minus_inf).softmax(0))
    out = torch.where(kept, heated, minus_inf).softmax(0)
    if not normalise:
        out = heated.softmax(0) * kept
    if heat == "after softmax":
        out = out / t
    if nucleus == "not scattered" and p < 1.0:
        out = out.sort(descending=True).values
    return out


def linear_weights(
    c: Any, *, kv: str = "kv heads", mlp: int = 3, head: int = 1, one_layer: bool = False,
    attention: int = 1,
) -> int:  # fmt: skip
    """The number of weights that multiply, with one switch per known mistake."""
    q_width = c.num_attention_heads * c.head_dim
    kv_width = {
        "kv heads": c.num_key_value_heads * c.head_dim,
        "query heads": q_width,
        "square": c.hidden_size,
    }[kv]
    q_width = c.hidden_size if kv == "square" else q_width
    per_layer = attention * 2 * c.hidden_size * (q_width + kv_width)
    per_layer += mlp * c.hidden_size * c.intermediate_size
    layers = 1 if one_layer else c.num_hidden_layers
    return layers * per_layer + head * c.vocab_size * c.hidden_size
