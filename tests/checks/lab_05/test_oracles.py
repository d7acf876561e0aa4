"""What lab 05 calls right is what the engine does, and its inputs reach the corners."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from tests.labs.bug_zoo.lab_05 import plugged
from utils.checks import lab_05
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_05 import answers, block_digests, draw_prompts, found_tokens, tables, thefts
from utils.checks.lab_05.growth_story import GrowthStory, Recorder
from utils.checks.lab_05.pool_story import METHODS, PoolStory
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
)
from utils.sim.prompt_cache import bare_request, find_cached_tokens

SHA256 = get_hash_fn_by_name("sha256")
# The engine's pool, whose methods no check can take away.
EnginePool = type("EnginePool", (BlockPool,), {name: vars(BlockPool)[name] for name in METHODS})


def test_brute_force_finds_what_the_engines_manager_finds():
    drawn = [given.args for given in sample(draw_prompts, 60)]
    found = [found_tokens(prompts, size) for prompts, size in drawn]
    assert found == [find_cached_tokens(prompts, size) for prompts, size in drawn]
    assert sum(map(any, found)) > 20


def test_the_engines_pool_is_right():
    assert lab_05.block_pool(EnginePool).passed


@pytest.mark.parametrize("num_tokens", [3, 8, 11])
def test_the_right_hasher_makes_the_engines_chain(num_tokens):
    request = bare_request(0, list(range(num_tokens)))
    keys = get_request_block_hasher(4, SHA256)(request)
    links = answers.request_block_hasher(request, 4, Recorder(0))
    hashed: dict[Any, bytes] = {None: None}  # by its link
    for link in links:
        hashed[link] = hash_block_tokens(SHA256, hashed[link.parent], link.token_ids)
    assert [hashed[link] for link in links] == keys
    assert [link.parent for link in links] == [None, *links][: len(links)]


def test_the_right_lookup_is_the_engines():
    manager = KVCacheManager(20, 2, True, get_request_block_hasher(2, SHA256))
    for number, length in enumerate((5, 8, 8, 3, 1)):
        request = bare_request(number, list(range(length)))
        blocks, found = manager.get_computed_blocks(request)
        assert answers.get_computed_blocks(request, 2, manager.block_pool) == (blocks, found)
        manager.allocate_slots(request, length - found, blocks)


class Config:
    """What a manager reads of an `EngineConfig`."""

    num_gpu_blocks, block_size = 9, 4


def test_the_parts_do_what_the_engines_manager_does():
    """Requests come and go in a pool that is too small for them, so blocks are evicted.

    Each prompt ends with a token of its own: of two blocks with the same contents, any could be
    found, and what is evicted later would depend on it.
    """
    mine = plugged(Config(), SHA256)
    theirs = KVCacheManager(9, 4, True, get_request_block_hasher(4, SHA256))
    dice, running, hits = random.Random(0), [], 0
    for number in range(300):
        prompt = [*[dice.choice((1, 70_000))] * dice.randint(0, 16), 1000 + number]
        pair = [bare_request(number, list(prompt), dice.choice((None, "ada")))] * 2
        pair[1] = bare_request(number, list(prompt), pair[0].cache_salt)
        found = [m.get_computed_blocks(r) for m, r in zip((mine, theirs), pair, strict=True)]
        assert found[0][1] == found[1][1]
        hits += found[0][1]
        room = [
            m.allocate_slots(r, r.num_tokens - n, blocks) is not None
            for m, r, (blocks, n) in zip((mine, theirs), pair, found, strict=True)
        ]
        assert room[0] == room[1]
        running += [pair] if room[0] else []
        while running and (len(running) > 2 or not room[0] or dice.random() < 0.5):
            ended = running.pop(dice.randrange(len(running)))
            mine.free(ended[0])
            theirs.free(ended[1])
            room = [True]
        free = [m.block_pool.get_num_free_blocks() for m in (mine, theirs)]
        assert free[0] == free[1]
    assert hits > 300


def test_inputs_reach_the_corners():
    pairs = sample(block_digests.draw, 600)
    assert {p.kind for p in pairs} == set(block_digests.KINDS)
    assert max(t for p in pairs for t in p.one.tokens) > 131_071
    parents = [(p.one.parent, p.other.parent) for p in pairs if p.kind == "parent"]
    assert any(zlib.crc32(one) == zlib.crc32(other) for one, other in parents)
    growths = [GrowthStory.draw(Choices(random.Random(n))).setting for n in range(200)]
    assert {salt for growth in growths for *_, salt in growth.starts} >= {None, "ada", "", "bob"}
    drawn = sample(tables.draw_lookup, 200)
    assert any(look.blocks and "gone" not in look.blocks for look in drawn)
    assert any(len(look.blocks) > 64 for look in drawn)
    assert any(case.full < case.size for case in sample(tables.draw_ending, 50))
    assert max(len(given.args[0]) for given in sample(draw_prompts, 200)) > 16
    stolen = sample(thefts.draw, 200)
    assert {theft.num_bytes for theft in stolen} == {1, 2}
    assert {len(theft.prompt) // theft.block_size for theft in stolen} == {1, 2, 3, 4}
    assert any(theft.vocab_size < 2 ** thefts.BITS[theft.num_bytes] for theft in stolen)
    pools = [PoolStory.draw(Choices(random.Random(n))) for n in range(300)]
    assert max(story.setting.size for story in pools) > 1024
    assert PoolStory.draw(Choices()).steps == ()


def test_a_pair_differs_unless_it_shall_be_the_same():
    for pair in sample(block_digests.draw, 500):
        one, other = ((b.parent, b.tokens, b.extra) for b in (pair.one, pair.other))
        assert (one == other) == (pair.kind in ("same", "left out"))


def stub(*_: Any) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize("missing", METHODS)
def test_a_half_written_pool_is_told_so_not_that_it_is_wrong(missing):
    feedback = lab_05.block_pool(type("Half", (answers.CachingBlockPool,), {missing: stub}))
    assert feedback.status == "not written yet"
    assert "stub" in feedback.headline


@pytest.mark.parametrize("part", ["hash_tokens", "hasher", "pool", "lookup", "free"])
def test_the_last_exercise_names_a_part_that_is_not_written(part):
    half = type("Half", (answers.CachingBlockPool,), {"touch": stub})
    feedback = lab_05.engine(lambda c, h: plugged(c, h, **{part: half if part == "pool" else stub}))
    assert feedback.status == "not written yet"


def test_a_constructor_that_fails_is_the_learners_fault():
    pool_class = type("NoNumber", (BlockPool,), {"__init__": lambda self: None})
    assert lab_05.block_pool(pool_class).status == "failed"
