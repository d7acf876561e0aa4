"""Simulated prefix caches against vLLM's KV cache manager, brute force, exhaustive search."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.sim import eviction
from utils.sim.eviction import CachedBlock, Policy, belady
from utils.sim.prefix_cache import BlockCache, RunningRequest, simulate
from utils.sim.prefix_ids import answer_segments, next_uses, prefix_ids
from utils.sim.radix_cache import RadixCache, RadixNode, RadixTree
from utils.sim.traces import TraceRequest, agents, multi_turn_chat, shared_system_prompt

POLICIES = {
    "lru": eviction.lru,
    "lru_head_first": eviction.lru_head_first,
    "fifo": eviction.fifo,
    "lfu": eviction.lfu,
}


def make_trace(*requests: tuple[Sequence[tuple[int, int]], int]) -> list[TraceRequest]:
    return [
        TraceRequest(number, float(number), tuple(segments), output_len)
        for number, (segments, output_len) in enumerate(requests)
    ]


@st.composite
def traces(draw: st.DrawFn, max_requests: int = 14) -> list[TraceRequest]:
    """Requests that often extend an earlier conversation, and often repeat a prompt."""
    length = st.integers(1, 9)
    requests: list[tuple[tuple[tuple[int, int], ...], int]] = []
    for number in range(draw(st.integers(1, max_requests))):
        base: tuple[tuple[int, int], ...] = ()
        if requests and draw(st.booleans()):
            earlier = draw(st.integers(0, len(requests) - 1))
            prompt, output_len = requests[earlier]
            base = draw(
                st.sampled_from([prompt, prompt[:1], (*prompt, (1000 + earlier, output_len))])
            )
        if not base or draw(st.integers(0, 4)):
            base = (*base, (number, draw(length)))
        requests.append((base, draw(length)))
    return make_trace(*requests)


def room_for(trace: list[TraceRequest]) -> int:
    """Tokens of the largest request: the smallest cache that can run the trace, block size 1."""
    return max(r.prompt_len + r.output_len for r in trace)


# --- which blocks are equal


def tokens_of(segments: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """A brute-force text: each token says which segment it is of, and where it stands there."""
    return [(*segment, place) for segment in segments for place in range(segment[1])]


@given(traces(), st.integers(1, 7))
def test_equal_numbers_mean_equal_tokens_so_far(trace: list[TraceRequest], size: int) -> None:
    segments = [r.segments for r in trace]
    meaning: dict[int, tuple] = {}
    for pairs, ids in zip(segments, prefix_ids(segments, size), strict=True):
        tokens = tokens_of(pairs)
        assert len(ids) == len(tokens) // size
        for position, number in enumerate(ids.tolist()):
            prefix = tuple(tokens[: (position + 1) * size])
            assert meaning.setdefault(number, prefix) == prefix
    assert len(set(meaning.values())) == len(meaning)


def test_answers_are_those_that_later_prompts_quote() -> None:
    trace = make_trace(
        ([(1, 4)], 5),
        ([(1, 4), (7, 9)], 2),  # goes on from the same message, but not with the answer
        ([(1, 4), (8, 5), (2, 3)], 6),
        ([(1, 4), (8, 5), (2, 3), (9, 6), (3, 1)], 4),
    )
    assert answer_segments(trace) == [(8, 5), (-2, 2), (9, 6), (-4, 4)]


def test_answers_of_a_generated_conversation() -> None:
    trace = multi_turn_chat(300, rate=1.0, seed=3)
    answers = set(answer_segments(trace))
    # Every second segment of a conversation is an answer of an earlier request.
    assert all(set(r.segments[1::2]) <= answers for r in trace)
    assert sum(len(r.segments) > 1 for r in trace) > 100


@given(traces(), st.integers(1, 4))
def test_next_use_by_brute_force(trace: list[TraceRequest], size: int) -> None:
    ids = list(prefix_ids([r.segments for r in trace], size))
    usable = [(r.prompt_len - 1) // size for r in trace]
    for number, uses in enumerate(next_uses(ids, usable, never=99)):
        for position, block in enumerate(ids[number].tolist()):
            later = range(number + 1, len(trace))
            assert uses[position] == next(
                (n for n in later if block in ids[n][: usable[n]].tolist()), 99
            )


# --- LRU against vLLM


class VllmCache:
    """vLLM's `KVCacheManager` as a cache for `simulate`, with real tokens."""

    def __init__(self, trace: list[TraceRequest], num_blocks: int, size: int, head_first: bool):
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(
            num_blocks=num_blocks + 1,  # vLLM keeps block 0 for itself
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(
            config, max_model_len=8192, scheduler_block_size=size, hash_block_size=size
        )
        if head_first:
            free = self.manager.block_pool.free_blocks
            self.manager.block_pool.free_blocks = lambda blocks: free(reversed(list(blocks)))
        self.hasher = get_request_block_hasher(size, sha256)
        self.block_size = size
        self.num_evicted_tokens = 0
        answers = answer_segments(trace)
        whole = [
            TraceRequest(0, 0, (*r.segments, (abs(a[0]) + 10**6, a[1])), 1)
            if a[0] < 0
            else TraceRequest(0, 0, (*r.segments, a), 1)
            for r, a in zip(trace, answers, strict=True)
        ]
        self.tokens = [r.prompt_token_ids(50_000) for r in whole]
        self.requests: dict[int, object] = {}

    def start(self, request: RunningRequest) -> int | None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        vllm_request = Request(
            request_id=str(request.request_id),
            prompt_token_ids=self.tokens[request.request_id][: request.prompt_len],
            sampling_params=SamplingParams(max_tokens=10_000),
            pooling_params=None,
            block_hasher=self.hasher,
        )
        blocks, num_hit, _ = self.manager.get_computed_blocks(vllm_request)
        got = self.manager.allocate_slots(
            vllm_request,
            request.prompt_len - num_hit,
            num_hit,
            blocks,
            num_lookahead_tokens=request.num_computed_tokens - request.prompt_len,
        )
        if got is None:
            return None
        vllm_request.num_computed_tokens = request.prompt_len
        self.requests[request.request_id] = vllm_request
        return num_hit

    def finish(self, request: RunningRequest) -> None:
        vllm_request = self.requests.pop(request.request_id)
        computed = self.tokens[request.request_id][: request.num_computed_tokens]
        written = computed[request.prompt_len :]
        if written:
            vllm_request.append_output_token_ids(written)
            assert self.manager.allocate_slots(vllm_request, len(written)) is not None
        self.manager.free(vllm_request)


@pytest.mark.parametrize("head_first", [False, True], ids=["tail_first", "head_first"])
@pytest.mark.parametrize(
    ("name", "num_blocks", "concurrency"),
    [("chat", 300, 1), ("chat", 400, 4), ("agents", 300, 3), ("agents", 600, 4)],
)
def test_lru_equals_vllm(name: str, num_blocks: int, concurrency: int, head_first: bool) -> None:
    generate = {"chat": multi_turn_chat, "agents": agents}[name]
    trace = generate(250, rate=0.3, seed=5)
    policy = POLICIES["lru_head_first" if head_first else "lru"]
    ours = simulate(trace, BlockCache(num_blocks, 16, policy), concurrency)
    vllm = simulate(trace, VllmCache(trace, num_blocks, 16, head_first), concurrency)
    np.testing.assert_array_equal(ours.num_cached_tokens, vllm.num_cached_tokens)
    unbounded = simulate(trace, BlockCache(None, 16), concurrency)
    assert 0.02 < ours.hit_rate < unbounded.hit_rate  # the cache was under pressure


@settings(max_examples=60)
@given(traces(), st.integers(0, 6), st.integers(1, 4), st.booleans())
def test_lru_equals_vllm_on_small_traces(
    trace: list[TraceRequest], spare: int, concurrency: int, head_first: bool
) -> None:
    num_blocks = -(-room_for(trace) // 2) + spare
    policy = POLICIES["lru_head_first" if head_first else "lru"]
    ours = simulate(trace, BlockCache(num_blocks, 2, policy), concurrency)
    vllm = simulate(trace, VllmCache(trace, num_blocks, 2, head_first), concurrency)
    assert ours.num_cached_tokens.tolist() == vllm.num_cached_tokens.tolist()


# --- every policy against a list that is searched from end to end


class SlowCache:
    """`BlockCache` without its heap and index: lists, searched from end to end."""

    def __init__(self, num_blocks: int, size: int, policy: Policy) -> None:
        self.num_blocks, self.block_size, self.policy = num_blocks, size, policy
        self.num_evicted_tokens = self.now = self.reserved = 0
        self.blocks: list[CachedBlock] = []
        self.rank: dict[CachedBlock, tuple] = {}
        self.held: dict[int, list[CachedBlock]] = {}

    def start(self, request: RunningRequest) -> int | None:
        ids = request.ids.tolist()
        hits: list[CachedBlock] = []
        while (len(hits) + 1) * self.block_size < request.prompt_len:
            same = [b for b in self.blocks if b.block_id == ids[len(hits)]]
            if not same:
                break
            hits.append(same[0])
        needed = -(-request.num_computed_tokens // self.block_size) - len(hits)
        idle = [b for b in self.blocks if b.ref_cnt == 0 and b not in hits]
        if len(self.blocks) - len(idle) + self.reserved + needed > self.num_blocks:
            return None
        self.now += 1
        while len(self.blocks) + self.reserved + needed > self.num_blocks:
            victim = min(idle, key=self.rank.__getitem__)
            idle.remove(victim)
            self.blocks.remove(victim)
            self.num_evicted_tokens += self.block_size
        for block in hits:
            block.ref_cnt, block.uses = block.ref_cnt + 1, block.uses + 1
            block.last_request = request.request_id
        self.held[request.request_id] = list(hits)
        self.reserved += needed
        self.fill(request, request.prompt_len)
        return len(hits) * self.block_size

    def fill(self, request: RunningRequest, num_tokens: int) -> None:
        held = self.held[request.request_id]
        for position in range(len(held), num_tokens // self.block_size):
            block = CachedBlock(int(request.ids[position]), position, self.now, request.request_id)
            self.blocks.append(block)
            held.append(block)
            self.reserved -= 1

    def finish(self, request: RunningRequest) -> None:
        self.now += 1
        self.fill(request, request.num_computed_tokens)
        held = self.held.pop(request.request_id)
        self.reserved -= -(-request.num_computed_tokens // self.block_size) - len(held)
        for block in held:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.rank[block] = self.policy(block, self.now)


@settings(max_examples=40)
@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@given(traces(), st.integers(0, 8), st.integers(1, 4), st.integers(1, 3))
def test_every_policy_by_brute_force(
    name: str, trace: list[TraceRequest], spare: int, concurrency: int, size: int
) -> None:
    policy = POLICIES[name] if name in POLICIES else belady(trace, size)
    num_blocks = -(-room_for(trace) // size) + spare
    ours = simulate(trace, BlockCache(num_blocks, size, policy), concurrency)
    slow = simulate(trace, SlowCache(num_blocks, size, policy), concurrency)
    assert ours.num_cached_tokens.tolist() == slow.num_cached_tokens.tolist()
    assert ours.num_evicted_tokens.tolist() == slow.num_evicted_tokens.tolist()


def block(**changes: int) -> CachedBlock:
    return CachedBlock(
        **({"block_id": 0, "position": 3, "filled_at": 5, "last_request": 0} | changes)
    )


def test_what_each_policy_prefers_to_evict() -> None:
    lru, head, fifo, lfu = POLICIES.values()
    for policy in (lru, head):
        assert policy(block(), 8) < policy(block(), 9)  # used longer ago
    assert lru(block(position=4), 9) < lru(block(position=3), 9)
    assert head(block(position=3), 9) < head(block(position=4), 9)
    assert fifo(block(filled_at=5, uses=9), 9) < fifo(block(filled_at=6), 8)
    assert lfu(block(uses=1), 9) < lfu(block(uses=2), 8)
    assert lfu(block(uses=2), 8) < lfu(block(uses=2), 9)
    for policy in (fifo, lfu):
        assert policy(block(position=4), 9) < policy(block(position=3), 9)


def test_requests_end_in_the_order_of_their_output() -> None:
    # Both run; the third starts when the shorter, later one ends, so the first is not evicted.
    trace = make_trace(([(1, 8)], 8), ([(2, 8)], 2), ([(3, 8)], 2), ([(1, 8), (4, 1)], 1))
    result = simulate(trace, BlockCache(7, 4), concurrency=2)
    assert result.num_cached_tokens.tolist() == [0, 0, 0, 8]
    assert result.num_evicted_tokens.tolist()[:3] == [0, 0, 8]


def test_numbers_of_segments_shorter_than_a_block() -> None:
    first, second = prefix_ids([[(1, 1), (3, 9)], [(2, 1), (3, 9)]], block_size=4)
    assert set(first.tolist()).isdisjoint(second.tolist())


# --- the bound: no order of eviction gets more hits than Belady's


def most_hits(trace: list[TraceRequest], num_blocks: int, size: int) -> int:
    """Tokens hit by the best of all orders of eviction, one request at a time; tries them all."""
    answers = answer_segments(trace)
    ids = [
        tuple(i[: (r.prompt_len + r.output_len - 1) // size].tolist())
        for r, i in zip(
            trace,
            prefix_ids([(*r.segments, a) for r, a in zip(trace, answers, strict=True)], size),
            strict=True,
        )
    ]

    @functools.cache
    def best(number: int, held: frozenset[int]) -> int:
        if number == len(trace):
            return 0
        request = trace[number]
        hit = 0
        while (hit + 1) * size < request.prompt_len and ids[number][hit] in held:
            hit += 1
        needed = -(-(request.prompt_len + request.output_len - 1) // size)
        others = held - set(ids[number])
        kept = min(len(others), num_blocks - needed)
        return hit * size + max(
            best(number + 1, frozenset(some) | set(ids[number]))
            for some in itertools.combinations(sorted(others), kept)
        )

    return best(0, frozenset())


@st.composite
def documents(draw: st.DrawFn) -> list[TraceRequest]:
    """Questions about a few documents, each read again and again: much to win by eviction."""
    lengths = [draw(st.integers(2, 4)) * 4 for _ in range(4)]
    picked = draw(st.lists(st.integers(0, 3), min_size=5, max_size=9))
    return make_trace(*(([(doc, lengths[doc]), (100 + n, 1)], 1) for n, doc in enumerate(picked)))


@settings(max_examples=60)
@given(st.one_of(documents(), traces(max_requests=7)), st.integers(0, 4))
def test_no_order_of_eviction_beats_belady(trace: list[TraceRequest], spare: int) -> None:
    size, num_blocks = 4, -(-room_for(trace) // 4) + spare
    result = simulate(trace, BlockCache(num_blocks, size, belady(trace, size)), 1)
    bound = most_hits(trace, num_blocks, size)
    for policy in POLICIES.values():
        hits = simulate(trace, BlockCache(num_blocks, size, policy), 1).num_cached_tokens
        assert hits.sum() <= bound
    assert result.num_cached_tokens.sum() == bound


# --- invariants


class WatchedCache(BlockCache):
    """Checks, after each start and finish, what must hold at every moment."""

    pinned: dict[int, RunningRequest]

    def start(self, request: RunningRequest) -> int | None:
        hit = super().start(request)
        if hit is not None:
            self.__dict__.setdefault("pinned", {})[request.request_id] = request
            assert hit % self.block_size == 0 and hit < request.prompt_len
        self.check()
        return hit

    def finish(self, request: RunningRequest) -> None:
        del self.pinned[request.request_id]
        super().finish(request)
        self.check()

    def check(self) -> None:
        running = self.__dict__.get("pinned", {})
        assert self.num_used <= self.num_blocks
        cached = [b for copies in self.cached.values() for b in copies]
        assert self.num_unpinned == sum(b.ref_cnt == 0 for b in cached)
        assert len(cached) <= self.num_used
        for request in running.values():  # prompts of running requests stay findable
            for number in request.ids[: request.prompt_len // self.block_size].tolist():
                assert any(b.ref_cnt > 0 for b in self.cached[number])


@settings(max_examples=60)
@given(
    traces(), st.sampled_from([*POLICIES]), st.integers(0, 9), st.integers(1, 5), st.integers(1, 3)
)
def test_invariants(
    trace: list[TraceRequest], name: str, spare: int, concurrency: int, size: int
) -> None:
    num_blocks = -(-room_for(trace) // size) + spare
    result = simulate(trace, WatchedCache(num_blocks, size, POLICIES[name]), concurrency)
    bound = simulate(trace, BlockCache(None, size), concurrency)
    # With every turn after the one it quotes, a cache without a limit has seen all there is.
    assert (result.num_cached_tokens <= bound.num_cached_tokens).all()
    assert bound.num_evicted_tokens.sum() == 0
    if num_blocks >= sum(r.prompt_len + r.output_len for r in trace):
        assert result.hit_rate == bound.hit_rate


@given(traces(), st.integers(1, 3))
def test_unbounded_hits_by_brute_force(trace: list[TraceRequest], size: int) -> None:
    result = simulate(trace, BlockCache(None, size), concurrency=1)
    answers = answer_segments(trace)
    seen: set[tuple] = set()
    for request, answer, hit in zip(trace, answers, result.num_cached_tokens, strict=True):
        tokens = tokens_of((*request.segments, answer))[:-1]
        prompt = tokens[: request.prompt_len - 1]
        fits = [n for n in range(0, len(prompt) + 1, size) if n == 0 or tuple(prompt[:n]) in seen]
        assert hit == max(fits)
        seen |= {tuple(tokens[:n]) for n in range(1, len(tokens) + 1)}


def test_a_request_waits_for_the_answer_it_quotes() -> None:
    trace = make_trace(([(1, 8)], 9), ([(1, 8), (2, 9), (3, 4)], 2), ([(5, 4)], 1))
    assert answer_segments(trace)[0] == (2, 9)
    result = simulate(trace, BlockCache(None, 4), concurrency=3)
    assert result.num_cached_tokens.tolist() == [0, 16, 0]  # 17 tokens known, the last not computed


def test_one_shared_prompt_is_hit_by_all_but_the_first() -> None:
    trace = shared_system_prompt(50, rate=5.0, seed=0)
    shared = trace[0].segments[0][1]
    result = simulate(trace, BlockCache(None, 16))
    assert result.num_cached_tokens.tolist() == [0] + [shared // 16 * 16] * 49
    radix = simulate(trace, RadixCache(None))
    assert radix.num_cached_tokens.tolist() == [0] + [shared] * 49
    assert result.hit_rate == result.num_cached_tokens.sum() / sum(r.prompt_len for r in trace)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: BlockCache(0), "num_blocks"),
        (lambda t: RadixCache(0), "num_tokens"),
        (lambda t: simulate(t, BlockCache(9), concurrency=0), "concurrency"),
        (lambda t: simulate(t, BlockCache(9, 0)), "block_size"),
        (lambda t: simulate(t, BlockCache(2, 4)), "request 1 needs 4 blocks"),
        (lambda t: simulate(t, RadixCache(15)), "request 1 needs 16 tokens"),
        (lambda t: simulate([*t, *make_trace(([(1, 1)], 0))], BlockCache(9)), "output_len"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(make_trace(([(1, 3)], 4), ([(2, 9)], 8)))


# --- the radix tree


def text_of(node: RadixNode) -> list[int]:
    return [t for part in reversed(node.path()) for t in part.tokens.tolist()]


class WatchedRadix(RadixCache):
    """Checks each hit against every text in the tree, and the tree after each change."""

    def start(self, request: RunningRequest) -> int | None:
        wanted = request.ids[: request.prompt_len - 1].tolist()
        texts = [text_of(node) for node in self.tree.nodes()]
        hit = super().start(request)
        if hit is not None:
            shared = [
                next(
                    (i for i, (a, b) in enumerate(zip(wanted, text, strict=False)) if a != b),
                    min(len(wanted), len(text)),
                )
                for text in texts
            ]
            assert hit == max(shared, default=0)
            assert (
                text_of(self._end_of[request.request_id])
                == request.ids[: request.prompt_len].tolist()
            )
        self.check()
        return hit

    def finish(self, request: RunningRequest) -> None:
        super().finish(request)
        self.check()

    def check(self) -> None:
        tree, nodes = self.tree, list(self.tree.nodes())
        assert tree.num_tokens == sum(len(node.tokens) for node in nodes)
        assert tree.num_locked_tokens == sum(len(n.tokens) for n in nodes if n.ref_cnt)
        assert tree.num_tokens + self.num_reserved_tokens <= self.num_tokens
        used = [part for end in self._end_of.values() for part in end.path()]
        for node in nodes:
            assert node.ref_cnt == used.count(node)
            assert node.parent.last_used >= node.last_used or node.parent is tree.root
            assert all(int(c.tokens[0]) == first for first, c in node.children.items())
        assert set(used) <= set(nodes)  # nothing that is in use was evicted


@settings(max_examples=80)
@given(traces(), st.integers(0, 12), st.integers(1, 4))
def test_radix_hits_by_brute_force(trace: list[TraceRequest], spare: int, concurrency: int) -> None:
    result = simulate(trace, WatchedRadix(room_for(trace) + spare), concurrency)
    bound = simulate(trace, RadixCache(None), concurrency)
    assert (result.num_cached_tokens <= bound.num_cached_tokens).all()
    blocks = simulate(trace, BlockCache(None, 1), concurrency)
    assert bound.num_cached_tokens.tolist() == blocks.num_cached_tokens.tolist()


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=10), st.data())
def test_radix_evicts_the_oldest_unlocked_leaf(texts: list[list[int]], data: st.DataObject) -> None:
    tree = RadixTree()
    ends = [tree.insert(text) for text in texts]
    for text in texts[::2]:
        tree.match(text)
    locked = [end for end in ends if data.draw(st.booleans())]
    for end in locked:
        tree.lock(end)
    for end in locked[1:]:
        tree.unlock(end)
    while leaves := [n for n in tree.nodes() if not n.children and n.ref_cnt == 0]:
        oldest = min(leaf.last_used for leaf in leaves)
        expected = [leaf for leaf in leaves if leaf.last_used == oldest]
        freed = tree.evict_one()
        assert [len(leaf.tokens) for leaf in expected if leaf.parent is None] == [freed]
    assert [text_of(n) for n in tree.nodes() if not n.children] == [text_of(e) for e in locked[:1]]


def test_radix_tree_of_three_texts_by_hand() -> None:
    tree = RadixTree()
    tree.insert([1, 2, 3, 4])
    tree.insert([1, 2, 5])
    tree.insert([7])
    pieces = sorted((n.tokens.tolist(), len(n.children)) for n in tree.nodes())
    assert pieces == [([1, 2], 2), ([3, 4], 0), ([5], 0), ([7], 0)]
    node, length = tree.match([1, 2, 3, 9])
    assert (length, text_of(node)) == (3, [1, 2, 3])  # [3, 4] was split
    assert tree.num_tokens == 6
