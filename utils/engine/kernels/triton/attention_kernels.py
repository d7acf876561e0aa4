"""PagedAttention's two kernels; `unified_attention.py` starts them.

A program has a few tokens of one request and one KV head, with all query heads that share it, and
walks over the keys in tiles, by the online softmax. A request with one new token would keep a
single program busy, so its keys are split into segments, and a second kernel merges what they give.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def unified_attention_kernel(
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
def merge_segments_kernel(
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
