"""What lab 04 calls right is what the engine does, and what plain counting gives."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

from tests.engine.core.bare_requests import make_request
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_04 import attention_cases, copies, growth, pool_play, right_parts, slots
from utils.checks.lab_04.attention_cases import LargestTensor, contiguous, watch_memory
from utils.checks.lab_04.attention_mistakes import paged_attention
from utils.checks.lab_04.learners_parts import Parts, PartsManager
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager


def test_slots_are_those_of_a_memory_that_is_filled():
    for given in sample(slots.draw, 100):
        table, size, start, end = given.args
        memory = {
            block * size + offset: place * size + offset
            for place, block in enumerate(table)
            for offset in range(size)
        }
        if end <= len(table) * size:
            assert [memory[s] for s in slots.laid_out(*given.args)] == list(range(start, end))
        else:
            with pytest.raises(ValueError):
                slots.laid_out(*given.args)


def test_the_right_pool_is_a_queue():
    dice, pool, queue, held = random.Random(0), right_parts.Pool(9), deque(range(9)), []
    for _ in range(500):
        number = dice.randint(0, 3)
        if number <= len(queue) and dice.random() < 0.5:
            taken = pool.get_new_blocks(number)
            assert [block.block_id for block in taken] == [queue.popleft() for _ in range(number)]
            held += taken
        elif held and dice.random() < 0.3:
            block = dice.choice(held)
            pool.touch([block])
            held.append(block)
        elif held:
            block = held.pop(dice.randrange(len(held)))
            pool.free_blocks([block])
            if block not in held:
                queue.append(block.block_id)
        assert [block.block_id for block in pool.queue] == list(queue)
        assert all(block.ref_cnt == held.count(block) for block in pool.blocks)


def test_the_right_parts_do_what_the_engines_manager_does():
    """Forks that grow: as many blocks are taken and copied, and none more."""
    dice, size = random.Random(0), 4
    manager = KVCacheManager(40, size, enable_caching=False, block_pool=BlockPool(40))
    pool, tables, requests = right_parts.Pool(40), [[]], [make_request([1] * 400, "0")]
    for step in range(60):
        index = dice.randrange(len(tables))
        request, table = requests[index], tables[index]
        if dice.random() < 0.1 and table and len(tables) < 5:
            requests.append(make_request([1] * 400, str(step + 1)))
            manager.fork(request, requests[-1])
            tables.append(right_parts.fork(pool, table))
            continue
        start, end = request.num_computed_tokens, request.num_computed_tokens + dice.randint(1, 5)
        manager.num_cached_block.setdefault(request.request_id, 0)
        before = [table for table in tables]
        copied = right_parts.copy_on_write(pool, table, start, end, size)
        grown = None if copied is None else right_parts.allocate_slots(pool, table, end, size)
        if grown is None:
            break
        assert manager.allocate_slots(request, end - start) is not None
        assert len(copied) == len(manager.take_block_copies().copy)
        request.num_computed_tokens = end
        assert pool.get_num_free_blocks() == manager.block_pool.get_num_free_blocks()
        assert len(before) == len(tables)
        for mine, other in zip(tables, requests, strict=True):
            theirs = manager.req_to_blocks.get(other.request_id, [])
            assert [b.ref_cnt for b in mine] == [b.ref_cnt for b in theirs]
    assert step > 20


def test_attention_is_the_engines():
    for given in sample(attention_cases.draw, 60):
        expected, got = contiguous(*given.args), paged_attention_reference(*given.args)
        assert attention_cases._wrong(expected, got, given) is None
        assert attention_cases._wrong(expected, paged_attention(*given.args), given) is None
    assert watch_memory(paged_attention_reference)[0] < 2000


def test_inputs_reach_the_corners():
    drawn = [given.args for given in sample(attention_cases.draw, 300)]
    assert {len(q) for q, *_ in drawn} >= {1, 2, 3}
    assert max(len(q) for q, *_ in drawn) > 64
    assert max(seq_len for *_, seq_len, _ in drawn) > 1024
    assert any(seq_len % k.shape[1] == 0 for _, k, *_, seq_len, _ in drawn)
    tables = [given.args for given in sample(slots.draw, 300)]
    assert any(start == end for _, _, start, end in tables)
    assert any(end == len(t) * size + 1 for t, size, _, end in tables)
    assert max(len(t) for t, *_ in tables) > 1024
    assert max(max(t, default=0) for t, *_ in tables) > 65_536
    stories = [pool_play.draw_story(Choices(random.Random(n))) for n in range(200)]
    assert {len(story.sizes) for story in stories} == {1, 2}
    assert max(max(story.sizes) for story in stories) > 1024
    writes = [
        step
        for n in range(200)
        for step in copies.draw_story(Choices(random.Random(n))).steps
        if step[0] == "write"
    ]
    assert any(start == end for *_, start, end in writes)
    grown = [growth.draw_story(Choices(random.Random(n))) for n in range(200)]
    assert {story.first for story in grown} == {0, 300, 70_000}


def test_the_watch_sees_new_tensors_and_no_views():
    cache = torch.zeros(64, 4, 2, 8)
    with LargestTensor(cache) as watch:
        cache.flatten(0, 1)[:100].transpose(0, 1)
        _ = cache[3] + 1
    assert watch.numel == 4 * 2 * 8
    with LargestTensor(cache) as watch:
        cache[[1, 2, 3]]
    assert watch.shape == (3, 4, 2, 8)


def test_a_reset_makes_the_learners_pool_anew():
    right = (right_parts.allocate_slots, right_parts.fork, right_parts.copy_on_write)
    parts = Parts(right_parts.Pool, *right, paged_attention_reference)
    manager = PartsManager(parts, EngineConfigLike())
    request = make_request([1] * 400, "A")
    assert len(manager.allocate_slots(request, 9)) == 3
    manager.req_to_blocks.clear()
    manager.block_pool.reset()
    assert manager.block_pool.get_num_free_blocks() == 6
    assert len(manager.allocate_slots(request, 24)) == 6


class EngineConfigLike:
    """What a manager reads of an `EngineConfig`."""

    num_gpu_blocks, block_size = 6, 4
