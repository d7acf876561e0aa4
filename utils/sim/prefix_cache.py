"""A prefix cache of bounded size on a trace: which prompt tokens need not be computed again.

No model runs. `simulate` starts and finishes the requests of a trace, and a cache answers how much
of each prompt it holds. Two caches: `BlockCache` here, of whole blocks with a choice of eviction
policies, and `RadixCache` in `radix_cache.py`, of single tokens.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from utils.sim.eviction import CachedBlock, Policy, Rank, lru
from utils.sim.prefix_ids import answer_segments, prefix_ids
from utils.sim.traces import TraceRequest


@dataclass(frozen=True)
class RunningRequest:
    """A request as a cache sees it.

    Attributes:
        request_id: its place in the trace, from 0.
        prompt_len: tokens of the prompt.
        num_computed_tokens: tokens whose K and V exist when it ends: prompt and output without
            the last token, which is returned but never fed to the model.
        ids: numbers of the full blocks of prompt and output, from `prefix_ids`.
    """

    request_id: int
    prompt_len: int
    num_computed_tokens: int
    ids: np.ndarray


class PrefixCache(Protocol):
    """What `simulate` asks of a cache."""

    block_size: int
    num_evicted_tokens: int

    def start(self, request: RunningRequest) -> int | None:
        """Make room for the whole request; prompt tokens found, or None where room is lacking."""

    def finish(self, request: RunningRequest) -> None:
        """The request has ended; what it computed may stay, and may be evicted."""


@dataclass(frozen=True)
class CacheResult:
    """What a cache did for a trace; each array has one number per request, `[num_requests]`.

    Attributes:
        prompt_lens: prompt tokens.
        num_cached_tokens: prompt tokens that the cache held (vLLM's name).
        num_evicted_tokens: tokens that were evicted to make room for the request.
    """

    prompt_lens: np.ndarray
    num_cached_tokens: np.ndarray
    num_evicted_tokens: np.ndarray

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens / all prompt tokens, as vLLM's `prefix_cache_hits / _queries`."""
        return float(self.num_cached_tokens.sum() / self.prompt_lens.sum())


def simulate(
    trace: Sequence[TraceRequest], cache: PrefixCache, concurrency: int = 8
) -> CacheResult:
    """Send a trace through an empty cache.

    Requests start in the order of the trace, as soon as fewer than `concurrency` run, the cache has
    room, and no answer that the prompt quotes is still being written. Each running request writes
    one token per step, so it ends `output_len` steps after its start. Arrival times are not used:
    what a cache holds follows from the order of requests and from how many run at once, and both
    would otherwise depend on the speed of some machine.

    Raises:
        ValueError: `concurrency` is not positive, a request writes no token, or one is larger than
            the whole cache.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1 request, not {concurrency}")
    if idle := [r.request_id for r in trace if r.output_len < 1]:
        raise ValueError(f"output_len must be at least 1 token; it is not in requests {idle[:5]}")
    answers = answer_segments(trace)
    segments = [(*r.segments, answer) for r, answer in zip(trace, answers, strict=True)]
    step = 0
    ends: list[tuple[int, int]] = []  # heap of (last step, request_id)
    running: dict[int, RunningRequest] = {}
    being_written: set[tuple[int, int]] = set()
    hits, evicted = [], []

    def finish_next() -> None:
        nonlocal step
        step, request_id = heapq.heappop(ends)
        being_written.discard(answers[request_id])
        cache.finish(running.pop(request_id))

    for number, ids in enumerate(prefix_ids(segments, cache.block_size)):
        prompt_len, output_len = trace[number].prompt_len, trace[number].output_len
        request = RunningRequest(number, prompt_len, prompt_len + output_len - 1, ids)
        before = cache.num_evicted_tokens
        while len(ends) == concurrency or not being_written.isdisjoint(trace[number].segments):
            finish_next()
        while (hit := cache.start(request)) is None:
            finish_next()
        heapq.heappush(ends, (step + output_len, number))
        running[number] = request
        being_written.add(answers[number])
        hits.append(hit)
        evicted.append(cache.num_evicted_tokens - before)
    while ends:
        finish_next()
    return CacheResult(np.array([r.prompt_len for r in trace]), np.array(hits), np.array(evicted))


class BlockCache:
    """A prefix cache of full blocks, with vLLM's rules for everything but the eviction policy.

    A hit is the longest run of cached blocks from the start of the prompt, and leaves at least one
    token to compute. The blocks of a prompt can be hit as soon as it starts, those of its output
    when it ends. Blocks of running requests are never evicted. A block that is computed again while
    an equal one is cached becomes a second copy and takes room, as in vLLM.

    Args:
        num_blocks: how many blocks there are; None for no limit.
        block_size: tokens per block.
        policy: a function of `utils.sim.eviction`.

    Raises:
        ValueError: `num_blocks` is not positive.
    """

    def __init__(self, num_blocks: int | None, block_size: int = 16, policy: Policy = lru) -> None:
        if num_blocks is not None and num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, or None for no limit: {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.policy = policy
        self.num_evicted_tokens = 0
        self.num_used = 0  # blocks of running requests and cached blocks
        self.num_unpinned = 0  # cached blocks that no running request uses
        self.cached: dict[int, list[CachedBlock]] = {}  # block id -> copies, oldest first
        self._blocks_of: dict[int, list[CachedBlock]] = {}
        self._heap: list[tuple[Rank, int, CachedBlock]] = []  # blocks used again stay in it a while
        self._serial = itertools.count()
        self._now = 0

    def start(self, request: RunningRequest) -> int | None:
        """Pin what is cached, take blocks for the rest, evict if need be; tokens hit, or None.

        Raises:
            ValueError: the request needs more blocks than there are.
        """
        num_needed = -(-request.num_computed_tokens // self.block_size)
        ids = request.ids[: request.prompt_len // self.block_size].tolist()
        hits = self._find(ids[: (request.prompt_len - 1) // self.block_size])
        if self.num_blocks is not None:
            if num_needed > self.num_blocks:
                raise ValueError(
                    f"request {request.request_id} needs {num_needed} blocks of {self.block_size} "
                    f"tokens, but the cache has {self.num_blocks}: give it more blocks"
                )
            reserved = self.num_used - self.num_unpinned + sum(b.ref_cnt == 0 for b in hits)
            if reserved + num_needed - len(hits) > self.num_blocks:
                return None
        self._now += 1
        for block in hits:
            self._pin(block, request.request_id)
        self.num_used += num_needed - len(hits)
        if self.num_blocks is not None:
            for _ in range(self.num_used - self.num_blocks):
                self._evict_one()
        new = self._fill(ids, len(hits), request.request_id)
        self._blocks_of[request.request_id] = hits + new
        return len(hits) * self.block_size

    def finish(self, request: RunningRequest) -> None:
        """Cache the full blocks of the output, drop the block that is not full, unpin the rest."""
        self._now += 1
        blocks = self._blocks_of.pop(request.request_id)
        ids = request.ids[: request.num_computed_tokens // self.block_size].tolist()
        blocks += self._fill(ids, len(blocks), request.request_id)
        self.num_used -= -(-request.num_computed_tokens // self.block_size) - len(blocks)
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._unpin(block)

    def _find(self, ids: list[int]) -> list[CachedBlock]:
        hits = []
        for block_id in ids:
            if block_id not in self.cached:
                break
            hits.append(self.cached[block_id][0])
        return hits

    def _fill(self, ids: list[int], first: int, request_id: int) -> list[CachedBlock]:
        new = []
        for position in range(first, len(ids)):
            block = CachedBlock(ids[position], position, self._now, request_id)
            self.cached.setdefault(block.block_id, []).append(block)
            new.append(block)
        return new

    def _pin(self, block: CachedBlock, request_id: int) -> None:
        if block.ref_cnt == 0:
            self.num_unpinned -= 1
            block.rank = None
        block.ref_cnt += 1
        block.uses += 1
        block.last_request = request_id

    def _unpin(self, block: CachedBlock) -> None:
        self.num_unpinned += 1
        if self.num_blocks is None:
            return  # nothing is ever evicted
        block.rank = self.policy(block, self._now)
        heapq.heappush(self._heap, (block.rank, next(self._serial), block))
        if len(self._heap) > 2 * self.num_unpinned + 1000:
            self._heap = [entry for entry in self._heap if entry[2].rank is entry[0]]
            heapq.heapify(self._heap)

    def _evict_one(self) -> None:
        while True:
            rank, _, block = heapq.heappop(self._heap)
            if block.rank is rank:
                break
        copies = self.cached[block.block_id]
        copies.remove(block)
        if not copies:
            del self.cached[block.block_id]
        self.num_unpinned -= 1
        self.num_used -= 1
        self.num_evicted_tokens += self.block_size
