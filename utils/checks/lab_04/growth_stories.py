"""Small stories about a request that grows: the check of `allocate_slots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import count
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

# Lengths that a request takes, one after the other, and the block size.
LENGTHS = [
    ([5, 6], 4), ([1, 2, 3, 4, 5, 6, 7, 8, 9], 4), ([9, 10, 12, 13, 13, 21], 4), ([1, 2, 3], 1),
    ([40], 16), ([6, 2, 8], 4), ([16, 17], 16),
]  # fmt: skip


def check_growth(function: Callable[..., Any]) -> Figure:
    """Tell all stories; return a picture of the request that grows token by token."""
    figures = [_grow(function, lengths, size) for lengths, size in LENGTHS]
    _two_requests(function)
    _shortage(function)
    return figures[1]


def _grow(function: Callable[..., Any], lengths: Sequence[int], size: int) -> Figure:
    """One request whose length takes these values; after each, judge table and pool."""
    pool, table = BlockPool(64), list[KVCacheBlock]()
    seen: list[tuple[int, int]] = []
    for num_tokens in lengths:
        before = list(table)
        given = (
            f"blocks of {size}; the request has {count(len(before), 'block')} and needs room for "
            f"{count(num_tokens, 'token')} in all"
        )
        got = call(function, pool, table, num_tokens, size, given=given)
        needed = max(len(before), -(-num_tokens // size))
        seen.append((num_tokens, len(table)))

        def wrong(says: str, look: str, given: str = given, got: Any = got,
                  needed: int = needed) -> Mismatch:  # fmt: skip
            num_blocks = len(table)
            return Mismatch(
                says, input=given, expected=f"{count(needed, 'block')} in the table",
                got=f"{count(num_blocks, 'block')} in the table; returned {_shown(got)}", look=look,
                figure=block_pictures.growth(seen[-10:], size) if num_blocks * size <= 64 else None,
                alt="The slots of the request after each step.",
            )  # fmt: skip

        if table == before[: len(table)] and len(table) < len(before):
            raise wrong(
                "The table shrank. Blocks stay until the request is finished.",
                "Nothing to do if the table has enough blocks: return `[]`.",
            )
        if table[: len(before)] != before:
            raise wrong(
                "The blocks that the table had already were replaced. The tokens in them are lost.",
                "A table only grows: `block_table.extend(new_blocks)`.",
            )
        in_use = pool.num_gpu_blocks - pool.get_num_free_blocks()
        if in_use > len(table):
            raise wrong(
                f"{in_use} blocks were taken from the pool, and {len(table)} are in the table: "
                "the others leak.",
                "`block_table.extend(new_blocks)`.",
            )
        if len(table) != needed:
            raise wrong(*_explain_growth(len(before), len(table), needed, num_tokens, size))
        if got is None:
            raise wrong(
                "`allocate_slots` returned None, which means that there is no room. There is.",
                "Return the new blocks; `[]` if none was needed.",
            )
        if not isinstance(got, list | tuple) or list(got) != table[len(before) :]:
            raise wrong(
                "The table is right, but the *new* blocks are not what was returned.",
                "Return what `get_new_blocks` gave you; `[]` if nothing was needed.",
            )
    return block_pictures.growth(seen, size)


def _shown(got: Any) -> str:
    if isinstance(got, list) and all(isinstance(block, KVCacheBlock) for block in got):
        return f"`blocks {[block.block_id for block in got]}`"
    return describe(got)


def _explain_growth(
    before: int, after: int, needed: int, num_tokens: int, size: int
) -> tuple[str, str]:
    formula = "Needed in all: `math.ceil(num_tokens / block_size)`, minus what the table has."
    if after < needed and num_tokens == after * size + num_tokens % size:
        return (f"{num_tokens} tokens do not fit into {count(after, 'block')} of {size}: the last, "
                "partly filled block is missing.", "Round up. " + formula)  # fmt: skip
    if after < needed:
        return (f"{num_tokens} tokens do not fit into {count(after, 'block')} of {size}.", formula)
    if num_tokens % size == 0 and after == needed + 1:
        return (f"A block is taken one token too early: {num_tokens} tokens fill {needed} blocks "
                "exactly.",
                "Round up with `math.ceil`, not `num_tokens // block_size + 1`.")  # fmt: skip
    if before and after - before == -(-num_tokens // size):
        return ("The blocks that the table has already are not counted: all of them are allocated "
                "again.", formula)  # fmt: skip
    if after - before == num_tokens or after == num_tokens:
        return ("One block per token. A block holds `block_size` tokens.", formula)
    return (f"{after - needed} {'block is' if after - needed == 1 else 'blocks are'} reserved for "
            "tokens that may never come. That is the waste of notebook 03.",
            "Take what the tokens need now, and no more. " + formula)  # fmt: skip


def _two_requests(function: Callable[..., Any]) -> None:
    """Two requests that grow in turn: their blocks are not neighbours, and nobody minds."""
    pool = BlockPool(8)
    tables: dict[str, list[KVCacheBlock]] = {"A": [], "B": []}
    for name, num_tokens in (("A", 4), ("B", 3), ("A", 5), ("B", 9), ("A", 9)):
        given = f"requests A and B grow in turn; now {name} to {num_tokens} tokens, blocks of 4"
        call(function, pool, tables[name], num_tokens, 4, given=given)
        ids = [block.block_id for table in tables.values() for block in table]
        if len(set(ids)) != len(ids):
            raise Mismatch(
                "Two requests have the same block.", input=given,
                got=str({n: [b.block_id for b in t] for n, t in tables.items()}),
                look="Every new block comes from `block_pool.get_new_blocks`.",
            )  # fmt: skip


def _shortage(function: Callable[..., Any]) -> None:
    pool, table = BlockPool(4), list[KVCacheBlock]()
    call(function, pool, table, 4, 4)
    before = list(table)
    given = "a pool of 4 blocks of 4; the request has 1, and needs room for 20 tokens, 5 blocks"
    try:
        got = call(function, pool, table, 20, 4, given=given)
    except Mismatch as wrong:
        if not wrong.headline.startswith("Your code raised ValueError"):
            raise
        got = "ValueError"
    num_free = pool.get_num_free_blocks()
    if num_free != 3 or table != before:
        raise Mismatch(
            "Too few blocks are free, and your function takes some all the same. A partial "
            "failure leaks: the request cannot run, and holds on to blocks that others need.",
            input=given, expected="None; 3 blocks free, 1 in the table, as before",
            got=f"{describe(got)}; {num_free} blocks free, {len(table)} in the table",
            look="All or nothing: ask `block_pool.get_num_free_blocks()` before you take any.",
        )  # fmt: skip
    if got is not None:
        raise Mismatch(
            "Your code raised ValueError: the pool has too few free blocks. That is no error here "
            "but daily life; the scheduler wants to hear of it."
            if got == "ValueError"
            else "Too few blocks are free, and your function does not say so.",
            input=given, expected="None", got=describe(got),
            look="`if n > block_pool.get_num_free_blocks(): return None`.",
        )  # fmt: skip
    given = "a pool of 4 blocks of 4; the request has 1, and needs room for 16 tokens, 4 blocks"
    got = call(function, pool, table, 16, 4, given=given)
    if got is None or len(table) != 4:
        raise Mismatch(
            "Three blocks are needed and three are free: that fits. Your function refuses.",
            input=given, expected="3 new blocks", got=describe(got), look="`>`, not `>=`.",
        )  # fmt: skip
