"""The checks of lab 05 beyond the bug zoo: half-written answers, the oracles, the pictures."""

from __future__ import annotations

import random
import sys

import pytest

from utils.checks import lab_05
from utils.checks.kit import prefix_pictures
from utils.checks.kit.runner import Mismatch, NotWritten
from utils.checks.lab_05.learners_engine import PluggedKVCacheManager, rehearse, start
from utils.checks.lab_05.lookups import found_tokens
from utils.checks.lab_05.pool_stories import METHODS, STORIES, Story, engine_methods_refuse
from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import (
    BlockHash,
    get_hash_fn_by_name,
    get_request_block_hasher,
)
from utils.sim.prompt_cache import bare_request


def half_written(missing):
    """The engine's pool as a learner's, with one method still a stub."""

    def stub(*_):
        raise NotImplementedError

    return type("Pool", (BlockPool,), {missing: stub})


@pytest.mark.parametrize("missing", METHODS)
def test_a_half_written_pool_is_told_so_not_that_it_is_wrong(missing, monkeypatch):
    monkeypatch.setattr(
        "utils.checks.lab_05.pool_stories.METHODS", ()
    )  # the other four are inherited
    feedback = lab_05.block_pool(half_written(missing))
    assert feedback.status == "not written yet"
    assert "stub" in feedback.headline


@pytest.mark.parametrize("story", STORIES)
def test_the_engines_own_pool_passes_each_story(story):
    story(BlockPool)


@pytest.mark.parametrize("method", METHODS)
def test_the_engines_methods_refuse_only_while_they_are_asked_to(method):
    with engine_methods_refuse(), pytest.raises(Mismatch, match="engine's own method"):
        getattr(BlockPool(2), method)([], [], 0, 0)
    with pytest.raises(TypeError):
        getattr(BlockPool(2), method)(*range(9))


def plugged(config: EngineConfig, hash_function, **parts):
    def unwritten(*_):
        raise NotImplementedError

    defaults = {
        "block_hasher": get_request_block_hasher(config.block_size, hash_function),
        "get_computed_blocks": lambda request, size, pool: ([], 0),
        "free_request": lambda pool, table: pool.free_blocks(reversed(table)),
    }
    defaults |= dict.fromkeys(parts, unwritten)
    return PluggedKVCacheManager(config, half_written("none")(config.num_gpu_blocks), **defaults)


@pytest.mark.parametrize("part", ["block_hasher", "get_computed_blocks", "free_request"])
def test_the_last_exercise_names_a_part_that_is_not_written(part):
    rehearse(plugged)  # all are there
    with pytest.raises(NotWritten, match="unwritten"):
        rehearse(lambda config, hash_function: plugged(config, hash_function, **{part: None}))


def test_brute_force_finds_what_the_engines_manager_finds():
    dice = random.Random(2)
    for block_size in (1, 2, 3, 4):
        prompts = [[dice.randrange(2) for _ in range(dice.randint(1, 14))] for _ in range(40)]
        hasher = get_request_block_hasher(block_size, get_hash_fn_by_name("sha256"))
        manager = KVCacheManager(1000, block_size, True, hasher)
        found = []
        for number, prompt in enumerate(prompts):
            request = bare_request(number, list(prompt))
            found.append(start(manager, request, ""))
            manager.free(request)
        assert found == found_tokens(prompts, block_size)
        assert any(found)


def test_recursion_is_noticed_though_a_kernel_may_allow_more_of_it():
    class Recursive(BlockHash):
        __hash__ = BlockHash.__hash__

        def __eq__(self, other):
            if not isinstance(other, Recursive) or self.digest != other.digest:
                return False
            same = (self.token_ids, self.extra_keys) == (other.token_ids, other.extra_keys)
            return same and self.parent == other.parent

    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(5000)
        assert "RecursionError" in lab_05.block_hash(Recursive).headline
        assert sys.getrecursionlimit() == 5000
    finally:
        sys.setrecursionlimit(limit)


def test_a_constructor_that_fails_is_the_learners_fault():
    assert lab_05.block_hash(object).status == "failed"


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_pictures_show_blocks_and_legend():
    figure = prefix_pictures.prompts([[1, 2, 3], [1, 2, 4, 5]], 2, [0, 2], [0, 0])
    assert texts(figure) == ["1 2", "3", "1 2", "4 5"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["to be computed", "not as expected"]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["prompt 0: 0 found", "prompt 1: 2 found, not 0"]

    figure = prefix_pictures.eviction([True, True, False], [False, True, True])
    assert len(texts(figure)) == 12

    with pytest.raises(Mismatch) as caught:
        story = Story(BlockPool, 2)
        story.refs[0] = 1
        story.look()
    assert texts(caught.value.figure) == ["-, 1", "-, 0", "-, 0", "-, 0"]
