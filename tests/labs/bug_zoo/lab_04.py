"""Wrong and right answers to lab 04, each as a learner might write it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import ClassVar

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_04.learners_parts import Parts
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.block_pool import BlockPool as EnginePool
from utils.engine.core.kv_cache_utils import KVCacheBlock

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 slot_mapping


def refuse_short(block_ids, block_size, end):
    if end > len(block_ids) * block_size:
        raise ValueError("the table is too short")


def slots_by(formula):
    def slot_mapping(block_ids, block_size, start, end):
        refuse_short(block_ids, block_size, end)
        return [formula(block_ids, block_size, p) for p in range(start, end)]

    return slot_mapping


def named(name, answer):
    answer.__name__ = name
    return answer


SLOT_BUGS = {
    "ignores_the_table": ("block table is ignored", lambda t, s, p: p),
    "blocks_side_by_side": ("side by side", lambda t, s, p: t[0] * s + p),
    "block_not_multiplied": ("not multiplied", lambda t, s, p: t[p // s] + p % s),
    "no_offset": ("offset is missing", lambda t, s, p: t[p // s] * s),
    "offset_from_the_text": ("start of the text", lambda t, s, p: t[p // s] * s + p),
    "boundary_too_early": (
        "last token of a block is sought in the next",
        lambda t, s, p: t[min((p + 1) // s, len(t) - 1)] * s + p % s,
    ),
    "boundary_too_late": (
        "first token of a block is sought in the block before",
        lambda t, s, p: t[max(0, p - 1) // s] * s + p % s,
    ),
    "one_too_high": ("one too high", lambda t, s, p: t[p // s] * s + p % s + 1),
    "spread_in_turn": ("spread over the blocks", lambda t, s, p: t[p % len(t)] * s + p // len(t)),
}
for name, (words, formula) in SLOT_BUGS.items():
    wrong("slot_mapping", words)(named(name, slots_by(formula)))


@wrong("slot_mapping", "begin at position 0")
def begins_at_zero(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    return [block_ids[i // block_size] * block_size + i % block_size for i in range(end - start)]


@wrong("slot_mapping", "all positions from 0")
def all_positions(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    return [block_ids[i // block_size] * block_size + i % block_size for i in range(end)]


@wrong("slot_mapping", "`end` is not included")
def one_slot_too_many(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    every = [block * block_size + i for block in block_ids for i in range(block_size)]
    return every[start : end + 1]


@wrong("slot_mapping", "does not complain")
def short_table_wraps(block_ids, block_size, start, end):
    every = [block * block_size + i for block in block_ids for i in range(block_size)]
    return every[start:end]


@wrong("slot_mapping", "IndexError", "ValueError")
def short_table_index_error(block_ids, block_size, start, end):
    return [
        block_ids[p // block_size] * block_size + p % block_size for p in range(start, end)
    ]  # fmt: skip


@wrong("slot_mapping", "raised ValueError")
def refuses_a_full_table(block_ids, block_size, start, end):
    if end >= len(block_ids) * block_size:
        raise ValueError("too short")
    return slots_by(lambda t, s, p: t[p // s] * s + p % s)(block_ids, block_size, start, end)


@wrong("slot_mapping", "expected a list of slots")
def slot_of_one(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    return block_ids[start // block_size] * block_size + start % block_size


@right("slot_mapping")
def slots_with_divmod(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    found = []
    for position in range(start, end):
        place, offset = divmod(position, block_size)
        found.append(block_ids[place] * block_size + offset)
    return found


@right("slot_mapping")
def slots_as_a_tensor(block_ids, block_size, start, end):
    refuse_short(block_ids, block_size, end)
    positions = torch.arange(start, end)
    return torch.tensor(block_ids)[positions // block_size] * block_size + positions % block_size


# 2 BlockPool


class GoodPool:
    """The solution; most wrong pools change one method of it."""

    def __init__(self, num_gpu_blocks):
        self.free_block_queue = deque(KVCacheBlock(i) for i in range(num_gpu_blocks))

    def get_num_free_blocks(self):
        return len(self.free_block_queue)

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free_block_queue):
            raise ValueError("too few free blocks")
        blocks = [self.free_block_queue.popleft() for _ in range(num_blocks)]
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                raise ValueError(f"block {block.block_id} is free")
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError(f"block {block.block_id} is freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)


@wrong("block_pool", "it leaks")
class NeverQueuesAgain(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError("freed twice")
            block.ref_cnt -= 1


@wrong("block_pool", "still holds is treated as free")
class FreesSharedBlocks(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError("freed twice")
            block.ref_cnt -= 1
            self.free_block_queue.append(block)


@wrong("block_pool", "still holds is treated as free")
class ResetsTheCount(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError("freed twice")
            block.ref_cnt = 0
            self.free_block_queue.append(block)


@wrong("block_pool", "handed out has one holder")
class DoesNotCountTheFirstHolder(GoodPool):
    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free_block_queue):
            raise ValueError("too few free blocks")
        return [self.free_block_queue.popleft() for _ in range(num_blocks)]


@wrong("block_pool", "`touch` does not raise")
class TouchDoesNothing(GoodPool):
    def touch(self, blocks):
        if any(block.ref_cnt == 0 for block in blocks):
            raise ValueError("free")


@wrong("block_pool", "`touch` does not raise")
class TouchSetsToTwo(GoodPool):
    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt = 2


@wrong("block_pool", "freed twice, and the pool does not notice")
class AllowsDoubleFree(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt <= 0:
                block.ref_cnt = 0
                self.free_block_queue.append(block)


@wrong("block_pool", "freed twice, and the pool does not notice")
class CountsBelowZero(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)


@wrong("block_pool", "in a single call")
class LooksAtCountsBeforehand(GoodPool):
    def free_blocks(self, ordered_blocks):
        if any(block.ref_cnt == 0 for block in ordered_blocks):
            raise ValueError("freed twice")
        for block in ordered_blocks:
            block.ref_cnt -= 1
        self.free_block_queue += [block for block in ordered_blocks if block.ref_cnt <= 0]
        for block in ordered_blocks:
            block.ref_cnt = max(0, block.ref_cnt)


@wrong("block_pool", "in the queue twice")
class QueuesBeforeItRefuses(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt <= 0:
                self.free_block_queue.append(block)
            if block.ref_cnt < 0:
                block.ref_cnt = 0
                raise ValueError("freed twice")


@wrong("block_pool", "free for longer")
class ReusesTheNewestFirst(GoodPool):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt == 0:
                raise ValueError("freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.appendleft(block)


@wrong("block_pool", "not reused in the order in which they were freed")
class FreesHeadFirst(GoodPool):
    def free_blocks(self, ordered_blocks):
        super().free_blocks(list(ordered_blocks)[::-1])


@wrong("block_pool", "or is it sorted")
class SortsTheQueue(GoodPool):
    def free_blocks(self, ordered_blocks):
        super().free_blocks(ordered_blocks)
        self.free_block_queue = deque(sorted(self.free_block_queue, key=lambda b: b.block_id))


@wrong("block_pool", "partial failure leaks")
class TakesBeforeItChecks(GoodPool):
    def get_new_blocks(self, num_blocks):
        blocks = []
        for _ in range(num_blocks):
            if not self.free_block_queue:
                raise ValueError("too few free blocks")
            blocks.append(self.free_block_queue.popleft())
            blocks[-1].ref_cnt = 1
        return blocks


@wrong("block_pool", "does not complain")
class GivesWhatItHas(GoodPool):
    def get_new_blocks(self, num_blocks):
        return super().get_new_blocks(min(num_blocks, len(self.free_block_queue)))


@wrong("block_pool", "does not complain")
class ReturnsNoneWhenShort(GoodPool):
    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free_block_queue):
            return None
        return super().get_new_blocks(num_blocks)


@wrong("block_pool", "IndexError", "Expected a ValueError")
class RunsIntoTheEnd(GoodPool):
    def get_new_blocks(self, num_blocks):
        blocks = [self.free_block_queue.popleft() for _ in range(num_blocks)]
        for block in blocks:
            block.ref_cnt = 1
        return blocks


@wrong("block_pool", "raised ValueError")
class KeepsOneBack(GoodPool):
    def get_new_blocks(self, num_blocks):
        if num_blocks >= len(self.free_block_queue):
            raise ValueError("too few free blocks")
        return super().get_new_blocks(num_blocks)


@wrong("block_pool", "expected a list of KVCacheBlock")
class HandsOutNumbers(GoodPool):
    def get_new_blocks(self, num_blocks):
        return [block.block_id for block in super().get_new_blocks(num_blocks)]


@wrong("block_pool", "does not exist")
class CountsFromOne(GoodPool):
    def __init__(self, num_gpu_blocks):
        self.free_block_queue = deque(KVCacheBlock(i + 1) for i in range(num_gpu_blocks))


@wrong("block_pool", "all its blocks free")
class KeepsANullBlock(GoodPool):
    def __init__(self, num_gpu_blocks):
        self.free_block_queue = deque(KVCacheBlock(i) for i in range(1, num_gpu_blocks))


@wrong("block_pool", "returned 3 blocks")
class SlicesWithMinusZero(GoodPool):
    def __init__(self, num_gpu_blocks):
        self.free = [KVCacheBlock(i) for i in range(num_gpu_blocks)]

    def get_num_free_blocks(self):
        return len(self.free)

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.free):
            raise ValueError("too few free blocks")
        taken, self.free = self.free[-num_blocks:], self.free[:-num_blocks]
        for block in taken:
            block.ref_cnt = 1
        return taken


@wrong("block_pool", "Two pools share")
class OneQueueForAll(GoodPool):
    free_block_queue: ClassVar[deque] = deque()

    def __init__(self, num_gpu_blocks):
        if not self.free_block_queue:
            self.free_block_queue.extend(KVCacheBlock(i) for i in range(num_gpu_blocks))


@wrong("block_pool", "stays in the queue")
class TouchesFreeBlocks(GoodPool):
    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1


@wrong("block_pool", "number of free blocks is wrong")
class CountsAllBlocks(GoodPool):
    def __init__(self, num_gpu_blocks):
        super().__init__(num_gpu_blocks)
        self.num_gpu_blocks = num_gpu_blocks

    def get_num_free_blocks(self):
        return self.num_gpu_blocks


@right("block_pool")
class PoolOfNumbers:
    """Blocks in a list, the queue of their numbers in another; touch revives, as in vLLM."""

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
        self.queue = [i for i in self.queue if i not in ids]
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

    def __init__(self, num_gpu_blocks):
        super().__init__(num_gpu_blocks)

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            if block.ref_cnt < 1:
                raise ValueError("freed twice")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append_n([block])


# 3 allocate_slots


def allocate_by(count):
    """`count(num_tokens, blocks in the table, block_size)` new blocks."""

    def allocate_slots(block_pool, block_table, num_tokens, block_size):
        n = max(0, count(num_tokens, len(block_table), block_size))
        if n > block_pool.get_num_free_blocks():
            return None
        new = block_pool.get_new_blocks(n)
        block_table.extend(new)
        return new

    return allocate_slots


GROWTH_BUGS = {
    "rounds_down": ("partly filled block is missing", lambda n, have, s: n // s - have),
    "one_too_early": ("one token too early", lambda n, have, s: n // s + 1 - have),
    "forgets_what_it_has": ("already are not counted", lambda n, have, s: math.ceil(n / s)),
    "one_block_per_token": ("One block per token", lambda n, have, s: n - have),
    "reserves_ahead": ("reserved for tokens", lambda n, have, s: math.ceil(n / s) + 2 - have),
    "at_most_one": ("do not fit", lambda n, have, s: int(n > have * s)),
    "doubles": (
        "reserved for tokens",
        lambda n, have, s: max(math.ceil(n / s), 2 * have) - have if n > have * s else 0,
    ),
}
for name, (words, count) in GROWTH_BUGS.items():
    wrong("allocate_slots", words)(named(name, allocate_by(count)))


def blocks_missing(num_tokens, block_table, block_size):
    return max(0, math.ceil(num_tokens / block_size) - len(block_table))


@wrong("allocate_slots", "the others leak")
def not_put_into_the_table(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    return None if n > block_pool.get_num_free_blocks() else block_pool.get_new_blocks(n)


@wrong("allocate_slots", "were replaced")
def replaces_the_table(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    if n > block_pool.get_num_free_blocks():
        return None
    new = block_pool.get_new_blocks(n)
    if new:
        block_table[:] = new
    return new


@wrong("allocate_slots", "partial failure leaks")
def takes_what_there_is(block_pool, block_table, num_tokens, block_size):
    new = []
    for _ in range(blocks_missing(num_tokens, block_table, block_size)):
        if block_pool.get_num_free_blocks() == 0:
            return None
        new += block_pool.get_new_blocks(1)
        block_table.append(new[-1])
    return new


@wrong("allocate_slots", "no error here but daily life")
def lets_the_pool_complain(block_pool, block_table, num_tokens, block_size):
    new = block_pool.get_new_blocks(blocks_missing(num_tokens, block_table, block_size))
    block_table.extend(new)
    return new


@wrong("allocate_slots", "does not say so")
def returns_an_empty_list_when_short(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    if n > block_pool.get_num_free_blocks():
        return []
    block_table.extend(new := block_pool.get_new_blocks(n))
    return new


@wrong("allocate_slots", "needed and three are free")
def refuses_the_last_block(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    if n >= block_pool.get_num_free_blocks():
        return None
    block_table.extend(new := block_pool.get_new_blocks(n))
    return new


@wrong("allocate_slots", "means that there is no room")
def returns_none_when_nothing_is_needed(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    if n == 0 or n > block_pool.get_num_free_blocks():
        return None
    block_table.extend(new := block_pool.get_new_blocks(n))
    return new


@wrong("allocate_slots", "not what was returned")
def returns_the_whole_table(block_pool, block_table, num_tokens, block_size):
    n = blocks_missing(num_tokens, block_table, block_size)
    if n > block_pool.get_num_free_blocks():
        return None
    block_table.extend(block_pool.get_new_blocks(n))
    return block_table


@wrong("allocate_slots", "shrank")
def gives_blocks_back(block_pool, block_table, num_tokens, block_size):
    needed = math.ceil(num_tokens / block_size)
    while len(block_table) > needed:
        block_pool.free_blocks([block_table.pop()])
    return allocate_by(lambda n, have, s: math.ceil(n / s) - have)(
        block_pool, block_table, num_tokens, block_size
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


@wrong("fork", "same list")
def same_list(block_pool, block_table):
    block_pool.touch(block_table)
    return block_table


@wrong("fork", "ref_cnt is 1")
def ref_count_not_raised(block_pool, block_table):
    return list(block_table)


@wrong("fork", "that is a copy")
def eager_copy(block_pool, block_table):
    return block_pool.get_new_blocks(len(block_table))


@wrong("fork", "ref_cnt is 1")
def only_the_last_is_touched(block_pool, block_table):
    block_pool.touch(block_table[-1:])
    return list(block_table)


@wrong("fork", "never become free")
def touched_twice(block_pool, block_table):
    block_pool.touch(block_table)
    block_pool.touch(block_table)
    return list(block_table)


@wrong("fork", "does not hold the parent's blocks")
def leaves_the_last_block_out(block_pool, block_table):
    block_pool.touch(block_table)
    return block_table[:-1]


@wrong("fork", "expected the child's table")
def returns_numbers(block_pool, block_table):
    block_pool.touch(block_table)
    return [block.block_id for block in block_table]


@wrong("fork", "expected the child's table")
def forgets_to_return(block_pool, block_table):
    block_pool.touch(block_table)


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


def good_places(block_table, start, end, block_size):
    last = min(len(block_table), math.ceil(end / block_size))
    return [i for i in range(start // block_size, last) if block_table[i].ref_cnt > 1]


def copy_places(block_pool, block_table, places):
    if len(places) > block_pool.get_num_free_blocks():
        return None
    copies = []
    for place, new in zip(places, block_pool.get_new_blocks(len(places)), strict=True):
        old, block_table[place] = block_table[place], new
        block_pool.free_blocks([old])
        copies.append((old.block_id, new.block_id))
    return copies


def good_copy_on_write(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "Copy-on-write is forgotten")
def never_copies(block_pool, block_table, start, end, block_size):
    return []


@wrong("copy_on_write", "Too much is copied")
def copies_the_whole_table(block_pool, block_table, start, end, block_size):
    places = [i for i, block in enumerate(block_table) if block.ref_cnt > 1]
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "one holder only")
def copies_what_is_not_shared(block_pool, block_table, start, end, block_size):
    last = min(len(block_table), math.ceil(end / block_size))
    return copy_places(block_pool, block_table, list(range(start // block_size, last)))


@wrong("copy_on_write", "Off by one at the end")
def end_is_included(block_pool, block_table, start, end, block_size):
    last = min(len(block_table) - 1, end // block_size)
    places = [i for i in range(start // block_size, last + 1) if block_table[i].ref_cnt > 1]
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "Too much is copied")
def always_copies_the_last_block(block_pool, block_table, start, end, block_size):
    last = len(block_table) - 1
    places = [last] if block_table[last].ref_cnt > 1 else []
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "Not all of them")
def copies_the_first_only(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    return copy_places(block_pool, block_table, places[:1])


@wrong("copy_on_write", "still holds the old block")
def table_not_changed(block_pool, block_table, start, end, block_size):
    table = list(block_table)
    return good_copy_on_write(block_pool, table, start, end, block_size)


@wrong("copy_on_write", "That is a leak")
def old_block_not_released(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    if len(places) > block_pool.get_num_free_blocks():
        return None
    copies = []
    for place in places:
        (new,) = block_pool.get_new_blocks(1)
        copies.append((block_table[place].block_id, new.block_id))
        block_table[place] = new
    return copies


@wrong("copy_on_write", "turned round")
def pairs_turned_round(block_pool, block_table, start, end, block_size):
    copies = good_copy_on_write(block_pool, block_table, start, end, block_size)
    return None if copies is None else [(new, old) for old, new in copies]


@wrong("copy_on_write", "too few blocks are free")
def returns_nothing(block_pool, block_table, start, end, block_size):
    good_copy_on_write(block_pool, block_table, start, end, block_size)


@wrong("copy_on_write", "expected a list of pairs")
def returns_blocks(block_pool, block_table, start, end, block_size):
    before = list(block_table)
    copies = good_copy_on_write(block_pool, block_table, start, end, block_size)
    if copies is None:
        return None
    return [(a, b) for a, b in zip(before, block_table, strict=True) if a is not b]


@wrong("copy_on_write", "list of copies is not")
def places_in_place_of_blocks(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    copies = copy_places(block_pool, block_table, places)
    if copies is None:
        return None
    return [(p, new) for p, (_, new) in zip(places, copies, strict=True)]


@wrong("copy_on_write", "IndexError")
def looks_beyond_the_table(block_pool, block_table, start, end, block_size):
    last = math.ceil(end / block_size)
    places = [i for i in range(start // block_size, last) if block_table[i].ref_cnt > 1]
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "partial failure")
def copies_one_after_the_other(block_pool, block_table, start, end, block_size):
    copies = []
    for place in good_places(block_table, start, end, block_size):
        if block_pool.get_num_free_blocks() == 0:
            return None
        copies += copy_places(block_pool, block_table, [place])
    return copies


@wrong("copy_on_write", "no error here but daily life")
def shortage_is_an_error(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    new_blocks = block_pool.get_new_blocks(len(places))
    block_pool.free_blocks(new_blocks)
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "does not say so")
def gives_up_silently(block_pool, block_table, start, end, block_size):
    places = good_places(block_table, start, end, block_size)
    if len(places) > block_pool.get_num_free_blocks():
        return []
    return copy_places(block_pool, block_table, places)


@wrong("copy_on_write", "now it has")
def appends_the_copy(block_pool, block_table, start, end, block_size):
    copies = []
    for place in good_places(block_table, start, end, block_size):
        (new,) = block_pool.get_new_blocks(1)
        copies.append((block_table[place].block_id, new.block_id))
        block_pool.free_blocks([block_table[place]])
        block_table.append(new)
    return copies


@wrong("copy_on_write", "its ref_cnt is 2")
def counts_the_copy_twice(block_pool, block_table, start, end, block_size):
    before = list(block_table)
    copies = good_copy_on_write(block_pool, block_table, start, end, block_size)
    block_pool.touch([b for a, b in zip(before, block_table, strict=True) if a is not b])
    return copies


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


@right("copy_on_write")
def by_slices(block_pool, block_table, start, end, block_size):
    first, last = start // block_size, (end - 1) // block_size + 1
    shared = [b for b in block_table[first:last] if b.ref_cnt > 1]
    try:
        new = iter(block_pool.get_new_blocks(len(shared)))
    except ValueError:
        return None
    ids = [b.block_id for b in shared]
    fresh = [next(new) if b in shared else b for b in block_table[first:last]]
    block_table[first : first + len(fresh)] = fresh
    block_pool.free_blocks(shared)
    return list(zip(ids, (b.block_id for b in fresh if b.block_id not in ids), strict=False))


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
    query, key_cache, value_cache, block_table, seq_len, scale, *, rescale_sum=True,
    rescale_out=True, first_query=None, cut=True, causal=True, repeat="repeat_interleave",
    divide=True, use_maximum=True, places=None,
):  # fmt: skip
    """Attention block by block, as a learner writes it, with one thing left out."""
    t_q, heads, _ = query.shape
    size, kv_heads = key_cache.shape[1:3]
    count = -(-seq_len // size)
    first = seq_len - t_q if first_query is None else first_query(seq_len, t_q, size)
    positions = torch.arange(first, first + t_q)
    top = torch.full((heads, t_q), float("-inf"))
    total, out = torch.zeros(heads, t_q), torch.zeros(query.shape).transpose(0, 1)
    for place in range(count) if places is None else places(count, seq_len, size):
        begin = place * size
        stop = min(size, seq_len - begin) if cut else size
        k, v = key_cache[block_table[place], :stop], value_cache[block_table[place], :stop]
        if repeat == "first":
            k, v = (x[:, :1].expand(-1, heads, -1) for x in (k, v))
        elif repeat == "repeat":
            k, v = (x.repeat(1, heads // kv_heads, 1) for x in (k, v))
        else:
            k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        s = torch.einsum("qhd,khd->hqk", query, k) * scale
        if causal == "offsets":
            s = s.masked_fill(torch.arange(stop) > torch.arange(t_q)[:, None], -torch.inf)
        elif causal:
            s = s.masked_fill(torch.arange(begin, begin + stop) > positions[:, None], -torch.inf)
        new_top = torch.maximum(top, s.max(-1).values) if use_maximum else torch.zeros_like(top)
        if use_maximum == "newest":
            new_top = s.max(-1).values
        shrink = torch.exp(top - new_top) if use_maximum else torch.ones_like(top)
        p = torch.exp(s - new_top.unsqueeze(-1))
        total = (total * shrink if rescale_sum else total) + p.sum(-1)
        out = (out * shrink.unsqueeze(-1) if rescale_out else out) + p @ v.transpose(0, 1)
        top = new_top
    if divide:
        out = out / total.unsqueeze(-1)
    return out.transpose(0, 1)


def online_with(name, **changes):
    def paged_attention(query, key_cache, value_cache, block_table, seq_len, scale):
        return online(query, key_cache, value_cache, block_table, seq_len, scale, **changes)

    return named(name, paged_attention)


ATTENTION_BUGS = {
    "never_rescales": ("Nothing is rescaled", {"rescale_sum": False, "rescale_out": False}),
    "sum_not_rescaled": ("sum of the exponentials is not", {"rescale_sum": False}),
    "output_not_rescaled": ("weighted sum is not", {"rescale_out": False}),
    "never_divided": ("never divided", {"divide": False}),
    "no_maximum": ("overflows", {"use_maximum": False}),
    "newest_maximum": ("maximum of the newest block", {"use_maximum": "newest"}),
    "no_causal_mask": ("causal mask is missing", {"causal": False}),
    "mask_by_offsets": ("offsets in the block", {"causal": "offsets"}),
    "reads_the_whole_last_block": ("beyond `seq_len`", {"causal": False, "cut": False}),
    "queries_counted_from_zero": (
        "off by the cached length", {"first_query": lambda seq_len, t_q, size: 0},
    ),
    "queries_counted_from_the_last_block": (
        "end of the last *block*",
        {"cut": False, "first_query": lambda n, t_q, size: -(-n // size) * size - t_q},
    ),
    "cannot_see_itself": ("may not see itself", {"first_query": lambda n, t_q, _: n - t_q - 1}),
    "all_heads_read_the_first": ("read KV head 0", {"repeat": "first"}),
    "heads_in_the_wrong_order": ("0, 1, 0, 1", {"repeat": "repeat"}),
    "last_block_left_out": ("left out when it is not full", {
        "places": lambda count, seq_len, size: range(seq_len // size),
    }),
    "only_the_last_block": ("Only the last block", {"places": lambda count, *_: [count - 1]}),
}  # fmt: skip
for name, (words, changes) in ATTENTION_BUGS.items():
    wrong("paged_attention", words)(online_with(name, **changes))


@wrong("paged_attention", "block table is ignored")
def memory_order(query, key_cache, value_cache, block_table, seq_len, scale):
    return online(query, key_cache, value_cache, range(len(block_table)), seq_len, scale)


@wrong("paged_attention", "follow the first one")
def blocks_in_a_row(query, key_cache, value_cache, block_table, seq_len, scale):
    size = key_cache.shape[1]
    key, value = (cache.flatten(0, 1)[block_table[0] * size :][:seq_len]
                  for cache in (key_cache, value_cache))  # fmt: skip
    short = seq_len - key.shape[0]  # at the end of memory
    if short:
        raise IndexError("out of memory")
    group = query.shape[1] // key.shape[1]
    return attend(query, *(t.repeat_interleave(group, 1) for t in (key, value)), scale)


@wrong("paged_attention", "softmax of its own")
def average_of_softmaxes(query, key_cache, value_cache, block_table, seq_len, scale):
    size = key_cache.shape[1]
    outputs = []
    for begin in range(0, seq_len, size):
        k, v = gathered(key_cache, value_cache, block_table, seq_len, query.shape[1])
        keys = torch.arange(begin, min(begin + size, seq_len))
        hidden = keys > torch.arange(seq_len - query.shape[0], seq_len)[:, None]
        outputs.append(attend(query, k[keys], v[keys], scale, hidden))
    return torch.stack(outputs).mean(0)


@wrong("paged_attention", "scale is missing")
def no_scale(query, key_cache, value_cache, block_table, seq_len, scale):
    return online(query, key_cache, value_cache, block_table, seq_len, 1.0)


@wrong("paged_attention", "scale is applied twice")
def scaled_twice(query, key_cache, value_cache, block_table, seq_len, scale):
    return online(query * scale, key_cache, value_cache, block_table, seq_len, scale)


@wrong("paged_attention", "multiply the keys")
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


def good_fork(block_pool, block_table):
    block_pool.touch(block_table)
    return list(block_table)


GOOD = Parts(GoodPool, in_whole_numbers, good_fork, good_copy_on_write, paged_attention_reference)


def engine_with(name, **parts):
    return named(name, replace(GOOD, **parts))


wrong("engine", "Parallel sampling", "read keys and values that are not its own", "blocks")(
    engine_with("without_copy_on_write", copy_on_write=never_copies)
)
wrong("engine", "did not come back")(engine_with("leaks", copy_on_write=old_block_not_released))
wrong("engine", "Greedy", "look at `paged_attention`")(
    engine_with("attention_never_rescales", paged_attention=online_with(
        "never", rescale_sum=False, rescale_out=False))
)  # fmt: skip
wrong("engine", "raised ValueError", "freed twice")(
    engine_with("fork_without_references", fork=ref_count_not_raised)
)
wrong("engine", "raised ValueError")(
    engine_with("shortage_raises", allocate_slots=lets_the_pool_complain)
)
right("engine")(
    engine_with(
        "other_answers", BlockPool=PoolOfNumbers, allocate_slots=asks_forgiveness, fork=one_by_one,
        copy_on_write=checked_position_by_position, paged_attention=grouped_queries_and_log_sum_exp,
    )
)  # fmt: skip
