"""What lab 05 calls right is what the engine does, and its inputs reach the corners."""

from __future__ import annotations

from typing import Any

import pytest

from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import NotWritten
from utils.checks.lab_05 import (
    block_digests,
    endings,
    growing_requests,
    lookups,
    pool_play,
    stolen_blocks,
)
from utils.checks.lab_05.learners_parts import PluggedKVCacheManager, check_parts
from utils.checks.lab_05.lookups import right_lookup
from utils.checks.lab_05.pool_mistakes import Base
from utils.checks.lab_05.predictions import draw, found_tokens
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
)
from utils.sim.prompt_cache import bare_request, find_cached_tokens


def test_brute_force_finds_what_the_engines_manager_finds():
    drawn = [given.args for given in sample(draw, 60)]
    found = [found_tokens(prompts, size) for prompts, size in drawn]
    assert found == [find_cached_tokens(prompts, size) for prompts, size in drawn]
    assert sum(map(any, found)) > 20


@pytest.mark.parametrize("num_tokens", [3, 8, 11])
def test_the_right_hasher_makes_the_engines_chain(num_tokens):
    request = bare_request(0, list(range(num_tokens)))
    keys = get_request_block_hasher(4, get_hash_fn_by_name("sha256"))(request)
    recorder = growing_requests.Recorder("h", 0)
    links = growing_requests.right_hasher(request, 4, recorder)
    sha256 = get_hash_fn_by_name("sha256")
    hashed: dict[Any, bytes] = {None: None}  # by its link
    for link in links:
        hashed[link] = hash_block_tokens(sha256, hashed[link.parent], link.token_ids)
    assert [hashed[link] for link in links] == keys
    assert [link.parent for link in links] == [None, *links][: len(links)]


def test_the_right_lookup_is_the_engines():
    hasher = get_request_block_hasher(2, get_hash_fn_by_name("sha256"))
    manager = KVCacheManager(20, 2, True, hasher)
    for number, length in enumerate((5, 8, 8, 3, 1)):
        request = bare_request(number, list(range(length)))
        blocks, found = manager.get_computed_blocks(request)
        assert right_lookup(request, 2, manager.block_pool) == (blocks, found)
        manager.allocate_slots(request, length - found, blocks)


def test_inputs_reach_the_corners():
    assert {p.kind for p in sample(block_digests.draw, 300)} == set(block_digests.KINDS)
    tokens = [t for p in sample(block_digests.draw, 300) for t in p.one.tokens]
    assert max(tokens) > 65_535
    assert {s for g in sample(growing_requests.draw, 200) for *_, s in g.starts} == {
        None,
        "ada",
        "",
        "bob",
        " ",
        "None",
        "0",
    }
    drawn = sample(lookups.draw, 200)
    assert any(look.blocks and "gone" not in look.blocks for look in drawn)
    assert any(len(look.blocks) > 64 for look in drawn)
    thefts = sample(stolen_blocks.draw, 200)
    assert {theft.num_bytes for theft in thefts} == {1, 2}
    assert {len(theft.prompt) // theft.block_size for theft in thefts} == {1, 2, 3, 4}
    assert any(theft.vocab_size < 2 ** stolen_blocks.BITS[theft.num_bytes] for theft in thefts)
    assert any(case.full < case.size for case in sample(endings.draw, 50))
    stories = sample(pool_play.draw, 300)
    assert {len(story.sizes) for story in stories} == {1, 2}
    assert max(story.sizes[0] for story in stories) > 1024


def test_a_pair_differs_unless_it_shall_be_the_same():
    for pair in sample(block_digests.draw, 500):
        same = (pair.one.parent, pair.one.tokens, pair.one.extra) == (
            pair.other.parent,
            pair.other.tokens,
            pair.other.extra,
        )
        assert same == (pair.kind in ("same", "left out"))


def test_the_smallest_story_is_empty():
    assert pool_play.draw(Choices()).steps == ()


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize(
    "part", ["hash_block_tokens", "request_block_hasher", "get_computed_blocks", "free_request"]
)
def test_the_last_exercise_names_a_part_that_is_not_written(part):
    def make(config, hash_function):
        parts = {
            "hash_block_tokens": block_digests.right_hash,
            "request_block_hasher": growing_requests.right_hasher,
            "get_computed_blocks": right_lookup,
            "free_request": endings.right_ending,
        }
        pool = Base(config.num_gpu_blocks)
        return PluggedKVCacheManager(config, hash_function, pool, **parts | {part: stub})

    with pytest.raises(NotWritten, match="stub"):
        check_parts(make)
