"""Wrong and right answers to lab 04, each as a learner might write it.

The known mistakes of the checks are wrong answers, too; `tests/checks/lab_04` has those.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import ClassVar

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_04 import right_parts
from utils.checks.lab_04.learners_parts import Parts
from utils.checks.lab_04.right_parts import Pool, allocate_slots, copy_on_write, fork
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.block_pool import BlockPool as EnginePool
from utils.engine.core.kv_cache_utils import KVCacheBlock

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def named(name, answer):
    answer.__name__ = name
    return answer


def function(name, parameters, body):
    scope = vars(right_parts) | globals()
    exec(f"def {name}({parameters}):\n" + textwrap.indent(body.strip(), "    "), scope)
    return scope[name]


def functions(exercise, parameters, *wrong_ones):
    """A name, words that the feedback must contain, the code."""
    for name, says, body in wrong_ones:
        wrong(exercise, says)(function(name, parameters, body))


def pools(method, parameters, *wrong_ones):
    """The right pool with another method: a name, words, the code."""
    for name, says, body in wrong_ones:
        changes = {"__module__": __name__, method: function(method, parameters, body)}
        wrong("block_pool", says)(type(name, (Pool,), changes))


# 1 slot_mapping

GUARD = "if end > len(t) * s: raise ValueError('too short')\n"
SLOTS = "return [t[p // s] * s + p % s for p in range(start, end)]"
EVERY = "every = [b * s + i for b in t for i in range(s)]\n"
functions(
    "slot_mapping",
    "t, s, start, end",
    ("one_too_high", "not the slots where the tokens lie", GUARD + SLOTS.replace("% s", "% s + 1")),
    ("short_table_wraps", "does not complain", EVERY + "return every[start:end]"),
    ("refuses_a_full_table", "raised ValueError", GUARD.replace(">", ">=") + SLOTS),
    ("slot_of_one", "raised IndexError", GUARD + "return t[start // s] * s + start % s"),
    (
        "slots_as_floats",
        "Expected a list of slots, as ints",
        GUARD + "return [t[p // s] * s + p % s / 1 for p in range(start, end)]",
    ),
    (
        "notices_only_in_the_loop",
        "table is too short",
        """
slots = []
for p in range(start, end):
    if p // s >= len(t): raise ValueError
    slots.append(t[p // s] * s + p % s)
return slots""",
    ),
)


@right("slot_mapping")
def slots_with_divmod(block_ids, block_size, start, end):
    if end > len(block_ids) * block_size:
        raise ValueError("the table is too short")
    found = []
    for position in range(start, end):
        place, offset = divmod(position, block_size)
        found.append(block_ids[place] * block_size + offset)
    return found


@right("slot_mapping")
def slots_as_a_tensor(block_ids, block_size, start, end):
    if end > len(block_ids) * block_size:
        raise ValueError("the table is too short")
    positions = torch.arange(start, end)
    return torch.tensor(block_ids)[positions // block_size] * block_size + positions % block_size


# 2 BlockPool

pools(
    "touch",
    "self, blocks",
    (
        "TouchDoesNothing",
        "`touch` does not raise",
        "if any(b.ref_cnt == 0 for b in blocks): raise ValueError('free')",
    ),
    ("TouchSetsToTwo", "`touch` does not raise", "for b in blocks: b.ref_cnt = 2"),
    ("TouchesFreeBlocks", "free block is touched", "for b in blocks: b.ref_cnt += 1"),
    (
        "RevivesFreeBlocks",
        "free block is touched",
        """
for b in blocks:  # as prefix caching does; but here nobody knows what a free block holds
    if b.ref_cnt == 0: self.queue.remove(b)
    b.ref_cnt += 1""",
    ),
)
BEHIND = "must be as they were (not in the queue twice)"
pools(
    "free_blocks",
    "self, ordered_blocks",
    (
        "AllowsDoubleFree",
        "freed twice, and the pool does not notice",
        """
for b in ordered_blocks:
    b.ref_cnt = max(0, b.ref_cnt - 1)
    if b.ref_cnt == 0: self.queue.append(b)""",
    ),
    (
        "CountsBelowZero",
        "freed twice, and the pool does not notice",
        """
for b in ordered_blocks:
    b.ref_cnt -= 1
    if b.ref_cnt == 0: self.queue.append(b)""",
    ),
    (
        "QueuesBeforeItRefuses",
        BEHIND,
        """
for b in ordered_blocks:
    b.ref_cnt -= 1
    if b.ref_cnt <= 0: self.queue.append(b)
    if b.ref_cnt < 0:
        b.ref_cnt = 0
        raise ValueError('freed twice')""",
    ),
    (
        "GoesOnAfterAnError",
        BEHIND,
        """
bad = 0
for b in ordered_blocks:
    if b.ref_cnt: self.drop(b)
    else: bad += 1
if bad: raise ValueError('freed twice')""",
    ),
)
pools(
    "get_new_blocks",
    "self, n",
    (
        "GivesWhatItHas",
        "does not complain",
        "return Pool.get_new_blocks(self, min(n, len(self.queue)))",
    ),
    (
        "ReturnsNoneWhenShort",
        "does not complain",
        "return None if n > len(self.queue) else Pool.get_new_blocks(self, n)",
    ),
    (
        "RunsIntoTheEnd",
        "IndexError: pop from empty list. Expected a ValueError",
        """
blocks = [self.queue.pop(0) for _ in range(n)]
for b in blocks: b.ref_cnt = 1
return blocks""",
    ),
    (
        "DoesNotCountTheFirstHolder",
        "handed out has one holder",
        """
if n > len(self.queue): raise ValueError('too few')
return [self.queue.pop(0) for _ in range(n)]""",
    ),
    (
        "KeepsOneBack",
        "raised ValueError",
        """
if n >= len(self.queue): raise ValueError('too few')
return Pool.get_new_blocks(self, n)""",
    ),
    (
        "HandsOutNumbers",
        "expected a list of KVCacheBlock",
        "return [b.block_id for b in Pool.get_new_blocks(self, n)]",
    ),
    (
        "SlicesWithMinusZero",
        "returned `1` blocks; expected `0`",
        """
if n > len(self.queue): raise ValueError('too few')
taken, self.queue = self.queue[-n:], self.queue[:-n]
for b in taken: b.ref_cnt = 1
return taken""",
    ),
)
pools(
    "__init__",
    "self, n",
    ("CountsFromOne", "do not exist", "self.queue = [KVCacheBlock(i + 1) for i in range(n)]"),
    (
        "KeepsANullBlock",
        "all its blocks free",
        "self.queue = [KVCacheBlock(i) for i in range(1, n)]",
    ),
)
pools(
    "get_num_free_blocks",
    "self",
    ("CountsAllBlocks", "number of free blocks is wrong", "return len(self.blocks)"),
)


@wrong("block_pool", "done to one pool changes")
class OneQueueForAll(Pool):
    queue: ClassVar[list] = []

    def __init__(self, num_gpu_blocks):
        if not self.queue:
            self.queue.extend(KVCacheBlock(i) for i in range(num_gpu_blocks))

    def get_new_blocks(self, n):
        if n > len(self.queue):
            raise ValueError("too few")
        blocks = [self.queue.pop(0) for _ in range(n)]
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


@right("block_pool")
class PoolOnTheEnginesQueue(EnginePool):
    """The engine's pool, with the queue in the order of this lab."""

    def touch(self, blocks):
        if not all(block.ref_cnt for block in blocks):
            raise ValueError("free")
        super().touch(blocks)

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt < 1:
                raise ValueError("freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append_n([block])


# 3 allocate_slots


def missing(num_tokens, table, size):
    return max(0, math.ceil(num_tokens / size) - len(table))


functions(
    "allocate_slots",
    "pool, table, n, size",
    (
        "returns_an_empty_list_when_short",
        "does not say so",
        "new = allocate_slots(pool, table, n, size)\nreturn [] if new is None else new",
    ),
    (
        "replaces_the_table",
        "were replaced",
        """
new = allocate_slots(pool, list(table), n, size)
if new: table[:] = new
return new""",
    ),
    (
        "lets_the_pool_complain",
        "no error here but daily life",
        """
new = pool.get_new_blocks(missing(n, table, size))
table.extend(new)
return new""",
    ),
    (
        "refuses_the_last_block",
        "means that there is no room",
        """
if missing(n, table, size) == pool.get_num_free_blocks(): return None
return allocate_slots(pool, table, n, size)""",
    ),
    (
        "returns_none_when_nothing_is_needed",
        "means that there is no room",
        "return allocate_slots(pool, table, n, size) or None",
    ),
    (
        "gives_blocks_back",
        "or are gone",
        """
while len(table) > math.ceil(n / size): pool.free_blocks([table.pop()])
return allocate_slots(pool, table, n, size)""",
    ),
)


@right("allocate_slots")
def in_whole_numbers(block_pool, block_table, num_tokens, block_size):
    needed = -(-num_tokens // block_size)
    missing = range(len(block_table), needed)
    if len(missing) > block_pool.get_num_free_blocks():
        return None
    first = len(block_table)
    for _ in missing:
        block_table += block_pool.get_new_blocks(1)
    return block_table[first:]


@right("allocate_slots")
def asks_forgiveness(block_pool, block_table, num_tokens, block_size):
    free_slots = len(block_table) * block_size - num_tokens
    try:
        new = block_pool.get_new_blocks(max(0, math.ceil(-free_slots / block_size)))
    except ValueError:
        return None
    block_table += new
    return new


# 4 fork

functions(
    "fork",
    "pool, table",
    ("same_list", "same list", "pool.touch(table)\nreturn table"),
    ("ref_count_not_raised", "No holder is counted", "return list(table)"),
    (
        "returns_numbers",
        "expected the child's table",
        "pool.touch(table)\nreturn [block.block_id for block in table]",
    ),
    ("forgets_to_return", "expected the child's table", "pool.touch(table)"),
)


@right("fork")
def one_by_one(block_pool, block_table):
    child = []
    for block in block_table:
        block_pool.touch([block])
        child.append(block)
    return child


@right("fork")
def sliced(block_pool, block_table):
    for block in (child := block_table[:]):
        block.ref_cnt += 1
    return child


# 5 copy_on_write


def places_of(table, start, end, size):
    last = min(len(table), math.ceil(end / size)) if start < end else 0
    return [i for i in range(start // size, last) if table[i].ref_cnt > 1]


functions(
    "copy_on_write",
    "pool, table, start, end, size",
    ("never_copies", "Copy-on-write is forgotten", "return []"),
    (
        "old_block_not_released",
        "That is a leak",
        """
places, copies = places_of(table, start, end, size), []
if len(places) > pool.get_num_free_blocks(): return None
for place in places:
    (new,) = pool.get_new_blocks(1)
    copies.append((table[place].block_id, new.block_id))
    table[place] = new
return copies""",
    ),
    ("returns_nothing", "too few blocks are free", "copy_on_write(pool, table, start, end, size)"),
    (
        "returns_blocks",
        "expected a list of pairs",
        """
before = list(table)
if copy_on_write(pool, table, start, end, size) is None: return None
return [(a, b) for a, b in zip(before, table, strict=True) if a is not b]""",
    ),
    (
        "places_in_place_of_blocks",
        "list of copies is not",
        """
places = places_of(table, start, end, size)
copies = copy_places(pool, table, places)
return copies and [(p, new) for p, (_, new) in zip(places, copies, strict=True)]""",
    ),
    (
        "leaves_out_what_is_overwritten",
        "list of copies is not",
        """
before = list(table)
copies = copy_on_write(pool, table, start, end, size)
whole = [b.block_id for i, b in enumerate(before) if start <= i * size and (i + 1) * size <= end]
return copies and [pair for pair in copies if pair[0] not in whole]""",
    ),
    (
        "looks_beyond_the_table",
        "IndexError",
        """
places = [i for i in range(start // size, math.ceil(end / size)) if table[i].ref_cnt > 1]
return copy_places(pool, table, places)""",
    ),
    (
        "shortage_is_an_error",
        "no error here but daily life",
        """
places = places_of(table, start, end, size)
pool.free_blocks(pool.get_new_blocks(len(places)))
return copy_places(pool, table, places)""",
    ),
    (
        "gives_up_silently",
        "does not say so",
        "copies = copy_on_write(pool, table, start, end, size)\nreturn copies or []",
    ),
    (
        "appends_the_copy",
        "now it has",
        """
copies = []
for place in places_of(table, start, end, size):
    (new,) = pool.get_new_blocks(1)
    copies.append((table[place].block_id, new.block_id))
    pool.free_blocks([table[place]])
    table.append(new)
return copies""",
    ),
    (
        "counts_the_copy_twice",
        "wrong number of holders",
        """
before = list(table)
copies = copy_on_write(pool, table, start, end, size)
pool.touch([b for a, b in zip(before, table, strict=True) if a is not b])
return copies""",
    ),
)


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


def slice_by_slice(block_pool, block_table, start, end, block_size):
    first, last = start // block_size, (end - 1) // block_size + 1
    shared = [b for b in block_table[first:last] if b.ref_cnt > 1 and start < end]
    try:
        new = block_pool.get_new_blocks(len(shared))
    except ValueError:
        return None, None
    left = iter(new)
    fresh = [next(left) if b in shared else b for b in block_table[first:last]]
    block_table[first : first + len(fresh)] = fresh
    block_pool.free_blocks(shared)
    return [b.block_id for b in shared], [b.block_id for b in fresh if b in new]


@right("copy_on_write")
def by_slices(*args):
    old, new = slice_by_slice(*args)
    return None if old is None else list(zip(old, new, strict=True))


@wrong("copy_on_write", "list of copies is not")
def pairs_with_a_block_that_stays(block_pool, block_table, start, end, block_size):
    """The first of the blocks that are written to now; but it need not be the shared one."""
    old, _ = slice_by_slice(block_pool, block_table, start, end, block_size)
    if old is None:
        return None
    return list(zip(old, [b.block_id for b in block_table[start // block_size :]], strict=False))


# 6 paged_attention


def gathered(key_cache, value_cache, block_table, seq_len, num_heads):
    group = num_heads // key_cache.shape[2]
    blocks = block_table[: -(-seq_len // key_cache.shape[1])]
    return [
        cache[blocks].flatten(0, 1)[:seq_len].repeat_interleave(group, dim=1)
        for cache in (key_cache, value_cache)
    ]


def attend(query, key, value, scale, hidden=None):
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    t_q, t_k = scores.shape[1:]
    causal = torch.arange(t_k) > torch.arange(t_k - t_q, t_k)[:, None]
    scores = scores.masked_fill(causal if hidden is None else hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def online(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_len,
    scale,
    *,
    rescale_sum=True,
    rescale_out=True,
    first_query=lambda seq_len, t_q: seq_len - t_q,
    cut=True,
    causal=True,
    repeat=None,
    divide=True,
    largest=torch.maximum,
):
    """Attention block by block, as a learner writes it, with one thing left out."""
    t_q, heads, _ = query.shape
    size, group = key_cache.shape[1], heads // key_cache.shape[2]
    first = first_query(seq_len, t_q)
    positions = torch.arange(first, first + t_q)
    top = torch.full((heads, t_q), float("-inf"))
    total, out = torch.zeros(heads, t_q), torch.zeros(query.shape).transpose(0, 1)
    for begin in range(0, seq_len, size):
        stop = min(size, seq_len - begin) if cut else size
        block = block_table[begin // size]
        k, v = (
            repeat(x, (1, group, 1)) if repeat else x.repeat_interleave(group, 1)
            for x in (key_cache[block, :stop], value_cache[block, :stop])
        )
        s = torch.einsum("qhd,khd->hqk", query, k) * scale
        if causal:
            s = s.masked_fill(torch.arange(begin, begin + stop) > positions[:, None], -torch.inf)
        new_top = largest(top, s.max(-1).values)
        shrink = torch.exp(top - new_top)
        p = torch.exp(s - new_top.unsqueeze(-1))
        total = (total * shrink if rescale_sum else total) + p.sum(-1)
        out = (out * shrink.unsqueeze(-1) if rescale_out else out) + p @ v.transpose(0, 1)
        top = new_top
    return (out / total.unsqueeze(-1) if divide else out).transpose(0, 1)


def online_with(name, **changes):
    def paged_attention(query, key_cache, value_cache, block_table, seq_len, scale):
        return online(query, key_cache, value_cache, block_table, seq_len, scale, **changes)

    return named(name, paged_attention)


for name, words, changes in (
    ("never_rescales", "Nothing is rescaled", {"rescale_sum": False, "rescale_out": False}),
    ("never_divided", "not attention over", {"divide": False}),
    ("no_causal_mask", "causal mask is missing", {"causal": False}),
    ("reads_the_whole_last_block", "beyond `seq_len`", {"causal": False, "cut": False}),
    (
        "queries_counted_from_zero",
        "off by the cached length",
        {"first_query": lambda seq_len, t_q: 0},
    ),
    ("heads_in_the_wrong_order", "wrong KV head", {"repeat": torch.Tensor.repeat}),
    (
        "largest_of_this_block",
        "largest score so far",
        {"largest": lambda old, new: new.clip(-1e30)},
    ),
):
    wrong("paged_attention", words)(online_with(name, **changes))


@wrong("paged_attention", "not attention over")
def mixes_keys(query, key_cache, value_cache, block_table, seq_len, scale):
    return online(query, key_cache, key_cache, block_table, seq_len, scale)


@wrong("paged_attention", "whole text at once")
def gathers_everything(query, key_cache, value_cache, block_table, seq_len, scale):
    key, value = gathered(key_cache, value_cache, block_table, seq_len, query.shape[1])
    return attend(query, key, value, scale)


@wrong("paged_attention", "whole text at once")
def keeps_all_scores(query, key_cache, value_cache, block_table, seq_len, scale):
    size, group = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    scores = []
    for begin in range(0, seq_len, size):
        k = key_cache[block_table[begin // size], : seq_len - begin].repeat_interleave(group, 1)
        scores.append(torch.einsum("qhd,khd->hqk", query, k) * scale)
    hidden = torch.arange(seq_len) > torch.arange(seq_len - query.shape[0], seq_len)[:, None]
    weights = torch.cat(scores, dim=-1).masked_fill(hidden, -torch.inf).softmax(-1)
    out = torch.zeros_like(query)
    for begin in range(0, seq_len, size):
        v = value_cache[block_table[begin // size], : seq_len - begin].repeat_interleave(group, 1)
        out += torch.einsum("hqk,khd->qhd", weights[..., begin : begin + size], v)
    return out


@wrong("paged_attention", "The dtype is torch.float64")
def in_double(query, key_cache, value_cache, block_table, seq_len, scale):
    doubles = (x.double() for x in (query, key_cache, value_cache))
    return online(*doubles, block_table, seq_len, scale)


@wrong("paged_attention", "whole text at once")
def positions_of_all_tokens(query, key_cache, value_cache, block_table, seq_len, scale):
    torch.arange(seq_len)[-len(query) :]
    return online(query, key_cache, value_cache, block_table, seq_len, scale)


@wrong("paged_attention", "changes in place")
def scales_the_query_in_place(query, key_cache, value_cache, block_table, seq_len, scale):
    query *= scale
    return online(query, key_cache, value_cache, block_table, seq_len, 1.0)


@wrong("paged_attention", "The shape is")
def heads_first(query, key_cache, value_cache, block_table, seq_len, scale):
    return online(query, key_cache, value_cache, block_table, seq_len, scale).transpose(0, 1)


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


# 7 engine


GOOD = Parts(Pool, allocate_slots, fork, copy_on_write, paged_attention_reference)


def engine_with(name, **parts):
    return named(name, replace(GOOD, **parts))


ANSWERS = {specimen.answer.__name__: specimen.answer for specimen in zoo.wrong_answers}
for part, number, words, name in (
    ("copy_on_write", 5, "forgotten", "never_copies"),
    ("copy_on_write", 5, "That is a leak", "old_block_not_released"),
    ("fork", 4, "No holder is counted", "ref_count_not_raised"),
    ("allocate_slots", 3, "no error here but daily life", "lets_the_pool_complain"),
    ("paged_attention", 6, "Nothing is rescaled", "never_rescales"),
):
    wrong("engine", f"Exercise {number} is not right yet", words)(
        engine_with(f"with_{name}", **{part: ANSWERS[name]})
    )


def right_until_the_engine(query, key_cache, value_cache, block_table, seq_len, scale):
    """Wrong where no exercise looks: heads that are as wide as those of the bundled model."""
    scale = scale / 3 if query.shape[-1] == 64 else scale
    return paged_attention_reference(query, key_cache, value_cache, block_table, seq_len, scale)


wrong("engine", "Greedy", "With another `paged_attention` in place of yours it is right")(
    engine_with("with_wide_heads", paged_attention=right_until_the_engine)
)
right("engine")(
    engine_with(
        "other_answers",
        BlockPool=PoolOfNumbers,
        allocate_slots=asks_forgiveness,
        fork=one_by_one,
        copy_on_write=checked_position_by_position,
        paged_attention=grouped_queries_and_log_sum_exp,
    )
)
