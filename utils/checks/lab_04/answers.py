"""One right answer for each exercise, as in the solution; known mistakes are edits of these."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from utils.engine.core.kv_cache_utils import KVCacheBlock


def slot_mapping(block_ids: list[int], block_size: int, start: int, end: int) -> list[int]:
    if end > len(block_ids) * block_size:
        raise ValueError(f"{len(block_ids)} blocks of {block_size} cannot hold {end} tokens")
    slots = []
    for position in range(start, end):
        block = block_ids[position // block_size]
        slots.append(block * block_size + position % block_size)
    return slots


class BlockPool:
    def __init__(self, num_gpu_blocks: int) -> None:
        self.free_block_queue = deque(KVCacheBlock(i) for i in range(num_gpu_blocks))

    def get_num_free_blocks(self) -> int:
        return len(self.free_block_queue)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"{num_blocks} blocks wanted, {self.get_num_free_blocks()} are free")
        blocks = [self.free_block_queue.popleft() for _ in range(num_blocks)]
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: list[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                raise ValueError(f"block {block.block_id} is free and cannot be shared")
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: list[KVCacheBlock]) -> None:
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError(f"block {block.block_id} is freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)


def allocate_slots(
    block_pool: BlockPool, block_table: list[KVCacheBlock], num_tokens: int, block_size: int
) -> list[KVCacheBlock] | None:
    num_new_blocks = max(0, math.ceil(num_tokens / block_size) - len(block_table))
    if num_new_blocks > block_pool.get_num_free_blocks():
        return None
    new_blocks = block_pool.get_new_blocks(num_new_blocks)
    block_table.extend(new_blocks)
    return new_blocks


def counts_after(
    num_prompt_tokens: int, num_steps: int, block_size: int
) -> tuple[int, int, int, int]:
    num_tokens = num_prompt_tokens + num_steps
    num_computed_tokens = num_tokens - 1
    num_blocks = math.ceil(num_computed_tokens / block_size)
    return num_tokens, num_computed_tokens, num_blocks * block_size, num_blocks


def fork(block_pool: BlockPool, block_table: list[KVCacheBlock]) -> list[KVCacheBlock]:
    block_pool.touch(block_table)
    return list(block_table)


def copy_on_write(
    block_pool: BlockPool, block_table: list[KVCacheBlock], start: int, end: int, block_size: int
) -> list[tuple[int, int]] | None:
    written = {position // block_size for position in range(start, end)}
    shared = [i for i, block in enumerate(block_table) if i in written and block.ref_cnt > 1]
    if len(shared) > block_pool.get_num_free_blocks():
        return None
    copies = []
    for i, new in zip(shared, block_pool.get_new_blocks(len(shared)), strict=True):
        old = block_table[i]
        block_table[i] = new
        block_pool.free_blocks([old])
        copies.append((old.block_id, new.block_id))
    return copies


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: list[int],
    seq_len: int,
    scale: float,
) -> Tensor:
    num_queries, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    query_positions = torch.arange(seq_len - num_queries, seq_len)
    largest = torch.full((num_heads, num_queries), -torch.inf)
    total = torch.zeros(num_heads, num_queries)
    weighted = torch.zeros(num_heads, num_queries, head_dim)
    for begin in range(0, seq_len, block_size):
        block = block_table[begin // block_size]
        size = min(block_size, seq_len - begin)
        key = key_cache[block, :size].repeat_interleave(num_heads // num_kv_heads, dim=1)
        value = value_cache[block, :size].repeat_interleave(num_heads // num_kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * scale  # [H, T_q, size]
        hidden = torch.arange(begin, begin + size) > query_positions[:, None]
        scores = scores.masked_fill(hidden, -torch.inf)
        larger = torch.maximum(largest, scores.amax(dim=-1))
        shrink = torch.exp(largest - larger)
        weights = torch.exp(scores - larger[..., None])
        total = total * shrink + weights.sum(dim=-1)
        weighted = weighted * shrink[..., None] + torch.einsum("hqk,khd->hqd", weights, value)
        largest = larger
    return (weighted / total[..., None]).transpose(0, 1)
