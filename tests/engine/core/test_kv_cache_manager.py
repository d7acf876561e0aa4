"""Block hashes, the free queue, the pool, and the manager: rules that must hold in any story."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.core.bare_requests import make_request
from utils.engine import (
    BlockHash,
    BlockPool,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    KVCacheManager,
    ModelConfig,
    PagedKVCache,
    Request,
    get_hash_fn_by_name,
    get_request_block_hasher,
    hash_block_tokens,
    slot_mapping,
)
from utils.engine.core.kv_cache_utils import BlockCopies

SHA256 = get_hash_fn_by_name("sha256")


def manager(num_blocks: int, block_size: int = 4, hash_fn: Any = SHA256, **more: Any) -> Any:
    hasher = get_request_block_hasher(block_size, hash_fn)
    return KVCacheManager(num_blocks, block_size, True, hasher, **more)


def compute(kv: KVCacheManager, request: Request) -> int:
    """Let a request in and compute all of it. Returns the tokens it found computed."""
    blocks, num_hits = kv.get_computed_blocks(request)
    assert kv.allocate_slots(request, request.num_tokens - num_hits, blocks) is not None
    request.num_computed_tokens = request.num_tokens
    return num_hits


# Hashes


@pytest.mark.parametrize("name", ["sha256", "xxhash"])
def test_a_hash_stands_for_everything_up_to_its_block(name: str) -> None:
    function = get_hash_fn_by_name(name)

    def chain(*blocks: list[int], extra: Any = None) -> BlockHash:
        last = None
        for i, block in enumerate(blocks):
            last = hash_block_tokens(function, last, block, extra if i == 0 else None)
        assert last is not None
        return last

    different = [
        chain([1, 2]),
        chain([2, 1]),
        chain([1, 2], [3, 4]),
        chain([3, 4]),
        chain([9, 2], [3, 4]),
        chain([1, 2], [3, 4], extra=("a",)),
        chain([1, 2], [3, 4], extra=("b",)),
        chain([1, 2], extra=("a",)),
        chain([1, 2], [3, 4], [3, 4]),
    ]
    assert len(set(different)) == len(different)
    assert chain([1, 2], [3, 4]) == chain([1, 2], [3, 4])


def test_who_has_the_hash_has_the_block() -> None:
    """Nobody compares tokens: with a hash function that knows one value only, all is one prefix."""
    kv = manager(20, hash_fn=lambda data: b"same")
    assert compute(kv, make_request([1, 2, 3, 4, 5], "one")) == 0
    assert compute(kv, make_request([6, 7, 8, 9, 10, 11, 12, 13, 14], "two")) == 8


def test_unknown_hash_function() -> None:
    with pytest.raises(ValueError, match=r"Unknown hash 'md5'\. Expected one of sha256, xxhash"):
        get_hash_fn_by_name("md5")


# The free queue and the pool


def test_queue_against_a_list() -> None:
    blocks = [KVCacheBlock(i) for i in range(10)]
    queue, model = FreeKVCacheBlockQueue(blocks), list(range(10))

    def ids() -> list[int]:
        assert queue.num_free_blocks == len(model)
        return [block.block_id for block in queue]

    assert [b.block_id for b in queue.popleft_n(3)] == model[:3]
    del model[:3]
    for i in (5, 3, 9):  # middle, front, back
        queue.remove(blocks[i])
        model.remove(i)
        assert ids() == model
    queue.append_n([blocks[9], blocks[0]])
    queue.prepend_n([blocks[5], blocks[2]])
    model = [5, 2, *model, 9, 0]
    assert ids() == model
    assert [b.block_id for b in queue.popleft_n(len(model))] == model
    model = []
    assert ids() == []
    with pytest.raises(ValueError, match="not in the free queue"):
        queue.remove(blocks[4])


def test_the_tail_of_a_prefix_is_reused_first_and_unfindable_blocks_before_it() -> None:
    kv = manager(6)
    request = make_request(list(range(10)), "a")  # two full blocks and a partial one
    compute(kv, request)
    kv.free(request)
    order = [block.block_id for block in kv.block_pool.free_block_queue]
    assert order == [2, 3, 4, 5, 1, 0]


@pytest.mark.parametrize("number", [0, -1, 2.0, None])
def test_bad_sizes(number: Any) -> None:
    with pytest.raises(ValueError, match="num_gpu_blocks must be a positive integer"):
        BlockPool(number)
    with pytest.raises(ValueError, match="block_size must be a positive integer"):
        KVCacheManager(4, number, enable_caching=False)


def test_errors_change_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="Cannot get 5 blocks: 4 of 4 are free"):
        pool.get_new_blocks(5)
    assert pool.get_num_free_blocks() == 4
    [block] = pool.get_new_blocks(1)
    pool.free_blocks([block])
    with pytest.raises(ValueError, match="Block 0 is freed twice"):
        pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 4
    with pytest.raises(ValueError, match="only 0 are full"):
        pool.cache_full_blocks(pool.get_new_blocks(1), [], 0, 1)


def test_manager_complains() -> None:
    kv = manager(4, num_cpu_blocks=1)
    request = make_request([1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="num_new_tokens must be at least 1"):
        kv.allocate_slots(request, 0)
    with pytest.raises(ValueError, match="Request 0 has no blocks: finished"):
        kv.fork(request, make_request([1], "child"))
    with pytest.raises(ValueError, match="is not swapped out"):
        kv.swap_in(request)
    compute(kv, request)
    assert not kv.swap_out(request)  # two blocks, and room for one
    assert kv.get_block_ids("0") == [0, 1]
    assert not kv.reset_prefix_cache()
    kv.free(request)
    kv.free(request)  # nothing to free any more
    assert kv.reset_prefix_cache()
    assert kv.usage == 0
    with pytest.raises(ValueError, match="needs a block_hasher"):
        KVCacheManager(4, 4)
    with pytest.raises(ValueError, match="no slot for token 8"):
        slot_mapping([0, 1], 4, 0, 9)


def test_blocks_that_come_back_from_host_memory_are_found_again() -> None:
    kv = manager(8, num_cpu_blocks=8)
    request = make_request(list(range(10)))
    compute(kv, request)
    assert kv.swap_out(request)
    assert kv.block_pool.get_num_free_blocks() == 8
    kv.block_pool.get_new_blocks(8)  # somebody overwrites everything
    kv.block_pool.free_blocks(kv.block_pool.blocks)
    assert kv.swap_in(request)
    copies = kv.take_block_copies()
    assert [host for _, host in copies.swap_out] == [host for host, _ in copies.swap_in]
    assert [block for _, block in copies.swap_in] == kv.get_block_ids("0")
    assert kv.get_computed_blocks(make_request(list(range(10)), "other"))[1] == 8
    kv.fork(request, make_request([*range(10), 3], "child"))
    request.all_token_ids.append(10)
    assert kv.allocate_slots(request, 1) is not None  # a copy of the partial block
    assert kv.take_block_copies().swap_in == []


def test_tokens_move_before_blocks_are_copied_and_at_once() -> None:
    memory = PagedKVCache(ModelConfig(10, 8, 8, 3, 2, 2, 4), num_gpu_blocks=4, block_size=2)
    memory.device_memory.normal_()
    before = memory.device_memory.clone().flatten(2, 3)
    memory.copy_blocks(BlockCopies(move=[(3, 2), (2, 1)], copy=[(1, 3)]))
    after = memory.device_memory.flatten(2, 3)
    for slot, origin in enumerate([0, 2, 3, 3, 4, 5, 3, 3]):
        assert torch.equal(after[:, :, slot], before[:, :, origin])


def test_what_a_request_lost_moves_no_more() -> None:
    kv = manager(8)
    ours, theirs = (make_request([i] * 6, str(i)) for i in (1, 2))
    for request in (ours, theirs):
        compute(kv, request)
    mine, yours = (4 * kv.get_block_ids(r.request_id)[1] for r in (ours, theirs))
    kv.move_slots([(mine + 3, mine + 2), (yours + 3, yours + 2)])
    kv.free(ours)
    assert kv.take_block_copies().move == [(yours + 3, yours + 2)]
    assert kv.take_block_copies().move == []


def test_tenants_and_adapters_share_no_blocks() -> None:
    kv = manager(40)
    kinds = [
        {},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"lora_name": "a"},
        {"cache_salt": "a", "lora_name": "a"},
    ]
    for again in (False, True):
        for i, extra in enumerate(kinds):
            request = make_request([1] * 9, f"{again} {i}", **extra)
            assert compute(kv, request) == (8 if again else 0)


def test_copies_move_keys_and_values() -> None:
    """Swap out, overwrite, copy on write, swap in: in the order that a step makes them."""
    config = ModelConfig(10, 8, 8, 3, 2, 2, 4)
    memory = PagedKVCache(config, num_gpu_blocks=5, block_size=2, num_cpu_blocks=2)
    memory.device_memory.normal_()
    before = memory.device_memory.clone()
    memory.copy_blocks(BlockCopies(swap_out=[(0, 1), (3, 0)], copy=[(4, 0), (1, 3)]))
    memory.copy_blocks(BlockCopies(swap_in=[(1, 2), (0, 1)]))
    for block, origin in ((0, 4), (1, 3), (2, 0), (3, 1), (4, 4)):
        assert torch.equal(memory.device_memory[:, :, block], before[:, :, origin])
    # 2 (K and V) x 3 layers x 5 blocks of 2 tokens x 2 heads of 4 float32
    assert memory.nbytes == 2 * 3 * 5 * 2 * 2 * 4 * 4
    key, value = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    memory.write(1, key, value, torch.tensor(slot_mapping([3, 0], 2, 1, 4)))
    assert torch.equal(memory.keys[1, 3, 1], key[0])
    assert torch.equal(memory.values[1, 0], value[1:])


def test_stats_count_each_request_once() -> None:
    kv = manager(4)
    first, second = make_request([1] * 9, "a"), make_request([1] * 9, "b")
    compute(kv, first)
    for _ in range(5):  # looked up again and again, until there is room
        kv.get_computed_blocks(second)
    compute(kv, second)
    stats = kv.prefix_cache_stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 18, 8)
    assert stats.hit_rate == 8 / 18


# Any story


class AnyStory(RuleBasedStateMachine):
    """Requests come, grow, fork, wait in host memory, and go.

    Beside the manager there is a memory of our own, in which each slot holds what a real one would
    stand for: the tokens up to and including its own. A request must always find its own there.
    """

    BLOCK_SIZE, NUM_BLOCKS, NUM_HOST_BLOCKS = 3, 12, 4

    def __init__(self) -> None:
        super().__init__()
        self.kv = manager(self.NUM_BLOCKS, self.BLOCK_SIZE, num_cpu_blocks=self.NUM_HOST_BLOCKS)
        empty = [None] * self.BLOCK_SIZE
        self.device: list[list[Any]] = [list(empty) for _ in range(self.NUM_BLOCKS)]
        self.host: list[list[Any]] = [list(empty) for _ in range(self.NUM_HOST_BLOCKS)]
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.count = 0

    def new(self, tokens: list[int], salt: str | None) -> Request:
        self.count += 1
        return make_request(tokens, f"request-{self.count}", cache_salt=salt)

    def forward(self, request: Request, start: int, end: int) -> None:
        """What the model runner does: first the copies, then one slot for each new token."""
        copies = self.kv.take_block_copies()
        for source, target, pairs in (
            (self.device, self.host, copies.swap_out),
            (self.device, self.device, copies.copy),
            (self.host, self.device, copies.swap_in),
        ):
            for a, b in pairs:
                target[b] = list(source[a])
        ids = self.kv.get_block_ids(request.request_id)
        for position, slot in zip(
            range(start, end), slot_mapping(ids, self.BLOCK_SIZE, start, end), strict=True
        ):
            block, offset = divmod(slot, self.BLOCK_SIZE)
            assert self.kv.block_pool.blocks[block].ref_cnt == 1, "written while shared or free"
            past = tuple(request.all_token_ids[: position + 1])
            self.device[block][offset] = (request.cache_salt, past)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        salt=st.sampled_from([None, "tenant"]),
        chunk=st.integers(1, 20),
    )
    def arrive(self, tokens: list[int], salt: str | None, chunk: int) -> None:
        request = self.new(tokens, salt)
        blocks, num_hits = self.kv.get_computed_blocks(request)
        assert num_hits < len(tokens)
        size = min(chunk, len(tokens) - num_hits)
        if self.kv.allocate_slots(request, size, blocks) is not None:
            self.forward(request, num_hits, num_hits + size)
            request.num_computed_tokens = num_hits + size
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1), chunk=st.integers(1, 5))
    def grow(self, data: Any, token: int, chunk: int) -> None:
        request = data.draw(st.sampled_from(self.running))
        done = request.num_computed_tokens
        if done == request.num_tokens:
            request.all_token_ids.append(token)
        size = min(chunk, request.num_tokens - done)
        if self.kv.allocate_slots(request, size) is not None:
            self.forward(request, done, done + size)
            request.num_computed_tokens = done + size

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1))
    def fork(self, data: Any, token: int) -> None:
        parent = data.draw(st.sampled_from(self.running))
        computed = parent.all_token_ids[: parent.num_computed_tokens]
        child = self.new([*computed, token], parent.cache_salt)
        self.kv.fork(parent, child)
        assert child.num_computed_tokens == parent.num_computed_tokens
        self.running.append(child)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        self.kv.free(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def swap_out(self, data: Any) -> None:
        request = data.draw(st.sampled_from(self.running))
        if self.kv.swap_out(request):
            self.running.remove(request)
            self.swapped.append(request)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), forget=st.booleans())
    def swap_in_or_abort(self, data: Any, forget: bool) -> None:
        request = data.draw(st.sampled_from(self.swapped))
        if forget:
            self.kv.free(request)
            self.swapped.remove(request)
        elif self.kv.swap_in(request):
            self.swapped.remove(request)
            self.running.append(request)
            self.forward(request, 0, 0)

    @rule()
    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == (not self.running)

    @invariant()
    def no_block_is_lost_or_counted_wrong(self) -> None:
        tables = [block.block_id for table in self.kv.req_to_blocks.values() for block in table]
        references = Counter(tables)
        pool = self.kv.block_pool
        assert {b.block_id: b.ref_cnt for b in pool.blocks if b.ref_cnt} == references
        free = [block.block_id for block in pool.free_block_queue]
        assert sorted(free + list(references)) == list(range(self.NUM_BLOCKS))
        assert len(free) == pool.get_num_free_blocks()
        waiting = sum(-(-r.num_computed_tokens // self.BLOCK_SIZE) for r in self.swapped)
        assert self.kv.swap_space.num_free_blocks == self.NUM_HOST_BLOCKS - waiting

    @invariant()
    def every_request_finds_its_own_tokens(self) -> None:
        for request in self.running:
            ids = self.kv.get_block_ids(request.request_id)
            done = request.num_computed_tokens
            for position, slot in enumerate(slot_mapping(ids, self.BLOCK_SIZE, 0, done)):
                block, offset = divmod(slot, self.BLOCK_SIZE)
                past = tuple(request.all_token_ids[: position + 1])
                assert self.device[block][offset] == (request.cache_salt, past)

    @invariant()
    def a_hash_leads_to_its_own_tokens(self) -> None:
        pool = self.kv.block_pool
        for block in pool.blocks:
            if block.block_hash is None:
                continue
            assert pool.cached_block_hash_to_block[block.block_hash][block.block_id] is block
            salt, past = self.device[block.block_id][-1]
            expected: BlockHash | None = None
            for begin in range(0, len(past), self.BLOCK_SIZE):
                tokens = past[begin : begin + self.BLOCK_SIZE]
                extra = (None, salt) if salt is not None and begin == 0 else None
                expected = hash_block_tokens(SHA256, expected, tokens, extra)
            assert block.block_hash == expected
        count = sum(map(len, pool.cached_block_hash_to_block.values()))
        assert count == sum(block.block_hash is not None for block in pool.blocks)


AnyStory.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestAnyStory = AnyStory.TestCase
