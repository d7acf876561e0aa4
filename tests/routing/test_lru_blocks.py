"""The bounded set of blocks against a list in order of use, and against the engine's own cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.routing.lru_blocks import LruBlocks
from utils.sim.prompt_cache import find_cached_tokens


def named(tokens: list[int]) -> list[tuple[int, ...]]:
    """A name for each token that names all tokens up to it, as a block hash does."""
    return [tuple(tokens[: end + 1]) for end in range(len(tokens))]


prompts = st.lists(st.lists(st.integers(0, 2), max_size=6).map(named), max_size=60)


@given(prompts, st.integers(1, 8))
def test_least_recently_used_goes_first_and_of_a_prompt_the_tail(
    sent: list[list[tuple[int, ...]]], capacity: int
) -> None:
    cache, order = LruBlocks(capacity), list[tuple[int, ...]]()  # oldest first
    for names in sent:
        assert cache.match(names) == sum(name in order for name in names)
        found, evicted = cache.use(names)
        assert found == sum(name in order for name in names)
        order = [name for name in order if name not in names] + names[::-1]
        gone, order = order[:-capacity], order[-capacity:]
        assert evicted == gone
        assert len(cache) == len(order) and all(name in cache for name in order)
        for name in order:  # what lies before a held block is held
            assert name[:-1] in order or len(name) == 1


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=15),
    st.integers(6, 9),
)
def test_finds_what_the_engine_finds(sent: list[list[int]], capacity: int) -> None:
    """Prompts of full blocks and one token more, one after another; that token takes a block."""
    tokens = [[token for block in prompt for token in (block,) * 4] + [9] for prompt in sent]
    cache = LruBlocks(capacity)
    found = [4 * cache.use(named(prompt))[0] for prompt in sent]
    assert find_cached_tokens(tokens, 4, capacity + 1) == found


def test_no_limit_and_no_leak() -> None:
    free, small = LruBlocks(None), LruBlocks(4)
    for number in range(1000):
        free.use([number])
        small.use([number % 3])
    assert len(free) == 1000 and len(small) == 3
    assert len(small._uses) <= 9
    small.clear()
    assert len(small) == 0 and small.use([1, 2]) == (0, [])


def test_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 block"):
        LruBlocks(0)
