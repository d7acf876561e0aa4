"""Prompts that are looked up in a pool, and requests that end: exercises 4 and 6."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.pictures import prefixes as prefix_pictures
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import BlockHash
from utils.sim.prompt_cache import bare_request

SHOWN = 12  # blocks


def block_hash(number: int) -> BlockHash:
    """A hash that is equal to others of this number, and another object."""
    return BlockHash(b"block %d" % number)


@dataclass(frozen=True)
class Lookup:
    """A prompt, and for each of its full blocks: is it "gone", "free" or "in use"?"""

    num_tokens: int
    block_size: int
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        shown = ["not there" if b == "gone" else f"there ({b})" for b in self.blocks[:SHOWN]]
        shown += ["..."] if len(self.blocks) > SHOWN else []
        return (
            f"{self.num_tokens} tokens, block_size {self.block_size}; full blocks: "
            f"{', '.join(shown) or 'none'}"
        )


def draw_lookup(c: Choices) -> Lookup:
    """Mostly found; whole prompts, gaps, and single blocks that are not there."""
    block_size = c.size(1, 40, 3)
    count = c.integer(30, 150) if c.rarely(10) else c.integer(0, 6)
    num_tokens = count * block_size + c.pick((0, c.integer(0, block_size - 1)))
    kinds = ("in use", "free", "gone") if c.rarely(2) else ("in use", "free")
    blocks = [c.pick(kinds) for _ in range(count)]
    if count and c.rarely(3):
        blocks[c.integer(0, count - 1)] = "gone"
    return Lookup(max(1, num_tokens), block_size, tuple(blocks))


def play_lookup(stage: Stage, function: Any, lookup: Lookup) -> None:
    count = len(lookup.blocks)
    pool = BlockPool(count + 2)
    blocks = pool.get_new_blocks(count + 1)[::-1]  # block numbers tell nothing about the order
    there = [i for i, kind in enumerate(lookup.blocks) if kind != "gone"]
    hashes = [block_hash(i) for i in there]
    pool.cache_full_blocks([blocks[i] for i in there], hashes, 0, len(there))
    pool.free_blocks([blocks[i] for i in range(count) if lookup.blocks[i] != "in use"])
    request = bare_request(0, list(range(lookup.num_tokens)))
    request.block_hashes = [block_hash(i) for i in range(count)]
    before = _state(pool, request)

    got = stage.do(function, request, lookup.block_size, pool)
    a_pair = isinstance(got, tuple | list) and len(got) == 2 and isinstance(got[0], list)
    stage.see("pair", "a pair: a list of blocks, and a number" if a_pair else got)
    after = _state(pool, request)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    stage.see("looks", ", ".join(changed), lambda names: names or "nothing is changed")
    numbers = {id(block): place for place, block in enumerate(blocks[:count])}
    found = [numbers.get(id(block), -1) if block is not None else None for block in got[0]]
    stage.see("found", (found, got[1]), _words, lambda want, yours: _picture(lookup, want, yours))


def _state(pool: BlockPool, request: Any) -> dict[str, Any]:
    """All that a lookup must leave as it is, by name."""
    state: dict[str, Any] = {
        f"`request.{name}`": repr(value) for name, value in vars(request).items()
    }
    state["a block"] = [(block.ref_cnt, block.block_hash) for block in pool.blocks]
    state["the queue"] = [block.block_id for block in pool.free_block_queue]
    known = pool.cached_block_hash_to_block
    return state | {"the pool's dictionary": {k: list(v) for k, v in known.items()}}


def _words(found: Any) -> str:
    blocks, tokens = found
    shown = str(blocks[:SHOWN]).replace("-1", "another one")
    return f"blocks {shown}{' and more' if len(blocks) > SHOWN else ''}, {tokens} tokens"


def _picture(lookup: Lookup, want: Any, got: Any) -> tuple[Figure | None, str]:
    cached = [kind != "gone" for kind in lookup.blocks[: 2 * SHOWN]]
    if not cached:
        return None, ""
    figure = prefix_pictures.lookup(cached, want[0], got[0])
    return figure, "The blocks of the prompt: in the pool, expected, and yours."


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


def draw_ending(c: Choices) -> Ending:
    size = c.integer(30, 150) if c.rarely(10) else c.integer(0, 6)
    full = size if not c.rarely(3) else c.integer(0, size)
    shared = c.integer(0, size) if c.rarely(3) else 0
    older = c.integer(0, 3) if c.rarely(3) else 0
    taken = c.integer(0, older + size - shared)
    return Ending(size, full, shared, older, taken, tuple(c.shuffled(range(size))))


def play_ending(stage: Stage, function: Any, ending: Ending) -> None:
    size, full = ending.size, ending.full
    pool = BlockPool(size + ending.older + 1)
    old = pool.get_new_blocks(ending.older)
    new = pool.get_new_blocks(size)
    table = [new[i] for i in ending.order]
    pool.cache_full_blocks(old, [block_hash(1000 + i) for i in range(len(old))], 0, len(old))
    pool.cache_full_blocks(table, [block_hash(i) for i in range(size)], 0, full)
    pool.free_blocks(old)
    other = table[: ending.shared]
    pool.touch(other)

    def see_what_is_left() -> None:
        left = [pool.get_cached_block(block_hash(i)) is not None for i in range(full)]
        stage.see("left", left, _left, _picture_of_what_is_left)

    got = stage.do(function, pool, list(table))
    stage.see("raises", got if isinstance(got, Raised) else "no error")
    counts = [block.ref_cnt for block in table]
    stage.see("counts", counts, lambda value: f"reference counts `{value[:SHOWN]}`")
    stage.see("free", pool.get_num_free_blocks(), lambda number: f"{number} free blocks")
    pool.get_new_blocks(ending.taken)
    see_what_is_left()
    stage.step("then the other request ends as well")
    stage.do(function, pool, other)
    pool.get_new_blocks(1 if pool.get_num_free_blocks() else 0)
    see_what_is_left()


def _left(left: list[bool]) -> str:
    found = (*left, False).index(False)
    return f"{sum(left)} of its blocks left, {found} found by the next request"


def _picture_of_what_is_left(want: Any, got: Any) -> tuple[Figure, str]:
    figure = prefix_pictures.eviction(want[: 2 * SHOWN], got[: 2 * SHOWN])
    return figure, "The prefix after the eviction: which blocks are left, and which can be found."
