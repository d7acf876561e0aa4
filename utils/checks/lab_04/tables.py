"""Requests that share a pool, and what happens to their block tables: exercises 3, 5 and 6."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.lab.story import Story
from utils.checks.kit.pictures import blocks as block_pictures
from utils.checks.kit.pictures.blocks import count
from utils.checks.kit.pictures.cells import Cell
from utils.checks.lab_04.answers import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
DRAWN = 6, 6, 8  # requests, blocks and slots of a block in a picture
DRAWN_SLOTS = 64
FIRST = (0, 0, 0, 300, 70_000)  # block numbers need not be small
MOST_REQUESTS = 6


class Pool(BlockPool):
    """The right pool, whose blocks can all be looked at, and whose numbers begin at `first`."""

    def __init__(self, num_gpu_blocks: int, first: int = 0) -> None:
        super().__init__(0)
        self.blocks = [KVCacheBlock(first + i) for i in range(num_gpu_blocks)]
        self.free_block_queue = deque(self.blocks)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if num_blocks < 0:
            raise ValueError(f"{num_blocks} blocks wanted, a negative number")
        return super().get_new_blocks(num_blocks)


@dataclass(frozen=True)
class Setting:
    """A pool with blocks of `size` slots, requests with so many tokens, so many blocks free."""

    size: int
    first: int  # number of the pool's first block
    lengths: tuple[int, ...]
    spare: int

    @property
    def num_blocks(self) -> int:
        return sum(-(-length // self.size) for length in self.lengths) + self.spare


class World:
    """A pool, the block tables of requests, and letters in place of keys and values."""

    def __init__(self, num_blocks: int, size: int, first: int = 0) -> None:
        self.pool, self.size = Pool(num_blocks, first), size
        # Block numbers that look like places in a table would hide a mistake.
        random.Random(num_blocks).shuffle(self.pool.free_block_queue)
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

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.contents[target] = dict(self.contents[source])

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
        return self.ids([*self.pool.free_block_queue])

    def refs(self) -> dict[int, int]:
        return {block.block_id: block.ref_cnt for block in self.pool.blocks}

    def state(self) -> dict[str, Any]:
        return {"free": self.queue(), "holders": self.refs(), "tables": self.all_tables()}

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
        self, title: str, wrong: Sequence[tuple[int, int]] = ()
    ) -> tuple[Figure | None, str]:
        requests, blocks, slots = DRAWN
        small = len(self.tables) <= requests and max(map(len, self.tables)) <= blocks
        if not small or self.size > slots or not any(self.tables):
            return None, ""
        figure = block_pictures.tables({"yours": self.panel(wrong)}, title)
        return figure, "The block tables after your function was called."


class TableStory(Story):
    """Requests that are forked and finished. The learner's function does one kind of step; what is
    right then is counted here, block by block."""

    kinds: Sequence[str] = ("fork", "finish")

    @classmethod
    def tell(cls, setting: Setting) -> str:
        lengths = enumerate(setting.lengths)
        holders = [f"{name(i)} has {count(n, 'token')}" for i, n in lengths if n]
        blocks = count(setting.num_blocks, "block")
        return "; ".join([f"a pool of {blocks} of {setting.size}", *holders])

    @classmethod
    def draw_fork(cls, c: Choices, setting: Setting) -> tuple[int]:
        return (c.integer(0, 9),)

    draw_finish = draw_fork

    def start(self, answer: Any) -> None:
        self.answer, setting = answer, self.setting
        self.world = World(setting.num_blocks, setting.size, setting.first)
        for length in setting.lengths:
            self.world.add(length)

    def do_fork(self, number: int) -> None:
        parent = number % len(self.world.tables)
        if len(self.world.tables) < MOST_REQUESTS:
            self.stage.step(f"{name(len(self.world.tables))} is forked from {name(parent)}")
            self.world.fork(parent)

    def do_finish(self, number: int) -> None:
        index = number % len(self.world.tables)
        self.stage.step(f"{name(index)} is finished")
        self.world.finish(index)

    def act(self, *args: Any) -> Any:
        """Call the learner's function. It may change its arguments: the story looks itself."""
        return self.stage.do(lambda: self.answer(self.world.pool, *args))

    def refused(self, before: Mapping[str, Any], got: Any) -> None:
        """Too few blocks are free: the answer must be None, and nothing may have changed."""
        if isinstance(got, Raised):
            self.stage.blame("an error" if got == Raised(ValueError) else "raises", None, got)
        self.stage.expect("nothing changes", before, self.world.state(), _show_state)
        self.stage.expect("no room", None, got)

    def only_this_table(self, before: Mapping[str, Any], index: int) -> None:
        old, new = (
            [table for i, table in enumerate(tables) if i != index]
            for tables in (before["tables"], self.world.all_tables())
        )
        self.stage.expect("the others", old, new)


class GrowthStory(TableStory):
    """Requests that grow: exercise 3."""

    kinds = ("grow", "grow", "grow", "grow_to", "finish", "fork")

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        num_blocks = c.size(100, 3000) if c.rarely(15) else c.pick((6, 9, 12, 1, 2, 3))
        return Setting(draw_size(c), c.pick(FIRST), (0,) * c.integer(1, 3), num_blocks)

    @classmethod
    def longest(cls, setting: Setting) -> int:
        return 6 if setting.spare > 12 else 12

    @classmethod
    def draw_grow(cls, c: Choices, setting: Setting) -> tuple[int, int]:
        """Request, and the number of its tokens."""
        return c.integer(0, 9), draw_position(c, setting.size, setting.spare)

    @classmethod
    def draw_grow_to(cls, c: Choices, setting: Setting) -> tuple[int, int, int]:
        """Request, how many more blocks it needs than are free, and tokens in the last of them."""
        in_last = c.pick((setting.size, 1, max(1, setting.size - 1)))
        return c.integer(0, 9), c.pick((0, 1, -1, 3)), in_last

    def start(self, answer: Any) -> None:
        super().start(answer)
        self.seen: dict[int, list[tuple[int, int]]] = {}  # by request: tokens, and blocks
        self.returned: list[tuple[list[Any], list[Any]]] = []  # lists, and what they held then

    def do_grow_to(self, number: int, more: int, in_last: int) -> None:
        table = self.world.tables[number % len(self.world.tables)]
        num_blocks = len(table) + self.world.pool.get_num_free_blocks() + more
        self.do_grow(number, max(0, (num_blocks - 1) * self.setting.size + in_last))

    def do_grow(self, number: int, num_tokens: int) -> None:
        world, stage, index = self.world, self.stage, number % len(self.world.tables)
        table, size, before = world.tables[index], world.size, world.state()
        old, free = before["tables"][index], before["free"]
        needed = len({position // size for position in range(num_tokens)})
        missing = max(0, needed - len(old))
        stage.step(
            f"{name(index)} has {count(len(old), 'block')} and needs room for "
            f"{count(num_tokens, 'token')} in all; {count(len(free), 'block')} free"
        )
        got = self.act(table, num_tokens, size)
        seen = self.seen.setdefault(index, [])
        seen.append((num_tokens, len(table)))
        if missing > len(free):
            self.refused(before, got)
            return
        if isinstance(got, Raised):
            stage.blame("raises", f"{missing} new blocks", got)
        stage.expect("kept", old, world.ids(table[: len(old)]))
        if got is None and len(table) == len(old):
            stage.blame("none", f"a list of {missing}", got)

        def picture(*_: Any) -> tuple[Figure | None, str]:
            widest = max(max(n, blocks * size) for n, blocks in seen[-10:])
            if widest > DRAWN_SLOTS:
                return None, ""
            return block_pictures.growth(seen[-10:], size), "The request's slots after each step."

        stage.expect("number", len(old) + missing, len(table), _blocks, picture)
        new = world.ids(table[len(old) :])
        stage.expect("from the pool", [], [i for i in new if i not in free or new.count(i) > 1])
        self.only_this_table(before, index)
        stage.expect("free", sorted({*free} - {*new}), sorted(world.queue()))
        stage.expect("holders", before["holders"] | dict.fromkeys(new, 1), world.refs())
        ids = sorted(world.ids(got), key=str) if isinstance(got, list) else got
        stage.expect("returned", sorted(new, key=str), ids)
        for earlier, held in self.returned:
            stage.expect("earlier", held, world.ids(earlier))
        self.returned.append((got, world.ids(got)))
        got.append("the caller's")  # whose list it is
        stage.expect("own", old + new, world.ids(table))
        got.pop()


class ForkStory(TableStory):
    """Requests that are forked by the learner's function: exercise 5."""

    kinds = ("fork", "fork", "fork", "grow", "finish")
    most = 7

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        size, large = draw_size(c), c.rarely(20)
        lengths = c.some(lambda: draw_position(c, size, 1500 if large else 4), 1, 3)
        return Setting(size, c.pick(FIRST), tuple(lengths), c.pick((2, 4, 0)))

    draw_grow = TableStory.draw_fork

    def do_grow(self, number: int) -> None:
        world, index = self.world, number % len(self.world.tables)
        if world.pool.get_num_free_blocks():
            self.stage.step(f"{name(index)} takes a block")
            tables = world.all_tables()
            world.tables[index] += (new := world.pool.get_new_blocks(1))
            tables[index] += world.ids(new)
            self.stage.expect("own", tables, world.all_tables())

    def do_fork(self, number: int) -> None:
        world, stage, parent = self.world, self.stage, number % len(self.world.tables)
        tables, free, refs = world.all_tables(), world.queue(), world.refs()
        ids = tables[parent]
        stage.step(f"{name(len(tables))} = fork(block_pool, blocks {ids} of {name(parent)})")
        got = self.act(world.tables[parent])
        if isinstance(got, Raised):
            stage.blame("raises", "a block table", got)
        if not isinstance(got, list) or not all(isinstance(block, KVCacheBlock) for block in got):
            stage.blame("form", f"a list of blocks {ids}", got)
        own = "a list of its own"
        same = next((name(i) for i, table in enumerate(world.tables) if got is table), "")
        stage.expect("own", own, f"the list of {same}" if same else own)
        stage.expect("parent", tables, world.all_tables())
        stage.expect("free", free, world.queue())
        world.tables.append(got)

        def picture(*_: Any) -> Any:
            wrong = [(len(tables), place) for place in range(len(got))]
            return world.picture("Block tables after the fork", wrong)

        stage.expect("blocks", ids, world.ids(got), picture=picture)
        due = refs | {block_id: refs[block_id] + 1 for block_id in ids}
        after = world.refs()
        few = [f"block {i} has {after[i]}, not {due[i]}" for i in due if after[i] < due[i]]
        many = [f"block {i} has {after[i]}, not {due[i]}" for i in due if after[i] > due[i]]
        stage.expect("too few", [], few, picture=picture)
        stage.expect("too many", [], many, picture=picture)


class WriteStory(TableStory):
    """Requests that write into blocks they share: exercise 6."""

    kinds = ("write", "fork", "write", "fork", "write", "finish")
    most = 9

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        size, large = draw_size(c), c.rarely(20)
        lengths = c.some(lambda: draw_position(c, size, 300 if large else 4), 1, 2)
        spare = c.size(0, 300) if large else c.pick((3, 4, 0, 1, 2))
        return Setting(size, c.pick(FIRST), tuple(lengths), spare)

    @classmethod
    def draw_write(cls, c: Choices, setting: Setting) -> tuple[int, int, int]:
        """Request, and the positions that it is about to write."""
        size, large = setting.size, setting.num_blocks > 40
        start = draw_position(c, size, 280 if large else 4)
        longest = (1, 0, 2, size - 1, size, size + 1, 2 * size, 3 * size + 1, 100 * size)
        return c.integer(0, 9), start, start + c.pick(longest if large else longest[:-1])

    def do_write(self, number: int, start: int, end: int) -> None:
        world, stage, index = self.world, self.stage, number % len(self.world.tables)
        table, before = world.tables[index], world.state()
        old, free, refs = before["tables"][index], before["free"], before["holders"]
        written = {position // world.size for position in range(start, end)}
        due = [i for i, block_id in enumerate(old) if i in written and refs[block_id] > 1]
        where = f"positions {start} to {end - 1}" if start < end else f"nothing ({start} to {end})"
        stage.step(f"{name(index)}, blocks {old}, is about to write {where}; {len(free)} free")
        got = self.act(table, start, end, world.size)
        if len(due) > len(free):
            self.refused(before, got)
            return
        if isinstance(got, Raised):
            stage.blame("raises", f"{len(due)} copies", got)
        if got is None:
            stage.blame("none", f"a list of {len(due)} pairs", got)
        stage.expect("form", "pairs", "pairs" if _are_pairs(got) else got)
        stage.expect("length", len(old), len(table), _blocks)
        new_ids = world.ids(table)
        replaced = [place for place, block_id in enumerate(old) if new_ids[place] != block_id]

        def picture(*_: Any) -> Any:
            wrong = [(index, place) for place in set(due) ^ set(replaced)]
            return world.picture("Block tables after the call", wrong)

        if due and not replaced:
            stage.blame(
                "forgotten", f"places {due} replaced", f"none; returned {got}", str, picture
            )
        stage.expect("places", due, replaced, picture=picture)
        self.only_this_table(before, index)
        new = [new_ids[place] for place in due]
        stage.expect("from the pool", [], [i for i in new if i not in free or new.count(i) > 1])
        after, right = world.refs(), refs | {old[place]: refs[old[place]] - 1 for place in due}
        right |= dict.fromkeys(new, 1)
        wrong_refs = [f"block {i}: {after[i]}, not {r}" for i, r in right.items() if after[i] != r]
        stage.expect("holders", [], wrong_refs, picture=picture)
        stage.expect("free", sorted({*free} - {*new}), sorted(world.queue()))
        pairs = sorted((old[place], new_ids[place]) for place in due)
        stage.expect("pairs", pairs, sorted((a, b) for a, b in got), picture=picture)
        world.copy(pairs)
        world.write(index, start, end)


def draw_size(c: Choices) -> int:
    """Of a block; an ordinary one is likely."""
    return c.size(1, 200) if c.rarely(3) else c.integer(1, 5)


def draw_position(c: Choices, size: int, blocks: int = 4) -> int:
    """Often beside a boundary between blocks."""
    return max(0, c.integer(0, blocks) * size + c.pick((0, 1, -1, size // 2)))


def name(index: int) -> str:
    return f"request {LETTERS[26 + index]}"


def _are_pairs(got: Any) -> bool:
    return isinstance(got, list) and all(
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(number, int) for number in pair)
        for pair in got
    )


def _blocks(number: int) -> str:
    return count(number, "block")


def _show_state(state: dict[str, Any]) -> str:
    """A small state in full, of a large one the numbers."""
    if len(state["holders"]) > 12:
        held = sum(state["holders"].values())
        return f"{len(state['free'])} blocks free, {held} references"
    return f"free blocks {state['free']}, tables {state['tables']}"
