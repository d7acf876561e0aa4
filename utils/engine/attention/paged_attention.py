"""Attention over keys and values that lie in blocks: the reference to read, and the fast path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from utils.engine.attention.attention import attention
from utils.engine.attention.tree_attention import tree_attention

# Keys and values that are gathered at a time. On a CPU they should stay in its cache until used.
GATHERED_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the tokens of a flat batch belong, and where their keys and values lie.

    Args:
        query_lens: how many of the batch's T tokens belong to each request, in order.
        seq_lens: how many tokens each request has so far, these included.
        block_tables: for each request, int64 [blocks], the blocks that hold its tokens.
        slot_mapping: int64 [T], where in the flat KV memory each token of the batch goes.
        tree_masks: for requests whose new tokens are a tree of guesses, by index: bool
            [query_len, query_len], which of the new tokens see which (see `tree_attention_mask`).
    """

    query_lens: list[int]
    seq_lens: list[int]
    block_tables: list[Tensor]
    slot_mapping: Tensor
    tree_masks: dict[int, Tensor] = field(default_factory=dict)
    # What `as_tensors` gives, where it was made with the rest: see `paged_batch`.
    tensors: tuple[Tensor, Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    # Found by the first layer, and used by all: see `_decode_groups`.
    decode_groups: list[DecodeGroup] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def as_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a kernel takes: query_start_loc [B + 1], seq_lens [B], and the block tables, padded
        to [B, most blocks]; all int64."""
        if self.tensors is not None:
            return self.tensors
        tables = pad_sequence(self.block_tables, batch_first=True)
        query_start_loc = tables.new_tensor([0, *accumulate(self.query_lens)])
        return query_start_loc, tables.new_tensor(self.seq_lens), tables


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of similar length, with one new token each: one call attends for all G of them.

    Args:
        rows: int64 [G], their rows in the flat batch.
        block_table: int64 [G * blocks], their tables one after the other, padded to equal length.
        mask: [G, 1, 1, blocks * block_size], 0 for the request's tokens, -inf beyond its end.
    """

    rows: Tensor
    block_table: Tensor
    mask: Tensor


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Sequence[int],
    seq_len: int,
    scale: float,
) -> Tensor:
    """Attention for one request, block after block, never looking at two blocks at once.

    Softmax needs the sum over all keys, which is not known until the last block. The online
    softmax keeps, for each query and head, the largest score so far, the sum of exponentials
    relative to it, and the weighted sum of values. A block with a larger score shrinks what came
    before. Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Kwon et al.
    2023, "PagedAttention", section 4.1.

    Args:
        query: [T_q, H, D], the queries of the request's last T_q tokens.
        key_cache: [num_blocks, block_size, H_kv, D], the keys of all requests in one layer.
        value_cache: [num_blocks, block_size, H_kv, D]
        block_table: the blocks that hold the request's tokens, in order.
        seq_len: how many tokens it has, the T_q included.
        scale: what scores are multiplied by, usually `D ** -0.5`.

    Returns:
        [T_q, H, D]
    """
    num_queries, num_heads, _ = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    query_positions = torch.arange(seq_len - num_queries, seq_len, device=query.device)
    largest = torch.full((num_heads, num_queries), -torch.inf, device=query.device)
    total = torch.zeros_like(largest)  # sum of exp(score - largest)
    weighted = torch.zeros(num_heads, num_queries, query.shape[2], device=query.device)
    for begin in range(0, seq_len, block_size):
        block = block_table[begin // block_size]
        size = min(block_size, seq_len - begin)
        # [size, H_kv, D] -> [size, H, D]: the heads of a group share their keys and values.
        key, value = (
            cache[block, :size].repeat_interleave(num_heads // num_kv_heads, dim=1).float()
            for cache in (key_cache, value_cache)
        )
        scores = torch.einsum("qhd,khd->hqk", query.float(), key) * scale  # [H, T_q, size]
        key_positions = torch.arange(begin, begin + size, device=query.device)
        scores.masked_fill_(key_positions > query_positions[:, None], -torch.inf)
        larger = torch.maximum(largest, scores.amax(dim=-1))  # [H, T_q]
        # The first block holds position 0, which every query sees: `larger` is finite from then on.
        shrink = torch.exp(largest - larger)
        exponentials = torch.exp(scores - larger[..., None])
        total = total * shrink + exponentials.sum(dim=-1)
        weighted = weighted * shrink[..., None] + torch.einsum("hqk,khd->hqd", exponentials, value)
        largest = larger
    return (weighted / total[..., None]).transpose(0, 1).to(query.dtype)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    attend_one: Callable[[Tensor, Tensor, Tensor, float], Tensor] = attention,
) -> Tensor:
    """Attention for all requests of a flat batch, on PyTorch's fused kernels.

    Blocks are gathered for a moment, into memory small enough for the processor's cache. A GPU
    kernel follows the block table instead.

    Args:
        query: [T, H, D], all requests' queries, one request after the other.
        key_cache: [num_blocks, block_size, H_kv, D], the keys of all requests in one layer.
        value_cache: [num_blocks, block_size, H_kv, D]
        metadata: which tokens are whose.
        scale: what scores are multiplied by, usually `D ** -0.5`.
        attend_one: attention for one request over its gathered keys and values. Left as it is,
            requests with one new token are attended to many at a time.

    Returns:
        [T, H, D]
    """
    if len(metadata.query_lens) == 1 and not metadata.tree_masks:
        key, value = _gather(key_cache, value_cache, metadata, 0)
        return attend_one(query, key, value, scale)
    output = torch.empty_like(query)
    at_once = attend_one is attention
    if at_once and not metadata.decode_groups and 1 in metadata.query_lens:
        metadata.decode_groups.extend(_decode_groups(metadata, key_cache))
    for group in metadata.decode_groups if at_once else ():
        size, _, _, length = group.mask.shape
        key, value = (  # [G, H_kv, length, D]
            cache.index_select(0, group.block_table)
            .view(size, length, *cache.shape[2:])
            .transpose(1, 2)
            for cache in (key_cache, value_cache)
        )
        # As in `attention`, the heads of a group pose as the positions of a sequence.
        grouped = query[group.rows].view(size, key.shape[1], -1, query.shape[2])
        out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=group.mask, scale=scale)
        output[group.rows] = out.reshape(size, *query.shape[1:])

    end = 0
    for i, query_len in enumerate(metadata.query_lens):
        start, end = end, end + query_len
        if i in metadata.tree_masks:
            key, value = _gather(key_cache, value_cache, metadata, i)
            mask = metadata.tree_masks[i]
            output[start:end] = tree_attention(query[start:end], key, value, mask, scale)
        elif query_len > 1 or not at_once:
            key, value = _gather(key_cache, value_cache, metadata, i)
            output[start:end] = attend_one(query[start:end], key, value, scale)
    return output


def _gather(
    key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, i: int
) -> tuple[Tensor, Tensor]:
    """The keys and values of request `i` in a row, each [seq_len, H_kv, D]."""
    table, seq_len = metadata.block_tables[i], metadata.seq_lens[i]
    key = key_cache.index_select(0, table).flatten(0, 1)[:seq_len]
    value = value_cache.index_select(0, table).flatten(0, 1)[:seq_len]
    return key, value


def _decode_groups(metadata: AttentionMetadata, key_cache: Tensor) -> list[DecodeGroup]:
    """Put requests with one new token into groups, as large as the gathered keys may be."""
    block_size = key_cache.shape[1]
    budget = GATHERED_BYTES[key_cache.device.type] // (2 * key_cache[0].nbytes)  # blocks
    rows = [end - 1 for end in accumulate(metadata.query_lens)]
    decodes = [i for i, query_len in enumerate(metadata.query_lens) if query_len == 1]
    decodes.sort(key=lambda i: metadata.seq_lens[i])
    groups = []
    while decodes:
        longest = len(metadata.block_tables[decodes[-1]])
        size = max(torch.get_num_threads(), budget // longest)  # a request for every thread
        decodes, group = decodes[:-size], decodes[-size:]
        tables = pad_sequence([metadata.block_tables[i] for i in group], batch_first=True)
        seq_lens = tables.new_tensor([metadata.seq_lens[i] for i in group])
        positions = torch.arange(longest * block_size, device=tables.device)
        beyond = positions >= seq_lens[:, None, None, None]
        mask = torch.zeros(beyond.shape, dtype=key_cache.dtype, device=tables.device)
        groups.append(
            DecodeGroup(
                tables.new_tensor([rows[i] for i in group]),
                tables.flatten(),
                mask.masked_fill_(beyond, -torch.inf),
            )
        )
    return groups
