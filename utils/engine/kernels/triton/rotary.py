"""Rotary embedding, and where the keys and values of a step go: into their slots."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotary_and_cache_kernel(
    query,
    keys,
    values,
    qkv,
    cos,
    sin,
    slots,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    padded_heads: tl.constexpr,
    padded_half: tl.constexpr,
):
    """One program for each token: all its heads, as two tiles, of the first and second halves."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    all_heads: tl.constexpr = heads + 2 * kv_heads
    size: tl.constexpr = 2 * half
    head = tl.arange(0, padded_heads)[:, None]
    place = tl.arange(0, padded_half)[None, :]
    inside = (head < all_heads) & (place < half)
    source = qkv + (row * all_heads + head) * size + place
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + half, mask=inside, other=0.0)
    # The angles stand twice in a row of `cos`, once for each half.
    c = tl.load(cos + row * size + place, mask=place < half, other=0.0).to(tl.float32)
    s = tl.load(sin + row * size + place, mask=place < half, other=0.0).to(tl.float32)
    turned_first = (first * c - second * s).to(first.dtype)
    turned_second = (second * c + first * s).to(first.dtype)

    target = query + (row * heads + head) * size + place
    tl.store(target, turned_first, mask=inside & (head < heads))
    tl.store(target + half, turned_second, mask=inside & (head < heads))
    if slot >= 0:  # a row that only fills a graph's batch has none
        is_key = inside & (head >= heads) & (head < heads + kv_heads)
        target = keys + (slot * kv_heads + head - heads) * size + place
        tl.store(target, turned_first, mask=is_key)
        tl.store(target + half, turned_second, mask=is_key)
        is_value = inside & (head >= heads + kv_heads)
        target = values + (slot * kv_heads + head - heads - kv_heads) * size + place
        tl.store(target, first, mask=is_value)
        tl.store(target + half, second, mask=is_value)


def rotary_and_cache(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor
) -> Tensor:
    """Rotate queries and keys; keys and values go into their slots.

    In vLLM these are two kernels, `rotary_embedding` and `reshape_and_cache_flash`.

    Args:
        qkv: [T, (H + 2 * H_kv) * D], as the projection gives them.
        cos: [T, D]
        sin: [T, D]
        keys: [num_blocks, block_size, H_kv, D], of one layer. Written to.
        values: as `keys`.
        slot_mapping: int64 [T]; -1 for a token that is not kept.

    Returns:
        The queries, [T, H, D].
    """
    kv_heads, size = keys.shape[2:]
    all_heads = qkv.shape[1] // size
    heads = all_heads - 2 * kv_heads
    query = torch.empty(len(qkv), heads, size, dtype=qkv.dtype, device=qkv.device)
    padded_heads, half = triton.next_power_of_2(all_heads), size // 2
    _rotary_and_cache_kernel[(len(qkv),)](
        query,
        keys,
        values,
        qkv,
        cos,
        sin,
        slot_mapping,
        heads,
        kv_heads,
        half,
        padded_heads,
        triton.next_power_of_2(half),
    )
    return query
