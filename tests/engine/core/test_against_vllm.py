"""Our block pool and KV cache manager against vLLM's own, in the same random stories.

Where we differ on purpose:

- vLLM keeps block 0 as a null block, for sliding windows; we have no such block. So vLLM gets one
  block more, and its block ids are ours plus one.
- Our hashes have other bytes. Which blocks share a hash must agree.
- Only we fork (copy-on-write) and swap; those are tested in `test_kv_cache_manager.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.engine.core.bare_requests import make_request
from utils.checks.lab_04 import counted
from utils.engine import (
    BlockHash,
    BlockPool,
    KVCacheManager,
    Request,
    get_hash_fn_by_name,
    get_request_block_hasher,
)

OPERATIONS = 21_000  # of each story; 105,000 in all


@pytest.fixture(scope="module")
def vllm() -> Any:
    """vLLM's classes, under their own names."""
    from types import SimpleNamespace

    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    kv_cache_utils.init_none_hash(sha256)
    params = SamplingParams(max_tokens=10**6)

    def manager(num_blocks: int, block_size: int, enable_caching: bool) -> Any:
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = KVCacheConfig(
            num_blocks=num_blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        return KVCacheManager(
            config,
            max_model_len=10**6,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=enable_caching,
            log_stats=True,
        )

    def request(name: str, tokens: list[int], block_size: int, salt: str | None = None) -> Any:
        return Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=params,
            pooling_params=None,
            cache_salt=salt,
            block_hasher=kv_cache_utils.get_request_block_hasher(block_size, sha256),
        )

    return SimpleNamespace(manager=manager, request=request)


@dataclass
class Story:
    """Random requests, told to both managers; after each operation they must agree."""

    vllm: Any
    num_blocks: int
    block_size: int
    enable_caching: bool = True
    seed: int = 0
    running: list[tuple[Request, Any]] = field(default_factory=list)
    seen: list[tuple[list[int], str | None]] = field(default_factory=list)
    hashes: dict[bytes, BlockHash] = field(default_factory=dict)  # vLLM's to ours
    backward: dict[BlockHash, bytes] = field(default_factory=dict)  # and ours to vLLM's
    count: int = 0
    num_hits: int = 0
    num_refusals: int = 0
    num_evictions: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        hasher = get_request_block_hasher(self.block_size, get_hash_fn_by_name("sha256"))
        self.ours = KVCacheManager(self.num_blocks, self.block_size, self.enable_caching, hasher)
        self.theirs = self.vllm.manager(self.num_blocks, self.block_size, self.enable_caching)
        self.contents: list[bytes | None] = [None] * self.num_blocks
        room = self.num_blocks * self.block_size
        rng = self.random
        self.prefixes = [
            [rng.randrange(50) for _ in range(rng.randrange(room // 3))] for _ in range(6)
        ]

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.25 or not self.running:
            self.arrive()
        elif choice < 0.80:
            self.grow(self.random.choice(self.running))
        else:  # it finishes, is aborted, or is preempted: for the manager all the same
            self.leave(self.random.choice(self.running))
        self.compare()

    def arrive(self) -> None:
        rng = self.random
        if self.seen and rng.random() < 0.5:  # the same prompt again, or a follow-up of it
            tokens, salt = rng.choice(self.seen[-30:])
        else:
            tokens, salt = rng.choice(self.prefixes), rng.choice([None, None, "a", "b"])
        room = self.num_blocks * self.block_size
        tokens = [*tokens, *(rng.randrange(50) for _ in range(rng.randrange(1, 40)))][:room]
        if rng.random() < 0.2:
            tokens = tokens[: max(1, len(tokens) // self.block_size * self.block_size)]
        self.count += 1
        name = f"request-{self.count}"
        ours = make_request(tokens, name, cache_salt=salt)
        theirs = self.vllm.request(name, tokens, self.block_size, salt)
        our_blocks, our_hits = self.ours.get_computed_blocks(ours)
        their_blocks, their_hits, _ = self.theirs.get_computed_blocks(theirs)
        assert our_hits == their_hits
        assert [b.block_id + 1 for b in our_blocks] == their_blocks.get_block_ids()[0]
        self.num_hits += our_hits
        size = rng.randrange(1, len(tokens) - our_hits + 1)  # maybe only a chunk of the prompt
        our_new = self.ours.allocate_slots(ours, size, our_blocks)
        their_new = self.theirs.allocate_slots(theirs, size, their_hits, their_blocks)
        self.same_blocks(our_new, their_new)
        if our_new is not None:
            ours.num_computed_tokens = theirs.num_computed_tokens = our_hits + size
            self.running.append((ours, theirs))
            self.seen.append((tokens, salt))

    def grow(self, pair: tuple[Request, Any]) -> None:
        """Compute a further chunk of the prompt; or, at its end, sample a token and compute it."""
        ours, theirs = pair
        left = ours.num_tokens - ours.num_computed_tokens
        if left == 0:
            token = self.random.randrange(50)
            ours.all_token_ids.append(token)
            theirs.append_output_token_ids(token)
            left = 1
        size = self.random.randrange(1, left + 1)
        our_new = self.ours.allocate_slots(ours, size)
        self.same_blocks(our_new, self.theirs.allocate_slots(theirs, size))
        if our_new is not None:
            ours.num_computed_tokens += size
            theirs.num_computed_tokens += size

    def leave(self, pair: tuple[Request, Any]) -> None:
        self.running.remove(pair)
        self.ours.free(pair[0])
        self.theirs.free(pair[1])
        self.seen.append((list(pair[0].all_token_ids), pair[0].cache_salt))

    def same_blocks(self, ours: list[Any] | None, theirs: Any) -> None:
        assert (ours is None) == (theirs is None)
        if ours is None:
            self.num_refusals += 1
        else:
            assert [block.block_id + 1 for block in ours] == theirs.get_block_ids()[0]

    def compare(self) -> None:
        our_pool, their_pool = self.ours.block_pool, self.theirs.block_pool
        assert our_pool.get_num_free_blocks() == their_pool.get_num_free_blocks()
        for mine, yours in self.running:
            for our_hash, their_hash in zip(mine.block_hashes, yours.block_hashes, strict=False):
                assert self.hashes.setdefault(their_hash, our_hash) == our_hash
                assert self.backward.setdefault(our_hash, their_hash) == their_hash
        for i, (mine, yours) in enumerate(zip(our_pool.blocks, their_pool.blocks[1:], strict=True)):
            assert mine.ref_cnt == yours.ref_cnt
            their_hash = yours.block_hash and yours.block_hash[:32]  # without the cache group
            assert (mine.block_hash is None) == (their_hash is None)
            if mine.block_hash is not None:
                assert self.hashes[their_hash] == mine.block_hash
            self.num_evictions += self.contents[i] not in (None, their_hash)
            self.contents[i] = their_hash


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "enable_caching"),
    [(60, 16, True), (40, 4, True), (30, 1, True), (12, 32, True), (60, 16, False)],
)
def test_same_story(vllm: Any, num_blocks: int, block_size: int, enable_caching: bool) -> None:
    story = Story(vllm, num_blocks, block_size, enable_caching, seed=num_blocks)
    for _ in range(OPERATIONS):
        story.step()
    # The story was worth telling: there were hits, and the pool overflowed.
    assert story.num_refusals > OPERATIONS / 100
    assert (story.num_hits > OPERATIONS / 2) == enable_caching
    assert (story.num_evictions > OPERATIONS / 20) == enable_caching


def test_free_queue_order_is_vllms(vllm: Any) -> None:
    """The order in which blocks will be reused, from first to last."""
    story = Story(vllm, 24, 8, seed=5)
    for _ in range(2000):
        story.step()
        ours = [block.block_id + 1 for block in story.ours.block_pool.free_block_queue]
        queue = story.theirs.block_pool.free_block_queue
        assert ours == [block.block_id for block in queue.get_all_free_blocks()]


def test_the_comparison_finds_a_wrong_eviction_order(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head-first freeing, a real bug, does not pass."""
    right = BlockPool.free_blocks
    monkeypatch.setattr(
        BlockPool, "free_blocks", lambda pool, blocks: right(pool, reversed(list(blocks)))
    )
    story = Story(vllm, 40, 4, seed=1)
    with pytest.raises(AssertionError):
        for _ in range(2000):
            story.step()


def test_lab_04_counts_tokens_slots_and_blocks_as_both_managers_do(vllm: Any) -> None:
    dice = random.Random(0)
    for name in map(str, range(30)):
        size, prompt = dice.choice((1, 3, 4, 16)), dice.randint(1, 40)
        ours, request = KVCacheManager(90, size, False), make_request([1] * prompt, name)
        theirs, their_request = (
            vllm.manager(90, size, False),
            vllm.request(name, [1] * prompt, size),
        )
        for step in range(1, 41):
            for manager, one in ((ours, request), (theirs, their_request)):
                missing = one.num_tokens - one.num_computed_tokens
                assert manager.allocate_slots(one, missing) is not None
                one.num_computed_tokens += missing
            request.append_token(1)
            their_request.append_output_token_ids(1)
            expected = counted(prompt, step, size)
            for one, blocks in (
                (request, ours.get_block_ids(name)),
                (their_request, theirs.get_block_ids(name)[0]),
            ):
                got = one.num_tokens, one.num_computed_tokens, len(blocks) * size, len(blocks)
                assert got == expected
