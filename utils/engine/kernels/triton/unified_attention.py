"""PagedAttention: one kernel for prompts of all lengths and for single tokens.

It follows the block tables, so nothing is gathered. In vLLM: `kernel_unified_attention` and
`reduce_segments`, in `v1/attention/ops/triton_unified_attention.py`.

A program has a few tokens of one request and one KV head, with all query heads that share it, and
walks over the keys in tiles, by the online softmax. A request with one new token would keep a
single program busy, so its keys are split into segments, and a second kernel merges what they give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from utils.engine.attention.paged_attention import AttentionMetadata

LOG2_E = 1.4426950408889634  # cards compute powers of 2


@dataclass(frozen=True)
class Tiles:
    """How the work is cut. `rows`: tokens times heads of a group in one program; `keys`: in one
    step of its loop. The others are Triton's."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


DECODE, PROMPT = Tiles(16, 64, 2, 3), Tiles(64, 64, 4, 2)
PROGRAMS = 512  # as many as keep a large card busy: 132 multiprocessors, some four on each
MOST_SEGMENTS = 32


@triton.jit
def _find_request(query_start_loc, tile, num_requests, tokens_of_tile: tl.constexpr):
    """The request of a tile. Request i's tiles begin at `start // tokens_of_tile + i`, so that
    each has room for its last, partly filled one."""
    low = 0
    high = num_requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // tokens_of_tile + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _unified_attention_kernel(
    out,
    weighted_out,
    largest_out,
    total_out,
    query,
    keys,
    values,
    block_tables,
    seq_lens,
    query_start_loc,
    scale,
    num_requests,
    table_stride,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    block_size: tl.constexpr,
    rows: tl.constexpr,
    tokens_of_tile: tl.constexpr,
    tile_keys: tl.constexpr,
    segments: tl.constexpr,
    is_decode: tl.constexpr,
    precision: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)
    group: tl.constexpr = heads // kv_heads
    if is_decode:
        request = tile
        begin = tile.to(tl.int64)
        query_len = 1
        tile_of_request = 0
    else:
        request = _find_request(query_start_loc, tile, num_requests, tokens_of_tile)
        begin = tl.load(query_start_loc + request)
        query_len = (tl.load(query_start_loc + request + 1) - begin).to(tl.int32)
        tile_of_request = tile - (begin // tokens_of_tile + request).to(tl.int32)
    seq_len = tl.load(seq_lens + request).to(tl.int32)
    if tile_of_request * tokens_of_tile >= query_len:
        return
    row = tl.arange(0, rows)
    token = tile_of_request * tokens_of_tile + row // group
    head = kv_head * group + row % group
    is_row = (row < tokens_of_tile * group) & (token < query_len)
    place = tl.arange(0, padded_size)
    in_head = place < size
    row_of_out = (begin + token) * heads + head
    q = tl.load(
        query + row_of_out[:, None] * size + place[None, :],
        mask=is_row[:, None] & in_head[None, :],
        other=0.0,
    )
    position = seq_len - query_len + token
    # A key that no row of this tile sees is not read.
    visible = seq_len - query_len + tl.minimum((tile_of_request + 1) * tokens_of_tile, query_len)
    num_tiles = (visible + tile_keys - 1) // tile_keys
    first_tile = 0
    if segments > 1:
        of_segment = (num_tiles + segments - 1) // segments
        first_tile = segment * of_segment
        if first_tile >= num_tiles:
            return
        num_tiles = tl.minimum(num_tiles, first_tile + of_segment)

    largest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    weighted = tl.zeros([rows, padded_size], tl.float32)
    for key_tile in range(first_tile, num_tiles):
        key_position = key_tile * tile_keys + tl.arange(0, tile_keys)
        is_key = key_position < visible
        block = tl.load(
            block_tables + request * table_stride + key_position // block_size, mask=is_key, other=0
        )
        slot = block.to(tl.int64) * block_size + key_position % block_size
        offset = (slot * kv_heads + kv_head) * size
        k = tl.load(
            keys + offset[None, :] + place[:, None],
            mask=in_head[:, None] & is_key[None, :],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=precision) * scale
        scores = tl.where(key_position[None, :] <= position[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        # A row may have seen no key yet: -inf minus -inf would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shrink = tl.exp2(largest - base)
        exponentials = tl.exp2(scores - base[:, None])
        v = tl.load(
            values + offset[:, None] + place[None, :],
            mask=is_key[:, None] & in_head[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(exponentials, axis=1)
        weighted = weighted * shrink[:, None]
        weighted += tl.dot(exponentials.to(v.dtype), v, input_precision=precision)
        largest = larger

    if segments > 1:
        target = row_of_out * segments + segment
        tl.store(largest_out + target, largest, mask=is_row)
        tl.store(total_out + target, total, mask=is_row)
        tl.store(
            weighted_out + target[:, None] * size + place[None, :],
            weighted,
            mask=is_row[:, None] & in_head[None, :],
        )
    else:
        total = tl.where(total == 0.0, 1.0, total)  # a row that only fills a graph's batch
        tl.store(
            out + row_of_out[:, None] * size + place[None, :],
            (weighted / total[:, None]).to(out.dtype.element_ty),
            mask=is_row[:, None] & in_head[None, :],
        )


@triton.jit
def _merge_segments_kernel(
    out,
    weighted_in,
    largest_in,
    total_in,
    seq_lens,
    heads: tl.constexpr,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    tile_keys: tl.constexpr,
    segments: tl.constexpr,
):
    """Partial softmaxes, each relative to its own largest score, become one."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    seq_len = tl.load(seq_lens + request).to(tl.int32)
    num_tiles = (seq_len + tile_keys - 1) // tile_keys
    of_segment = tl.maximum((num_tiles + segments - 1) // segments, 1)
    segment = tl.arange(0, segments)
    is_used = segment * of_segment < num_tiles
    place = tl.arange(0, padded_size)
    in_head = place < size
    row = request * heads + head
    largest = tl.load(largest_in + row * segments + segment, mask=is_used, other=float("-inf"))
    best = tl.max(largest, axis=0)
    best = tl.where(best == float("-inf"), 0.0, best)
    weight = tl.exp2(largest - best)
    total = tl.load(total_in + row * segments + segment, mask=is_used, other=0.0)
    weighted = tl.load(
        weighted_in + (row * segments + segment)[:, None] * size + place[None, :],
        mask=is_used[:, None] & in_head[None, :],
        other=0.0,
    )
    total_sum = tl.sum(total * weight, axis=0)
    total_sum = tl.where(total_sum == 0.0, 1.0, total_sum)
    merged = tl.sum(weighted * weight[:, None], axis=0) / total_sum
    tl.store(out + row * size + place, merged.to(out.dtype.element_ty), mask=in_head)


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
        tiles: how the work is cut; None: `DECODE` or `PROMPT`.
        segments: stretches of keys per request with one token; None: as many as keep a card busy.

    Returns:
        [T, H, D]
    """
    query = query.contiguous()
    num_tokens, heads, size = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    tiles = tiles or (DECODE if is_decode else PROMPT)
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
    _unified_attention_kernel[(*grid, segments)](
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
        _merge_segments_kernel[(requests, heads)](
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
