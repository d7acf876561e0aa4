"""Requests that end, and what the next one still finds: exercise 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import prefix_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_05.lookups import SHOWN, block_hash
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock


@dataclass(frozen=True)
class Ending:
    """A request with `size` blocks ends, and others take `taken` blocks."""

    size: int
    full: int  # so many of the blocks, from the first on, can be found
    shared: int  # so many, from the first on, are held by another request
    older: int  # blocks that were free before, and can be found
    taken: int
    order: tuple[int, ...]  # of the block numbers in the table

    def __str__(self) -> str:
        more = [f"another one holds the first {self.shared}"] if self.shared else []
        more += [f"{self.older} more were free before"] if self.older else []
        return (
            f"a request ends that holds {self.size} blocks, the first {self.full} of them full"
            + "".join(f"; {part}" for part in more)
            + f"; then others take {self.taken}"
        )


def draw(c: Choices) -> Ending:
    size = c.integer(30, 150) if c.rarely(10) else c.integer(0, 6)
    full = size if not c.rarely(3) else c.integer(0, size)
    shared = c.integer(0, size) if c.rarely(3) else 0
    older = c.integer(0, 3) if c.rarely(3) else 0
    taken = c.integer(0, older + size - shared)
    return Ending(size, full, shared, older, taken, tuple(c.shuffled(range(size))))


def play(stage: Stage, function: Any, ending: Ending) -> None:
    size, shared = ending.size, ending.shared
    pool = BlockPool(size + ending.older + 1)
    old = pool.get_new_blocks(ending.older)
    new = pool.get_new_blocks(size)
    table = [new[i] for i in ending.order]
    pool.cache_full_blocks(old, [block_hash(1000 + i) for i in range(len(old))], 0, len(old))
    pool.cache_full_blocks(table, [block_hash(i) for i in range(size)], 0, ending.full)
    pool.free_blocks(old)
    other = table[:shared]
    pool.touch(other)

    given = list(table)
    got = stage.do(function, pool, given)
    stage.see("raises", got if isinstance(got, Raised) else "no error")
    _counts(stage, pool, table)
    pool.get_new_blocks(ending.taken)
    left = [pool.get_cached_block(block_hash(i)) is not None for i in range(ending.full)]
    stage.see("left", left, _words, _picture)
    stage.step("then the other request ends as well")
    stage.do(function, pool, other)
    pool.get_new_blocks(1 if pool.get_num_free_blocks() else 0)
    left = [pool.get_cached_block(block_hash(i)) is not None for i in range(ending.full)]
    stage.see("left", left, _words, _picture)


def _counts(stage: Stage, pool: BlockPool, table: list[KVCacheBlock]) -> None:
    counts = [block.ref_cnt for block in table]
    stage.see("counts", counts, lambda value: f"reference counts `{value[:SHOWN]}`")
    stage.see("free", pool.get_num_free_blocks(), lambda number: f"{number} free blocks")


def _run(left: list[bool]) -> int:
    return (*left, False).index(False)


def _words(left: list[bool]) -> str:
    return f"{sum(left)} of its blocks left, {_run(left)} found by the next request"


def _picture(want: Any, got: Any) -> tuple[Figure, str]:
    figure = prefix_pictures.eviction(want[: 2 * SHOWN], got[: 2 * SHOWN])
    return figure, "The prefix after the eviction: which blocks are left, and which can be found."


def right_ending(block_pool: Any, block_table: list[KVCacheBlock]) -> None:
    """The tail first, in one list."""
    block_pool.free_blocks([block_table[-1 - i] for i in range(len(block_table))])


LAST_FIRST = (
    "`free_blocks` takes the block that shall be reused first at the front. The longer a prefix, "
    "the fewer requests share it: the last block of the table goes first."
)
FREE_REQUEST = Contract(
    inputs=draw,
    judge=InLockstep(play, right_ending),
    passed="The tail is evicted first. After each eviction, what is left is a prefix that the next "
    "request can use in full. What other requests hold stays theirs.",
    clauses={
        "counts": Clause(
            "Another request's blocks are taken away, or this request's are kept.",
            "Leave the counting to `block_pool.free_blocks`, for all blocks of the "
            "table, each once.",
        ),
        "free": Clause(
            "After the request ended, {got}; expected {expected}.",
            "Every block of the table goes to `block_pool.free_blocks`.",
        ),
        "left": Clause(
            "The wrong blocks are evicted first: {got}. Expected: {expected}.", LAST_FIRST
        ),
        "changes": Clause(
            "Your code changes `block_table` in place. It belongs to the caller.",
            "`reversed(block_table)` and `block_table[::-1]` leave it as it is; "
            "`reverse()` and `pop()` don't.",
        ),
    },
    mistakes=(
        mistake(
            "The head of the prefix is evicted first. What is left cannot be used by anybody.",
            LAST_FIRST,
            lambda pool, table: pool.free_blocks(table),
        ),
        mistake(
            "Only the blocks that nobody else holds are given back. The pool counts: give all.",
            "Leave the counting to `block_pool.free_blocks`.",
            lambda pool, table: pool.free_blocks([b for b in reversed(table) if b.ref_cnt == 1]),
        ),
        mistake(
            "The order is that of the block numbers. They tell nothing about where in the "
            "prompt a block stands.",
            "The table is in the order of the tokens.",
            lambda pool, table: pool.free_blocks(sorted(table, key=lambda b: b.block_id)),
            lambda pool, table: pool.free_blocks(
                sorted(table, key=lambda b: b.block_id, reverse=True)
            ),
        ),
        mistake(
            "Only full blocks are given back. The last one, full or not, is the request's, too.",
            "All blocks of the table.",
            lambda pool, table: pool.free_blocks(
                [b for b in reversed(table) if b.block_hash is not None]
            ),
        ),
    ),
)
