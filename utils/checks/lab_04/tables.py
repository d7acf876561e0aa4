"""Requests that share a pool: what the stories of exercises 3, 4 and 5 happen in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import Cell, count
from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.lab_04.right_parts import Pool
from utils.engine.core.kv_cache_utils import KVCacheBlock

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DRAWN = 6, 6, 8  # requests, blocks and slots of a block in a picture
FIRST = (0, 0, 0, 300, 70_000)  # block numbers need not be small


def draw_size(c: Choices) -> int:
    """Of a block; an ordinary one is likely."""
    return c.size(1, 200) if c.rarely(3) else c.integer(1, 5)


def draw_position(c: Choices, size: int, blocks: int = 4) -> int:
    """Often beside a boundary between blocks."""
    return max(0, c.integer(0, blocks) * size + c.pick((0, 1, -1, size // 2)))


@dataclass(frozen=True)
class Story:
    """Requests with so many tokens, so many free blocks, and what happens then."""

    size: int  # of a block
    first: int  # number of the pool's first block
    lengths: tuple[int, ...]
    spare: int
    steps: tuple[tuple[Any, ...], ...]

    @property
    def num_blocks(self) -> int:
        return sum(-(-length // self.size) for length in self.lengths) + self.spare

    def __str__(self) -> str:
        holders = [f"{name(i)} has {count(n, 'token')}" for i, n in enumerate(self.lengths) if n]
        return "; ".join([f"a pool of {count(self.num_blocks, 'block')} of {self.size}", *holders])

    def world(self) -> World:
        """As it is at first."""
        world = World(self.num_blocks, self.size, self.first)
        for length in self.lengths:
            world.add(length)
        return world


class World:
    """A pool, the block tables of requests, and letters in place of keys and values."""

    def __init__(self, num_blocks: int, size: int, first: int = 0) -> None:
        self.pool, self.size = Pool(num_blocks, first), size
        # Block numbers that look like places in a table would hide a mistake.
        random.Random(num_blocks).shuffle(self.pool.queue)
        self.tables: list[list[KVCacheBlock]] = []
        self.contents: dict[int, dict[int, str]] = {b.block_id: {} for b in self.pool.blocks}
        self.num_written = 0

    def add(self, num_tokens: int) -> None:
        """A request with so many tokens."""
        self.tables.append(self.pool.get_new_blocks(-(-num_tokens // self.size)))
        self.write(len(self.tables) - 1, 0, num_tokens)

    def fork(self, parent: int) -> None:
        self.pool.touch(self.tables[parent])
        self.tables.append(list(self.tables[parent]))

    def finish(self, index: int) -> None:
        """The request leaves; its place in `tables` stays, empty."""
        self.pool.free_blocks(sorted(self.tables[index], key=lambda block: block.block_id))
        self.tables[index] = []

    def write(self, index: int, start: int, end: int) -> None:
        """Put the next letters into the slots of these positions."""
        if self.size > DRAWN[2]:
            return
        for position in range(start, min(end, len(self.tables[index]) * self.size)):
            block = self.tables[index][position // self.size].block_id
            self.contents[block][position % self.size] = LETTERS[self.num_written % len(LETTERS)]
            self.num_written += 1

    def ids(self, blocks: Sequence[Any]) -> list[Any]:
        """The blocks by their numbers; others than the pool's own in words."""
        own = {id(block) for block in self.pool.blocks}
        return [
            block.block_id
            if id(block) in own
            else f"a copy of block {block.block_id}"
            if isinstance(block, KVCacheBlock)
            else repr(block)
            for block in blocks
        ]

    def all_tables(self) -> list[list[Any]]:
        return [self.ids(table) for table in self.tables]

    def queue(self) -> list[int]:
        return self.ids(self.pool.queue)

    def refs(self) -> dict[int, int]:
        return {block.block_id: block.ref_cnt for block in self.pool.blocks}

    def panel(
        self, wrong: Sequence[tuple[int, int]] = (), copied: Sequence[int] = ()
    ) -> list[tuple[str, list[Cell]]]:
        """The tables as rows of cells; `wrong` are (request, place), `copied` block numbers."""

        def cell(index: int, place: int, block: Any) -> Cell:
            held = self.contents.get(block.block_id, {})
            letters = "".join(held.get(offset, "·") for offset in range(self.size))
            kind = "shared" if block.ref_cnt > 1 else "used"
            kind = "copy" if block.block_id in copied else kind
            kind = "wrong" if (index, place) in wrong else kind
            return Cell(f"block {block.block_id}\n{letters}  ref {block.ref_cnt}", kind)

        return [
            (name(index), [cell(index, place, block) for place, block in enumerate(table)])
            for index, table in enumerate(self.tables)
        ]

    def picture(
        self, title: str, wrong: Sequence[tuple[int, int]] = (), copied: Sequence[int] = ()
    ) -> tuple[Figure | None, str]:
        requests, blocks, slots = DRAWN
        small = len(self.tables) <= requests and max(map(len, self.tables)) <= blocks
        if not small or self.size > slots or not any(self.tables):
            return None, ""
        figure = block_pictures.tables({"yours": self.panel(wrong, copied)}, title)
        return figure, "The block tables after your function was called."


def name(index: int) -> str:
    return f"request {LETTERS[26 + index]}"


def act(stage: Stage, function: Callable[..., Any], *args: Any) -> Any:
    """Call the learner's function. It may change its arguments: the play looks at that itself."""
    return stage.do(lambda: function(*args))


def refused(stage: Stage, world: World, before: Mapping[str, Any], got: Any) -> None:
    """Too few blocks are free: the answer must be None, and nothing may have changed."""
    if isinstance(got, Raised):
        stage.blame("an error" if got == Raised(ValueError) else "raises", None, got)
    stage.expect("nothing changes", before, state(world), _show_state)
    stage.expect("no room", None, got)


def state(world: World) -> dict[str, Any]:
    return {"free": world.queue(), "holders": world.refs(), "tables": world.all_tables()}


def _show_state(state: dict[str, Any]) -> str:
    """A small state in full, of a large one the numbers."""
    if len(state["holders"]) > 12:
        held = sum(state["holders"].values())
        return f"{len(state['free'])} blocks free, {held} references"
    return f"free blocks {state['free']}, tables {state['tables']}"
