"""What the engine's pool tells: the same story told to vLLM's pool must yield the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm.v1.core.block_pool import BlockPool as TheirPool
from vllm.v1.core.kv_cache_utils import BlockHash as TheirHash

from utils.engine import LLM, BlockPool, EngineConfig, KVCacheManager, SamplingParams
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.kv_cache_utils import (
    BlockHash,
    KVCacheBlock,
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
)
from utils.kv_events.engine_events import PublishedEvents
from utils.kv_events.kv_events import AllBlocksCleared, BlockStored, KVEventBatch
from utils.sim.prompt_cache import bare_request

SIZE = 4
HASH = get_hash_fn_by_name("sha256")


def chain(tokens: list[int], salt: str | None = None) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    for begin in range(0, len(tokens) - SIZE + 1, SIZE):
        parent = hashes[-1] if hashes else None
        extra = (None, salt) if salt and parent is None else None
        hashes.append(hash_block_tokens(HASH, parent, tokens[begin : begin + SIZE], extra))
    return hashes


def their_request(tokens: list[int], hashes: list[BlockHash], salt: str | None) -> Any:
    """What vLLM's pool reads of a request."""
    return SimpleNamespace(
        block_hashes=[TheirHash(block_hash) for block_hash in hashes],
        all_token_ids=tokens,
        lora_request=None,
        session_id=None,
        mm_features=[],
        cache_salt=salt,
        prompt_embeds=None,
        prompt_is_token_ids=None,
        request_id="0",
    )


def our_request(tokens: list[int], hashes: list[BlockHash], salt: str | None) -> Any:
    """What our listener reads of a request."""
    return SimpleNamespace(
        block_hashes=hashes, all_token_ids=tokens, lora_name=None, cache_salt=salt
    )


def told_pool(num_blocks: int) -> tuple[BlockPool, PublishedEvents]:
    """A pool, and who is told what becomes of it."""
    pool, told = BlockPool(num_blocks), PublishedEvents(lambda batch: None)
    pool.events = told
    return pool, told


class BothPools:
    """Our pool and vLLM's, told the same. (vLLM keeps a block for itself.)"""

    def __init__(self, num_blocks: int) -> None:
        self.ours, self.told = told_pool(num_blocks)
        self.theirs = TheirPool(num_blocks + 1, True, SIZE, enable_kv_cache_events=True)

    def cache(
        self, tokens: list[int], steps: Sequence[int], salt: str | None = None
    ) -> tuple[list[KVCacheBlock], list[Any]]:
        """A request whose blocks become full in several steps."""
        hashes = chain(tokens, salt)
        mine = self.ours.get_new_blocks(len(hashes))
        other = self.theirs.get_new_blocks(len(hashes))
        request, done = their_request(tokens, hashes, salt), 0
        for end in [*sorted(steps), len(hashes)]:
            if end > done:
                self.ours.cache_full_blocks(mine, hashes, done, end)
                self.told.blocks_stored(our_request(tokens, hashes, salt), done, end, SIZE)
                self.theirs.cache_full_blocks(request, other, done, end, SIZE, 0)
                done = end
        return mine, other

    def free(self, table: tuple[list[KVCacheBlock], list[Any]]) -> None:
        self.ours.free_blocks(reversed(table[0]))
        self.theirs.free_blocks(reversed(table[1]))

    def check(self) -> list[Any]:
        """The events so far, which must be the same bytes."""
        mine, other = self.told.take_events(), self.theirs.take_events()
        for event in other:
            if hasattr(event, "kv_cache_spec_kind"):
                event.kv_cache_spec_kind = "full_attention"  # vLLM's manager writes it in
        assert msgspec.msgpack.encode(mine) == msgspec.msgpack.encode(other)
        return mine


def test_the_same_stories_yield_the_same_bytes() -> None:
    seen = {type(event).__name__ for seed in range(40) for event in tell(random.Random(seed))}
    assert seen == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}


def tell(rng: random.Random) -> list[Any]:
    """A story of requests that come and go, told to both pools. Returns its events."""
    pools, tables, seen = BothPools(10), [], []
    for _ in range(25):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 4 * SIZE))]
        need = len(tokens) // SIZE
        if tables and rng.random() < 0.5:
            pools.free(tables.pop(rng.randrange(len(tables))))
        elif need <= pools.ours.get_num_free_blocks():
            steps = [rng.randrange(need + 1) for _ in range(2)]
            tables.append(pools.cache(tokens, steps, rng.choice([None, None, "tenant"])))
        if not tables and rng.random() < 0.3:
            assert pools.ours.reset_prefix_cache() and pools.theirs.reset_prefix_cache()
        seen += pools.check()
    return seen


def test_events_are_handed_out_once_and_nothing_is_told_of_nothing() -> None:
    pool, told = told_pool(2)
    manager = KVCacheManager(2, SIZE, True, get_request_block_hasher(SIZE, HASH), block_pool=pool)
    request = bare_request(0, [1, 2, 3, 4, 5])
    manager.allocate_slots(request, 2)
    assert told.take_events() == []
    request.num_computed_tokens = 2
    manager.allocate_slots(request, 3)
    [event] = told.take_events()
    assert isinstance(event, BlockStored) and event.token_ids == [1, 2, 3, 4]
    assert told.take_events() == []
    pool.forget_contents()
    assert told.take_events() == [AllBlocksCleared()]


def test_an_engine_publishes_after_each_step(tiny_folder: Path) -> None:
    batches: list[KVEventBatch] = []
    llm = LLM(
        tiny_folder,
        block_size=SIZE,
        num_gpu_blocks_override=6,
        max_model_len=24,
        kv_events=PublishedEvents(batches.append),
    )
    plain = LLM(tiny_folder, block_size=SIZE, num_gpu_blocks_override=6, max_model_len=24)
    prompts = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [4] * 14, [3, 4, 5, 6, 7, 8, 9, 10, 12]]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    for prompt in prompts:
        [mine], [other] = (one.generate([prompt], params, use_tqdm=False) for one in (llm, plain))
        assert mine.outputs[0].token_ids == other.outputs[0].token_ids
        # Whoever has read all events knows exactly what can be found.
        held: dict[Any, int] = {}
        for event in (event for batch in batches for event in batch.events):
            if isinstance(event, AllBlocksCleared):
                held.clear()
                continue
            change = 1 if isinstance(event, BlockStored) else -1
            for name in event.block_hashes:
                held[name] = held.get(name, 0) + change
        pool = llm.llm_engine.kv_cache_manager.block_pool
        found = {
            int.from_bytes(block_hash[-8:], "big"): len(blocks)
            for block_hash, blocks in pool.cached_block_hash_to_block.items()
        }
        assert {name: n for name, n in held.items() if n} == found
    assert len(batches) > 3 and all(batch.events for batch in batches)


def test_where_there_is_nothing_to_tell(tiny_folder: Path) -> None:
    events = PublishedEvents(lambda batch: None)
    with pytest.raises(ValueError, match="enable prefix caching"):
        LLM(tiny_folder, enable_prefix_caching=False, kv_events=events)

    class OwnPool(BlockPool):
        """Somebody's who has not thought of events."""

    def manager(config: EngineConfig) -> KVCacheManager:
        made = make_kv_cache_manager(config)
        made.block_pool = OwnPool(config.num_gpu_blocks)
        return made

    with pytest.raises(ValueError, match=r"own block pool.*has a OwnPool"):
        LLM(tiny_folder, kv_cache_manager=manager, kv_events=events)
