"""Which unused block should go first: eviction policies of a prefix cache.

A policy looks at a block at the moment when no running request uses it any more, and returns its
rank: the block of the smallest rank is evicted first. `position` is the block's place in its
prompt, from 0, so `-position` puts tails before heads. All policies but one break ties that way:
a block can't be hit while the blocks before it are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from utils.sim.prefix_ids import answer_segments, next_uses, prefix_ids
from utils.sim.traces import TraceRequest

Rank = tuple[int, ...]


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A full block in the cache.

    Attributes:
        block_id: what it holds, as numbered by `prefix_ids`.
        position: its place in the prompt, from 0.
        filled_at: the moment when it was computed. Moments are counted in starts and finishes.
        last_request: the newest request that used it.
        uses: how many requests have used it, the one that computed it included.
        ref_cnt: how many running requests use it now.
        rank: its place in the order of eviction while none does, else None.
    """

    block_id: int
    position: int
    filled_at: int
    last_request: int
    uses: int = 1
    ref_cnt: int = 1
    rank: Rank | None = None


Policy = Callable[[CachedBlock, int], Rank]  # (block, now) -> rank


def lru(block: CachedBlock, now: int) -> Rank:
    """Least recently used first; of one request's blocks, the tail first.

    vLLM's order: blocks join the free queue when their request ends, in reverse, and are taken from
    its front (`FreeKVCacheBlockQueue`; docs, "Automatic Prefix Caching", eviction).
    """
    return now, -block.position


def lru_head_first(block: CachedBlock, now: int) -> Rank:
    """As `lru`, but without the reversal: of one request's blocks, the head goes first. A bug."""
    return now, block.position


def fifo(block: CachedBlock, now: int) -> Rank:
    """First computed, first evicted, however often it has been used since."""
    return block.filled_at, -block.position


def lfu(block: CachedBlock, now: int) -> Rank:
    """Least often used since it was computed; among equals, as `lru`."""
    return block.uses, now, -block.position


def belady(trace: Sequence[TraceRequest], block_size: int) -> Policy:
    """The policy that knows the future: the block that is needed last goes first.

    No real cache can do this. With one request at a time no order of eviction gets more hits
    (L. A. Belady, IBM Systems Journal 5(2), 1966); with several it is a strong yardstick.
    """
    answers = answer_segments(trace)
    segments = [(*r.segments, answer) for r, answer in zip(trace, answers, strict=True)]
    usable = [(r.prompt_len - 1) // block_size for r in trace]
    uses = next_uses(list(prefix_ids(segments, block_size)), usable, never=len(trace))

    def rank(block: CachedBlock, now: int) -> Rank:
        return -int(uses[block.last_request][block.position]), now, -block.position

    return rank
