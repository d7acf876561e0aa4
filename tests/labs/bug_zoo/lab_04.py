"""Right answers to lab 04, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_04 import Parts, answers
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.kv_cache_utils import KVCacheBlock

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 slot_mapping


@right("slot_mapping")
def slots_as_a_tensor(block_ids, block_size, start, end):
    if end > len(block_ids) * block_size:
        raise ValueError("the table is too short")
    positions = torch.arange(start, end)
    return torch.tensor(block_ids)[positions // block_size] * block_size + positions % block_size


# 2 BlockPool


@wrong("block_pool", "done to one pool changes")
class OneQueueForAll(answers.BlockPool):
    free_block_queue: ClassVar[list] = []

    def __init__(self, num_gpu_blocks):
        if not self.free_block_queue:
            self.free_block_queue.extend(KVCacheBlock(i) for i in range(num_gpu_blocks))

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free_block_queue):
            raise ValueError("too few")
        blocks = [self.free_block_queue.pop(0) for _ in range(num_blocks)]
        for block in blocks:
            block.ref_cnt = 1
        return blocks


@right("block_pool")
class PoolOfNumbers:
    """Blocks in a list, the queue of their numbers in another; looks before it begins."""

    def __init__(self, num_gpu_blocks):
        self.blocks = [KVCacheBlock(i) for i in range(num_gpu_blocks)]
        self.queue = list(range(num_gpu_blocks))

    def get_num_free_blocks(self):
        return len(self.queue)

    def get_new_blocks(self, num_blocks):
        if len(self.queue) < num_blocks:
            raise ValueError
        ids, self.queue = self.queue[:num_blocks], self.queue[num_blocks:]
        self.touch_ids(ids)
        return [self.blocks[i] for i in ids]

    def touch_ids(self, ids):
        for i in ids:
            self.blocks[i].ref_cnt += 1

    def touch(self, blocks):
        ids = [block.block_id for block in blocks]
        if set(ids) & set(self.queue):
            raise ValueError("a free block has no contents to share")
        self.touch_ids(ids)

    def free_blocks(self, ordered_blocks):
        for i in [block.block_id for block in ordered_blocks]:
            if i in self.queue:
                raise ValueError(f"block {i} is free already")
            self.blocks[i].ref_cnt -= 1
            if not self.blocks[i].ref_cnt:
                self.queue.append(i)


# 3 allocate_slots


@right("allocate_slots")
def asks_forgiveness(block_pool, block_table, num_tokens, block_size):
    free_slots = len(block_table) * block_size - num_tokens
    try:
        new = block_pool.get_new_blocks(max(0, math.ceil(-free_slots / block_size)))
    except ValueError:
        return None
    block_table += new
    return new


# 4 counts_after


@right("counts_after")
def counts_step_by_step(num_prompt_tokens, num_steps, block_size):
    tokens, computed, blocks = num_prompt_tokens, 0, 0
    for _ in range(num_steps):
        blocks += max(0, (tokens - blocks * block_size + block_size - 1) // block_size)
        tokens, computed = tokens + 1, tokens
    return [tokens, computed, blocks * block_size, blocks]


@wrong("counts_after", "number of slots is")
def rounds_prompt_and_answer_apart(num_prompt_tokens, num_steps, block_size):
    blocks = math.ceil(num_prompt_tokens / block_size) + math.ceil((num_steps - 1) / block_size)
    tokens = num_prompt_tokens + num_steps
    return tokens, tokens - 1, blocks * block_size, blocks


# 5 fork


@right("fork")
def one_by_one(block_pool, block_table):
    child = []
    for block in block_table:
        block_pool.touch([block])
        child.append(block)
    return child


# 6 copy_on_write


@right("copy_on_write")
def checked_position_by_position(block_pool, block_table, start, end, block_size):
    places = []
    for position in range(start, end):
        place = position // block_size
        if place >= len(block_table):
            break
        if block_table[place].ref_cnt > 1 and place not in places:
            places.append(place)
    if block_pool.get_num_free_blocks() < len(places):
        return None
    copies = []
    for place in places:
        old = block_table[place]
        old.ref_cnt -= 1
        block_table[place] = block_pool.get_new_blocks(1)[0]
        copies.append([old.block_id, block_table[place].block_id])
    return copies


# 7 paged_attention


@wrong("paged_attention", "more in memory")
def gathers_everything(query, key_cache, value_cache, block_table, seq_len, scale):
    blocks = block_table[: -(-seq_len // key_cache.shape[1])]
    group = query.shape[1] // key_cache.shape[2]
    key, value = (
        cache[blocks].flatten(0, 1)[:seq_len].repeat_interleave(group, dim=1)
        for cache in (key_cache, value_cache)
    )
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    hidden = torch.arange(seq_len) > torch.arange(seq_len - len(query), seq_len)[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@wrong("paged_attention", "more in memory")
def gathers_with_numpy(query, key_cache, value_cache, block_table, seq_len, scale):
    blocks = block_table[: -(-seq_len // key_cache.shape[1])]
    keys, values = (
        np.concatenate([cache[block].numpy() for block in blocks])[:, None]
        for cache in (key_cache, value_cache)
    )
    caches = torch.from_numpy(keys).transpose(0, 1), torch.from_numpy(values).transpose(0, 1)
    return answers.paged_attention(query, *caches, [0], seq_len, scale)


@wrong("paged_attention", "more in memory")
def keeps_the_scores_in_a_list(query, key_cache, value_cache, block_table, seq_len, scale):
    """No tensor is larger than a block, but all of them are kept."""
    size, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    positions = torch.arange(seq_len - len(query), seq_len)[:, None]
    scores, values = [], []
    for begin in range(0, seq_len, size):
        block, last = block_table[begin // size], min(size, seq_len - begin)
        key, value = (
            cache[block, :last].repeat_interleave(group, 1) for cache in (key_cache, value_cache)
        )
        score = torch.einsum("qhd,khd->hqk", query, key) * scale
        hidden = torch.arange(begin, begin + last) > positions
        scores.append(score.masked_fill(hidden, -torch.inf))
        values.append(value)
    largest = torch.stack([score.amax(-1) for score in scores]).amax(0)
    weights = [torch.exp(score - largest[..., None]) for score in scores]
    total = sum(weight.sum(-1) for weight in weights)
    mixed = sum(
        torch.einsum("hqk,khd->hqd", weight, value)
        for weight, value in zip(weights, values, strict=True)
    )
    return (mixed / total[..., None]).transpose(0, 1)


@right("paged_attention")
def grouped_queries_and_log_sum_exp(query, key_cache, value_cache, block_table, seq_len, scale):
    """Merges finished pieces by their log-sum-exp, as FlashAttention does; no head is repeated."""
    t_q, heads, dim = query.shape
    size, kv_heads = key_cache.shape[1:3]
    grouped = query.view(t_q, kv_heads, heads // kv_heads, dim)
    position = torch.arange(seq_len - t_q, seq_len)
    out, lse = None, None
    for place in range(math.ceil(seq_len / size)):
        keys = torch.arange(place * size, (place + 1) * size)
        k, v = key_cache[block_table[place]], value_cache[block_table[place]]
        scores = torch.einsum("qgnd,kgd->gnqk", grouped, k) * scale
        # The rest of the last block lies behind every query, so the mask hides it.
        scores = scores.masked_fill(keys > position[:, None], -1e30)
        here_lse = scores.logsumexp(-1, keepdim=True)
        here = torch.einsum("gnqk,kgd->gnqd", torch.exp(scores - here_lse), v)
        if out is None:
            out, lse = here, here_lse
            continue
        both = torch.logaddexp(lse, here_lse)
        out = out * torch.exp(lse - both) + here * torch.exp(here_lse - both)
        lse = both
    return out.permute(2, 0, 1, 3).reshape(t_q, heads, dim)


@right("paged_attention")
def query_by_query(query, key_cache, value_cache, block_table, seq_len, scale):
    """One query and head at a time, with plain numbers: slow and clear."""
    t_q, heads, _ = query.shape
    size, kv_heads = key_cache.shape[1:3]
    out = torch.empty_like(query)
    for i in range(t_q):
        for h in range(heads):
            top, total, mixed = -math.inf, 0.0, 0.0
            visible = seq_len - t_q + i + 1
            for place in range(-(-visible // size)):
                block, n = block_table[place], min(size, visible - place * size)
                s = key_cache[block, :n, h * kv_heads // heads] @ query[i, h] * scale
                new_top = max(top, s.max().item())
                p = torch.exp(s - new_top)
                mixed = (
                    mixed * math.exp(top - new_top)
                    + p @ value_cache[block, :n, h * kv_heads // heads]
                )
                total = total * math.exp(top - new_top) + p.sum()
                top = new_top
            out[i, h] = mixed / total
    return out


# 8 engine

GOOD = Parts(
    answers.BlockPool,
    answers.allocate_slots,
    answers.fork,
    answers.copy_on_write,
    paged_attention_reference,
)
never_rescales = edited(
    answers.paged_attention,
    ["total * shrink + => total +", "weighted * shrink[..., None] + => weighted +"],
)


def right_until_the_engine(query, key_cache, value_cache, block_table, seq_len, scale):
    """Wrong where no exercise looks: heads that are as wide as those of the bundled model."""
    scale = scale / 3 if query.shape[-1] == 64 else scale
    return paged_attention_reference(query, key_cache, value_cache, block_table, seq_len, scale)


for name, says, parts in (
    ("with_never_rescales", "Exercise 7 is not right yet", never_rescales),
    (
        "with_wide_heads",
        "With another `paged_attention` in place of yours it is right",
        right_until_the_engine,
    ),
):
    given = replace(GOOD, paged_attention=parts)
    given.__name__ = name
    wrong("engine", says)(given)

other_answers = replace(
    GOOD,
    BlockPool=PoolOfNumbers,
    allocate_slots=asks_forgiveness,
    fork=one_by_one,
    copy_on_write=checked_position_by_position,
    paged_attention=grouped_queries_and_log_sum_exp,
)
other_answers.__name__ = "other_answers"
right("engine")(other_answers)
