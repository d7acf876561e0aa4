"""PagedAttention: one kernel for prompts of all lengths and for single tokens.

It follows the block tables, so nothing is gathered. In vLLM: `kernel_unified_attention` and
`reduce_segments`, in `v1/attention/ops/triton_unified_attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.kernels.triton.attention_kernels import (
    merge_segments_kernel,
    unified_attention_kernel,
)

LOG2_E = 1.4426950408889634  # cards compute powers of 2


@dataclass(frozen=True)
class Tiles:
    """How the work is cut. `rows`: tokens times heads of a group in one program; `keys`: in one
    step of its loop. The others are Triton's."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# For 16-bit numbers from Ampere on: `DECODE` measured best on an H200 (`card_kernels.py --tiles`),
# `PROMPT` needs no more registers than there are. Elsewhere larger tiles spill: `SMALL`.
DECODE, PROMPT, SMALL = Tiles(16, 64, 2, 3), Tiles(64, 32, 8, 2), Tiles(16, 16, 4, 1)
PROGRAMS = 512  # as many as keep a large card busy: 132 multiprocessors, some four on each
MOST_SEGMENTS = 32


@cache
def cut(dtype: torch.dtype, device: torch.device, is_decode: bool) -> Tiles:
    """How the work is cut, where the caller does not say."""
    if device.type == "cuda" and (
        dtype == torch.float32 or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return SMALL
    return DECODE if is_decode else PROMPT


def unified_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    is_decode: bool,
    tiles: Tiles | None = None,
    segments: int | None = None,
) -> Tensor:
    """Attention for all requests of a flat batch.

    Args:
        query: [T, H, D]
        key_cache: [num_blocks, block_size, H_kv, D], of one layer.
        value_cache: as `key_cache`.
        query_start_loc: int64 [B + 1], where each request's tokens begin in the batch.
        seq_lens: int64 [B], each request's tokens so far, these included; 0: the row is not used.
        block_tables: int64 [B, most blocks]
        scale: what scores are multiplied by, usually `D ** -0.5`.
        is_decode: each request has one token. The kernel then needs no search for its request.
        tiles: how the work is cut; None: see `cut`.
        segments: stretches of keys per request with one token; None: as many as keep a card busy.

    Returns:
        [T, H, D]
    """
    query = query.contiguous()
    num_tokens, heads, size = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    tiles = tiles or cut(query.dtype, query.device, is_decode)
    group = heads // kv_heads
    rows = max(tiles.rows, triton.next_power_of_2(group))
    of_tile = rows // group
    requests = len(seq_lens)
    grid = (requests if is_decode else num_tokens // of_tile + requests, kv_heads)
    if segments is None:
        segments = 1
        longest = -(-block_tables.shape[1] * block_size // tiles.keys)  # tiles
        while is_decode and segments < min(MOST_SEGMENTS, longest):
            if grid[0] * kv_heads * segments >= PROGRAMS:
                break
            segments *= 2
    out = torch.empty_like(query)
    partial = [out, out, out]
    if segments > 1:
        shape = (num_tokens, heads, segments)
        partial = [
            torch.empty(part, dtype=torch.float32, device=query.device)
            for part in ((*shape, size), shape, shape)
        ]
    padded_size = max(16, triton.next_power_of_2(size))  # `tl.dot` takes no less
    unified_attention_kernel[(*grid, segments)](
        out,
        *partial,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        query_start_loc,
        scale * LOG2_E,
        requests,
        block_tables.stride(0),
        heads,
        kv_heads,
        size,
        padded_size,
        block_size,
        rows,
        of_tile,
        tiles.keys,
        segments,
        is_decode,
        "ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if segments > 1:
        merge_segments_kernel[(requests, heads)](
            out, *partial, seq_lens, heads, size, padded_size, tiles.keys, segments, num_warps=1
        )
    return out


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """As `attention/paged_attention.py`'s."""
    query_start_loc, seq_lens, tables = metadata.as_tensors
    is_decode = len(query) == len(metadata.query_lens)
    return unified_attention(
        query, key_cache, value_cache, query_start_loc, seq_lens, tables, scale, is_decode
    )
