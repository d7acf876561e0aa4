"""What learners' pools get wrong, and the words for it: exercise 4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_05.pool_play import draw, play
from utils.checks.lab_05.right_pool import RightPool
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

EVICT = (
    "In `get_new_blocks`, for each block that has a `block_hash`: remove it from "
    "`cached_block_hash_to_block`, and set `block.block_hash = None`."
)
QUEUE = "`append_n` puts blocks at the back of the queue, `prepend_n` at the front."
FULL = "Compare with `self.get_num_free_blocks()` before anything changes."
ENTERS = "A block enters the queue when its `ref_cnt` falls to 0, and only then."
PART = (
    "Only `blocks[num_cached_blocks:num_full_blocks]` become findable, and `blocks[i]` by "
    "`block_hashes[i]`."
)
SAME = "`blocks[i]` belongs to `block_hashes[i]`, with the same i in both."
TWINS = (
    "Several blocks may have one hash. Keep all of them: "
    "`cached_block_hash_to_block[block_hash][block_id] = block`."
)
OWN = "What a pool remembers belongs into `self....`, not into the class body or a default."

FORGETS = Clause(
    "`free_blocks` forgets what a block holds. A free block keeps its contents until it is handed "
    "out again: that is the cache.",
    "In `free_blocks`, leave `cached_block_hash_to_block` and `block_hash` as they are.",
)
TOUCH = (
    "If its `ref_cnt` was 0, take the block out of the queue first: "
    "`self.free_block_queue.remove(block)`. Then raise the count."
)
ORDER = (
    "In `free_blocks`, blocks without a `block_hash` go to the front of the queue, the others to "
    f"the back, both in the order given. {QUEUE}"
)
STEPS = {  # what was done, and where to look if something is wrong afterwards
    "new": ("In a new pool", OWN),
    "other": ("What is done to one pool changes another", OWN),
    "get": ("After `get_new_blocks`", EVICT),
    "refused": ("A refused `get_new_blocks` must change nothing", FULL),
    "touch": ("After `touch`", TOUCH),
    "free": ("After `free_blocks`", ENTERS),
    "cache": ("After `cache_full_blocks`", PART),
}
SHOWS = {
    "counts": "a reference count is wrong.",
    "hashes": "a `block_hash` is wrong.",
    "lookups": "{got}. Expected: {expected}.",
    "free": "{got} in the queue; expected {expected}.",
}
CLAUSES = {
    f"{step}: {shows}": Clause(f"{words}: {says}", look)
    for step, (words, look) in STEPS.items()
    for shows, says in SHOWS.items()
} | {
    "new": Clause("`CachingBlockPool(num_gpu_blocks)` makes no pool."),
    "get": Clause(
        "`get_new_blocks` must return a list of that many blocks, or raise a ValueError "
        "if fewer are free.",
        FULL,
    ),
    "front": Clause(
        "`get_new_blocks` hands out {got}; at the front of the queue were {expected}.", ORDER
    ),
    "order": Clause("Next in the queue is {expected}, but {got} is handed out.", ORDER),
    "get: counts": Clause("A block that is handed out has one reference.", "`block.ref_cnt = 1`."),
    "get: hashes": Clause(
        "A block that was handed out keeps its old hash, though its contents are gone.", EVICT
    ),
    "touch: counts": Clause(
        "`touch` must raise the reference count: one more request holds the block.", TOUCH
    ),
    "touch: free": Clause(
        "A touched block is still in the free queue. It could be handed out again.", TOUCH
    ),
    "free: counts": Clause("`free_blocks` must lower the reference count by one.", ENTERS),
    "free: hashes": FORGETS,
    "free: lookups": FORGETS,
}


class Base(BlockPool):
    """A right pool, for mistakes to change one thing of."""

    def get_cached_block(self, block_hash: Any) -> KVCacheBlock | None:
        found = self.cached_block_hash_to_block.get(block_hash)
        return next(iter(found.values())) if found else None

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError("too few")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            if block.block_hash is not None:
                self.evict(block)
            block.ref_cnt = 1
        return blocks

    def evict(self, block: Any) -> None:
        del self.cached_block_hash_to_block[block.block_hash][block.block_id]
        block.block_hash = None

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        free = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            free += [block] if block.ref_cnt == 0 else []
        self.enqueue(free)

    def enqueue(self, free: list[KVCacheBlock]) -> None:
        self.free_block_queue.prepend_n([b for b in free if b.block_hash is None])
        self.free_block_queue.append_n([b for b in free if b.block_hash is not None])

    def cache_full_blocks(
        self, blocks: Sequence[Any], block_hashes: Sequence[Any], start: int, end: int
    ) -> None:
        for i in range(start, end):
            self.cache(blocks[i], block_hashes[i])

    def cache(self, block: Any, block_hash: Any) -> None:
        block.block_hash = block_hash
        self.cached_block_hash_to_block.setdefault(block_hash, {})[block.block_id] = block


def but(**changes: Any) -> type[Base]:
    """The right pool with other methods."""
    return type("Changed", (Base,), {"__module__": __name__, **changes})


def _one_by_one(self: Any, free: list[KVCacheBlock]) -> None:
    for block in free:
        put = self.free_block_queue.prepend_n if block.block_hash is None else None
        (put or self.free_block_queue.append_n)([block])


def _evict_all(self: Any, block: Any) -> None:
    self.cached_block_hash_to_block.pop(block.block_hash, None)
    block.block_hash = None


def _without_asking(self: Any, num_blocks: int) -> list[KVCacheBlock]:
    return Base.get_new_blocks(self, min(num_blocks, self.get_num_free_blocks()))


MISTAKES = (
    mistake(
        "An evicted block is still found by its hash, though it now belongs to another request "
        "and is being overwritten.",
        EVICT,
        but(evict=lambda s, b: setattr(b, "block_hash", None)),
    ),
    mistake(
        "The most recently freed block is evicted first. It must be the least recently used.",
        f"In `free_blocks`, blocks that can be found go to the back of the queue. {QUEUE}",
        but(enqueue=lambda s, free: s.free_block_queue.prepend_n(free)),
    ),
    mistake(
        "Blocks that nobody can find go to the back of the queue, and others are evicted first.",
        f"Without a `block_hash`: to the front. {QUEUE}",
        but(enqueue=lambda s, free: s.free_block_queue.append_n(free)),
    ),
    mistake(
        "The blocks of one `free_blocks` are reused in the wrong order. The first in the list "
        "must be the first to be reused.",
        QUEUE,
        but(enqueue=lambda s, free: Base.enqueue(s, free[::-1])),
    ),
    mistake(
        "Of the blocks without a hash, the last in the list is reused first. In front of the "
        "queue, too, they stand in the order given.",
        "Collect those without a hash, then call `prepend_n` once, with all of them.",
        but(enqueue=_one_by_one),
    ),
    mistake(
        "Asking for more blocks than are free passes silently.",
        FULL,
        but(get_new_blocks=_without_asking),
    ),
    mistake(
        "All blocks that have a hash become findable, also one that is not computed in full.",
        "Only `blocks[num_cached_blocks:num_full_blocks]`.",
        but(
            cache_full_blocks=lambda s, b, h, start, end: Base.cache_full_blocks(
                s, b, h, start, len(h)
            )
        ),
    ),
    mistake(
        "Hashes and blocks are out of step.",
        SAME,
        but(
            cache_full_blocks=lambda s, b, h, start, end: Base.cache_full_blocks(
                s, b[start:end], h, 0, end - start
            )
        ),
    ),
    mistake(
        "Two blocks have the same hash, and when one of them is evicted, the other cannot be "
        "found any more.",
        TWINS,
        but(evict=_evict_all),
    ),
)

CACHING_BLOCK_POOL = Contract(
    inputs=draw,
    judge=InLockstep(play, RightPool),
    passed="Found while in use and after, gone when evicted; a hit is held fast; the least "
    "recently used goes first, and what nobody can find before that. Equal to the engine's pool in "
    "300 stories.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
    examples=300,
)
