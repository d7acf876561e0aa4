"""Known mistakes of paged attention, as one function with a switch per mistake.

They serve to recognise a mistake by its result. They are never the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.checks.kit.model_mistakes import kv_head_of


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Sequence[int], seq_len: int,
    scale: float, *, mask: str = "causal", repeat: str = "interleave", power: int = 1,
    tail: str = "cut", online: str = "right", blocks: str = "table", mix: str = "values",
) -> Tensor:  # fmt: skip
    """Attention over blocks with one switch per known mistake."""
    t_q, heads, dim = query.shape
    size, kv_heads = key_cache.shape[1:3]
    count = -(-seq_len // size) if blocks != "full only" else seq_len // size
    table = list(block_table)[:count]
    table = {
        "in order": list(range(count)), "last only": table[-1:],
        "consecutive": [table[0] + i for i in range(count)] if table else [],
    }.get(blocks, table)  # fmt: skip
    skipped = count - len(table)
    source = kv_head_of(heads, kv_heads, repeat)
    position = torch.arange(t_q)[:, None] + {
        "from zero": 0, "padded": count * size - t_q, "one less": seq_len - t_q - 1,
    }.get(mask, seq_len - t_q)  # fmt: skip
    largest = torch.full((heads, t_q), -torch.inf)
    total, out = torch.zeros(heads, t_q), torch.zeros(heads, t_q, dim)
    for place, block in enumerate(table):
        begin = (place + skipped) * size
        stop = size if tail == "whole" else min(size, seq_len - begin)
        keys = begin + torch.arange(stop)
        key, value = key_cache[block, :stop][:, source], value_cache[block, :stop][:, source]
        scores = torch.einsum("qhd,khd->hqk", query, key) * scale**power
        if mask == "in block":
            scores = scores.masked_fill(torch.arange(stop) > torch.arange(t_q)[:, None], -torch.inf)
        elif mask != "none":
            scores = scores.masked_fill(keys > position, -torch.inf)
        value = key if mix == "keys" else value
        if online == "softmax per block":
            out = out + torch.einsum("hqk,khd->hqd", scores.softmax(-1), value)
            total = total + 1
            continue
        here = scores.amax(-1)
        larger = {
            "no maximum": torch.zeros_like(here),
            "newest maximum": here,
        }.get(online, torch.maximum(largest, here))
        shrink = torch.exp(largest - larger) if place else torch.zeros_like(larger)
        weights = torch.exp(scores - larger[..., None])
        keep_total = online in ("never rescaled", "sum not rescaled", "no maximum")
        keep_out = online in ("never rescaled", "output not rescaled", "no maximum")
        total = total * (1 if keep_total else shrink) + weights.sum(-1)
        out = out * (1 if keep_out else shrink[..., None])
        out = out + torch.einsum("hqk,khd->hqd", weights, value)
        largest = larger
    if online != "not divided":
        out = out / total[..., None]
    return out.transpose(0, 1).to(query.dtype)
