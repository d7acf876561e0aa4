"""Names of blocks, and engines' events under them, against a plain list of prompts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.engine import LLM, SamplingParams
from utils.kv_events.engine_events import PublishedEvents
from utils.kv_events.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from utils.routing.prefix_index import KVIndex
from utils.routing.router.block_names import EventNames, block_names

TOKENS = st.lists(st.integers(0, 3), max_size=12)
SALT = st.sampled_from([None, "a"])


@given(
    TOKENS, TOKENS, st.integers(1, 4), st.sampled_from([None, "a"]), st.sampled_from([None, "a"])
)
def test_two_names_are_equal_exactly_if_all_tokens_before_are(
    one: list[int], other: list[int], size: int, salt: str | None, other_salt: str | None
) -> None:
    first, second = block_names(one, size, salt), block_names(other, size, other_salt)
    assert len(first) == len(one) // size
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        end = (i + 1) * size
        assert (a == b) == (one[:end] == other[:end] and salt == other_salt)


def engine(folder: Path, names: EventNames, **options: Any) -> LLM:
    return LLM(
        folder, block_size=4, max_model_len=32, kv_events=PublishedEvents(names.apply), **options
    )


@pytest.mark.parametrize("salt", [None, "tenant"])
def test_the_index_knows_what_the_engine_will_find(tiny_folder: Path, salt: str | None) -> None:
    """On a cache that is much too small, the index foretells each request's hit, to the token."""
    index, rng = KVIndex(1), random.Random(1)
    llm = engine(tiny_folder, EventNames(index, 0), num_gpu_blocks_override=9)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    hits = 0
    for _ in range(60):
        prompt = [rng.randrange(3, 5) for _ in range(rng.randrange(1, 25))]
        [found] = index.matches(block_names(prompt, 4, salt))
        given_prompt = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
        [output] = llm.generate([given_prompt], params, use_tqdm=False)
        # At least one token is always computed.
        assert output.num_cached_tokens == min(found, (len(prompt) - 1) // 4) * 4
        hits += found > 0
    assert 5 < hits < 60


def test_two_copies_of_a_block_are_gone_when_both_are() -> None:
    index = KVIndex(2)
    names = EventNames(index, 1)
    stored = BlockStored([11, 12], None, [1, 2, 3, 4], 2, None, "GPU", None)
    names.apply(KVEventBatch(0.0, [stored, stored]))
    prompt = block_names([1, 2, 3, 4], 2)
    names.apply(KVEventBatch(0.0, [BlockRemoved([12], "GPU")]))
    assert index.matches(prompt) == [0, 2]
    names.apply(KVEventBatch(0.0, [BlockRemoved([12], "GPU")]))
    assert index.matches(prompt) == [0, 1]
    names.apply(KVEventBatch(0.0, [AllBlocksCleared()]))
    assert index.matches(prompt) == [0, 0]


def test_what_cannot_be_named_is_counted_and_other_tiers_do_not_count() -> None:
    index = KVIndex(1)
    names = EventNames(index, 0)
    orphan = BlockStored([2], 1, [3, 4], 2, None, "GPU", None)
    elsewhere = BlockStored([1], None, [1, 2], 2, None, "CPU", None)
    names.apply(KVEventBatch(0.0, [elsewhere, orphan, BlockRemoved([9], "GPU")]))
    assert len(index) == 0 and names.num_unknown == 1
