"""Hits of real prompts: against brute force, and in caches that evict."""

from __future__ import annotations

import random

import pytest

from utils.sim.prompt_cache import PromptTooLong, find_cached_tokens


def brute_force(prompts: list[list[int]], block_size: int) -> list[int]:
    seen: set[tuple[int, ...]] = set()
    found = []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        usable = [end for end in ends if end < len(prompt) and tuple(prompt[:end]) in seen]
        found.append(max(usable, default=0))
        seen.update(tuple(prompt[:end]) for end in ends)
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_without_a_limit_it_equals_brute_force(seed: int, block_size: int) -> None:
    dice = random.Random(seed)
    stems = [[dice.randrange(3) for _ in range(12)] for _ in range(3)]
    prompts = [
        dice.choice(stems)[: dice.randint(1, 12)] + [9] * dice.randint(0, 3) for _ in range(20)
    ]
    assert find_cached_tokens(prompts, block_size) == brute_force(prompts, block_size)


def test_the_least_recently_used_block_goes_first_the_tail_before_the_head() -> None:
    a, b = [1] * 8 + [5], [2] * 4 + [5]
    assert find_cached_tokens([a, a], 4, 3) == [0, 8]
    # b needs two blocks: the one that nobody can find, and the tail of a.
    assert find_cached_tokens([a, b, a], 4, 3) == [0, 0, 4]
    assert find_cached_tokens([b, a, b], 4, 3) == [0, 0, 0]


def test_salts_keep_tenants_apart() -> None:
    prompt = [1, 2, 3, 4, 5]
    found = find_cached_tokens([prompt] * 5, 4, salts=["x", "y", None, "x", None])
    assert found == [0, 0, 0, 4, 4]


def test_bad_input() -> None:
    with pytest.raises(PromptTooLong, match="needs 3 blocks of 4, but the cache has 2"):
        find_cached_tokens([[1], [1] * 9], 4, 2)
    with pytest.raises(ValueError, match="shorter"):
        find_cached_tokens([[1], [2]], 4, salts=["x"])
    assert find_cached_tokens([], 4) == []
