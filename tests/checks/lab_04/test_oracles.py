"""What lab 04 calls right is what the engine does, and what plain counting gives."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

from tests.engine.core.bare_requests import make_request
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_04 import Parts, answers, attention, draw_positions, laid_out
from utils.checks.lab_04.attention import HeldMemory, check_memory, contiguous, draw_attention
from utils.checks.lab_04.parts import PartsManager
from utils.checks.lab_04.pool_story import PoolStory
from utils.checks.lab_04.tables import GrowthStory, Pool, WriteStory
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager


def test_slots_are_those_of_a_memory_that_is_filled():
    for given in sample(draw_positions, 100):
        table, size, start, end = given.args
        memory = {
            block * size + offset: place * size + offset
            for place, block in enumerate(table)
            for offset in range(size)
        }
        if end <= len(table) * size:
            assert [memory[s] for s in laid_out(*given.args)] == list(range(start, end))
        else:
            with pytest.raises(ValueError):
                laid_out(*given.args)


def test_the_right_pool_is_a_queue():
    dice, pool, queue, held = random.Random(0), Pool(9), deque(range(9)), []
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
        assert [block.block_id for block in pool.free_block_queue] == list(queue)
        assert all(block.ref_cnt == held.count(block) for block in pool.blocks)


def test_the_right_parts_do_what_the_engines_manager_does():
    """Forks that grow: as many blocks are taken and copied, and none more."""
    dice, size = random.Random(0), 4
    manager = KVCacheManager(40, size, enable_caching=False, block_pool=BlockPool(40))
    pool, tables, requests = Pool(40), [[]], [make_request([1] * 400, "0")]
    for step in range(60):
        index = dice.randrange(len(tables))
        request, table = requests[index], tables[index]
        if dice.random() < 0.1 and table and len(tables) < 5:
            requests.append(make_request([1] * 400, str(step + 1)))
            manager.fork(request, requests[-1])
            tables.append(answers.fork(pool, table))
            continue
        start, end = request.num_computed_tokens, request.num_computed_tokens + dice.randint(1, 5)
        manager.num_cached_block.setdefault(request.request_id, 0)
        before = [table for table in tables]
        copied = answers.copy_on_write(pool, table, start, end, size)
        grown = None if copied is None else answers.allocate_slots(pool, table, end, size)
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
    for given in sample(draw_attention, 60):
        expected, got = contiguous(*given.args), paged_attention_reference(*given.args)
        assert attention.another_result(expected, got, given) is None
        assert (
            attention.another_result(expected, answers.paged_attention(*given.args), given) is None
        )
    assert check_memory(paged_attention_reference) < 40_000


def test_inputs_reach_the_corners():
    drawn = [given.args for given in sample(draw_attention, 300)]
    assert {len(q) for q, *_ in drawn} >= {1, 2, 3}
    assert max(len(q) for q, *_ in drawn) > 64
    assert max(seq_len for *_, seq_len, _ in drawn) > 1024
    assert any(seq_len % k.shape[1] == 0 for _, k, *_, seq_len, _ in drawn)
    tables = [given.args for given in sample(draw_positions, 300)]
    assert any(start == end for _, _, start, end in tables)
    assert any(end == len(t) * size + 1 for t, size, _, end in tables)
    assert max(len(t) for t, *_ in tables) > 1024
    assert max(max(t, default=0) for t, *_ in tables) > 65_536
    pools = [PoolStory.draw(Choices(random.Random(n))) for n in range(200)]
    assert {len(story.setting) for story in pools} == {1, 2}
    assert max(max(story.setting) for story in pools) > 1024
    writes = [
        arguments
        for n in range(200)
        for kind, arguments in WriteStory.draw(Choices(random.Random(n))).steps
        if kind == "write"
    ]
    assert any(start == end for _, start, end in writes)
    grown = [GrowthStory.draw(Choices(random.Random(n))) for n in range(200)]
    assert {story.setting.first for story in grown} == {0, 300, 70_000}


def test_the_watch_counts_what_lives_and_no_views() -> None:
    cache = torch.zeros(64, 4, 2, 8)
    with HeldMemory(cache) as watch:
        cache.flatten(0, 1)[:100].transpose(0, 1)
        assert watch.most == 0
        kept = [cache[3] + number for number in range(3)]
        del kept[1:]
        _ = cache[3] + 1
    block = 4 * 2 * 8 * 4  # bytes
    assert watch.largest == block
    assert watch.most == 3 * block


def test_a_reset_makes_the_learners_pool_anew():
    right = (answers.allocate_slots, answers.fork, answers.copy_on_write)
    parts = Parts(answers.BlockPool, *right, paged_attention_reference)
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
