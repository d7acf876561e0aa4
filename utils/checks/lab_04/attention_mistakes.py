"""Known mistakes of paged attention, as one function with a switch per mistake: exercise 6.

They serve to recognise a mistake by its result. They are never the oracle.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Mistake, mistake


def kv_head_of(heads: int, kv_heads: int, repeat: str) -> Tensor:
    """Which KV head each query head reads: int64 [heads]. Only "interleave" is right."""
    head = torch.arange(heads)
    return {
        "interleave": head // (heads // kv_heads),
        "tile": head % kv_heads,
        "first": torch.zeros_like(head),
    }[repeat]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Sequence[int],
    seq_len: int,
    scale: float,
    *,
    mask: str = "causal",
    repeat: str = "interleave",
    power: int = 1,
    tail: str = "cut",
    online: str = "right",
    blocks: str = "table",
) -> Tensor:
    """Attention over blocks with one switch per known mistake."""
    t_q, heads, _ = query.shape
    size, kv_heads = key_cache.shape[1:3]
    count = -(-seq_len // size) if blocks != "full only" else seq_len // size
    table = list(block_table)[:count]
    table = {
        "in order": list(range(count)),
        "last only": table[-1:],
        "consecutive": [table[0] + i for i in range(count)] if table else [],
    }.get(blocks, table)
    skipped = count - len(table)
    source = kv_head_of(heads, kv_heads, repeat)
    position = torch.arange(t_q)[:, None] + {
        "from zero": 0,
        "padded": count * size - t_q,
        "one less": seq_len - t_q - 1,
    }.get(mask, seq_len - t_q)
    largest = torch.full((heads, t_q), -torch.inf)
    total, out = torch.zeros(heads, t_q), torch.zeros(query.shape).transpose(0, 1)
    for place, block in enumerate(table):
        begin = (place + skipped) * size
        stop = size if tail == "whole" else min(size, seq_len - begin)
        keys = torch.arange(stop) + (0 if mask == "in block" else begin)
        key, value = key_cache[block, :stop][:, source], value_cache[block, :stop][:, source]
        scores = torch.einsum("qhd,khd->hqk", query, key) * scale**power
        if mask == "in block":
            scores = scores.masked_fill(keys > torch.arange(t_q)[:, None], -torch.inf)
        elif mask != "none":
            scores = scores.masked_fill(keys > position, -torch.inf)
        if online == "softmax per block":
            out = out + torch.einsum("hqk,khd->hqd", scores.softmax(-1), value)
            total = total + 1
            continue
        here = scores.amax(-1)
        larger = {"no maximum": torch.zeros_like(here), "newest maximum": here}.get(
            online, torch.maximum(largest, here)
        )
        shrink = torch.exp(largest - larger) if place else torch.zeros_like(larger)
        weights = torch.exp(scores - larger[..., None])
        keep_total = online in ("never rescaled", "sum not rescaled", "no maximum")
        keep_out = online in ("never rescaled", "output not rescaled", "no maximum")
        total = total * (1 if keep_total else shrink) + weights.sum(-1)
        out = out * (1 if keep_out else shrink[..., None])
        out = out + torch.einsum("hqk,khd->hqd", weights, value)
        largest = larger
    return (out / total[..., None]).transpose(0, 1)


def _with(says: str, look: str, *switches: dict[str, Any]) -> Mistake:
    return mistake(says, look, *(functools.partial(paged_attention, **s) for s in switches))


MISTAKES = (
    _with(
        "Nothing is rescaled. When a later block has a larger score, the sums of the blocks "
        "before are relative to an older, smaller maximum.",
        "`shrink = exp(old_maximum - new_maximum)`; multiply *both* running sums by it.",
        {"online": "never rescaled"},
    ),
    _with(
        "One of the two running sums is rescaled, and the other is not.",
        "`total = total * shrink + ...`, `weighted = weighted * shrink[..., None] + ...`.",
        {"online": "sum not rescaled"},
        {"online": "output not rescaled"},
    ),
    _with(
        "Each block has a softmax of its own, and the results are averaged. The weights of *all* "
        "keys together must add up to 1.",
        "Keep sums of exponentials over all blocks; divide once, at the end.",
        {"online": "softmax per block"},
    ),
    _with(
        "Without the largest score so far, `exp` overflows when scores are large, or all of them "
        "vanish: exp(200) is infinite in float32, exp(-200) is 0.",
        "`larger = torch.maximum(largest, scores.amax(-1))`; subtract it before `exp`.",
        {"online": "no maximum"},
        {"online": "newest maximum"},
    ),
    _with(
        "The causal mask is missing: your queries attend to the future.",
        "Hide keys whose position is larger than the query's.",
        {"mask": "none"},
    ),
    _with(
        "Your function reads beyond `seq_len`: the last block is not full, and the rest of it is "
        "garbage.",
        "The last block holds `seq_len - begin` tokens: `key_cache[block, :size]`.",
        {"tail": "whole", "mask": "none"},
        {"tail": "whole", "mask": "padded"},
    ),
    _with(
        "The causal mask is off by the cached length: query positions are counted from 0, but "
        "the queries are the *last* T_q tokens.",
        "Query i stands at position `seq_len - T_q + i`.",
        {"mask": "from zero"},
    ),
    _with(
        "A token may not see itself in your mask. It must: key position <= query position.",
        "Hide keys with `position > query position`, strictly greater.",
        {"mask": "one less"},
    ),
    _with(
        "The mask compares query positions with offsets in the block, not with positions.",
        "The keys of a block stand at positions `begin`, `begin + 1`, ...",
        {"mask": "in block"},
    ),
    _with(
        "Query heads read the wrong KV head: 0, 1, 0, 1 (or 0, 0, 0, 0); expected 0, 0, 1, 1. "
        "Neighbouring query heads share one.",
        "`repeat_interleave(group, dim=1)` gives 0, 0, 1, 1; `repeat` gives 0, 1, 0, 1.",
        {"repeat": "tile"},
        {"repeat": "first"},
    ),
    _with(
        "You read other blocks than the block table says. They belong to others.",
        "Look up each block, from the first to the last: `block_table[place]`.",
        {"blocks": "in order"},
        {"blocks": "consecutive"},
    ),
    _with(
        "Some blocks are left out: all but the last, or the last one when it is not full.",
        "`range(0, seq_len, block_size)` begins a block for every rest, too.",
        {"blocks": "last only"},
        {"blocks": "full only"},
    ),
    _with(
        "The scale is missing, or it is applied twice.",
        "Multiply the scores by `scale` once.",
        {"power": 0},
        {"power": 2},
    ),
)
