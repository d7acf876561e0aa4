"""Stories of requests that take, find and give back blocks, told to a pool: exercise 5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Fault, InLockstep, Raised
from utils.checks.kit.contracts.guards import methods_refuse
from utils.checks.kit.contracts.plays import Seen
from utils.checks.kit.lab.story import Story
from utils.checks.kit.pictures.blocks import count
from utils.checks.kit.pictures.cells import Cell
from utils.checks.kit.pictures.prefixes import rows_of_blocks
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock

METHODS = ("get_new_blocks", "get_cached_block", "touch", "free_blocks", "cache_full_blocks")
LETTERS = "ABCDEFGH"
# How a list of blocks is given, and what the story says of it.
AS: tuple[tuple[Callable[[list[Any]], Any], str], ...] = (
    (list, ""),
    (iter, "an iterator over "),
    (tuple, "a tuple of "),
)
BAR = " | "
MANY = 16  # blocks: fewer can be drawn, and told one by one


class Setting(NamedTuple):
    size: int
    letters: str  # the fewer, the more blocks with the same hash


@dataclass
class Table:
    """A request's blocks, and how many of them can be found."""

    blocks: list[KVCacheBlock]
    num_cached: int = 0


def block_hash(letter: str) -> BlockHash:
    """Equal to others of this letter, and another object."""
    return BlockHash(b"%s " % letter.encode() * 4)


class WithoutTheEngine(InLockstep):
    """While a learner's pool plays, the engine's methods can't do the work."""

    def _played(self, answer: Any, case: Any, expected: list[Seen]) -> Fault | None:
        with methods_refuse(
            BlockPool,
            METHODS,
            "The engine's own method does the work, by inheritance or through `super()`.",
            f"Write all five methods yourself: {', '.join(METHODS)}.",
        ):
            return super()._played(answer, case, expected)


class PoolStory(Story):
    """The kinds of steps are in the order in which the methods are written: the first stories have
    only the first kinds."""

    kinds = (*"get get join free cache hit fill free fill cache hit".split(),)  # noqa: SIM905
    most = 18

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        size = c.integer(1100, 1300) if c.rarely(50) else c.integer(1, 8)
        return Setting(size, c.pick((LETTERS, "AC", "ACB", "A")))

    @classmethod
    def judge(cls, right: Any) -> InLockstep:
        return WithoutTheEngine(super().judge(right)._play, right)

    @classmethod
    def longest(cls, setting: Setting) -> int:
        return 6 if setting.size > MANY else cls.most

    @classmethod
    def tell(cls, setting: Setting) -> str:
        return f"a pool of {count(setting.size, 'block')}"

    @classmethod
    def draw_get(cls, c: Choices, setting: Setting) -> tuple[int, int, int]:
        """Which request, and two numbers."""
        most = 1050 if setting.size > MANY and c.rarely(2) else 8 if setting.letters == "A" else 3
        return c.integer(0, 4), c.integer(0, most), c.integer(0, 7)

    draw_join = draw_free = draw_cache = draw_hit = draw_fill = draw_get

    def start(self, answer: Any) -> None:
        extends = isinstance(answer, type) and issubclass(answer, BlockPool)
        self.stage.see("class", "a class that extends `BlockPool`" if extends else answer)
        self.pool = self.see("new", self.stage.do(answer, self.setting.size), "a pool")
        self.contents: list[str | None] = [None] * self.setting.size  # of each block
        self.tables: list[Table] = []  # the oldest request's first
        self._look("new")

    def do_get(self, request: int, number: int, other: int) -> None:
        self._get(number + (other > 1), other)

    def do_fill(self, request: int, number: int, other: int) -> None:
        self._get(number, other)
        if self.tables and not self.tables[-1].num_cached:
            self._cache(self.tables[-1], number, other)

    def do_hit(self, request: int, number: int, other: int) -> None:
        """A new request finds blocks. Of those with the same contents, it takes the first."""
        there = [letter for letter in LETTERS if letter in self.contents]
        letters = (there[other % (len(there) or 1) :] + there)[: min(request + 1, len(there))]
        if letters:
            blocks = [self.pool.blocks[self.contents.index(letter)] for letter in letters]
            self._touch(blocks, other)
            self.tables[-1].num_cached = len(letters)

    def do_join(self, request: int, number: int, other: int) -> None:
        table = self._of(request)
        if table.blocks:
            self._touch(table.blocks[: len(table.blocks) - other % 2], other)

    def do_free(self, request: int, number: int, other: int) -> None:
        """All of a request's blocks, the tail first; or only the last of them, as given."""
        table = self._of(request)
        if not table.blocks:
            return
        keep = max(0, len(table.blocks) - number) if other == 3 else 0
        blocks, table.blocks = table.blocks[keep:], table.blocks[:keep]
        if not table.blocks:
            self.tables.remove(table)
        table.num_cached = min(table.num_cached, keep)
        self._call("free_blocks", blocks if other in (1, 5) else blocks[::-1], other)
        self._look("free")

    def do_cache(self, request: int, number: int, other: int) -> None:
        growing = [t for t in self.tables if len(t.blocks) > t.num_cached]
        if growing:
            self._cache(growing[request % len(growing)], number, other)

    def end(self) -> None:
        """In which order are the free blocks reused?"""
        for _ in range(self.pool.get_num_free_blocks()):
            got = self.stage.call(self.pool, "get_new_blocks", 1)
            wrong = isinstance(got, Raised) or not got
            i = -1 if wrong else got[0].block_id
            next_one = got if wrong else f"block {i} ({self.contents[i] or 'empty'})"
            self.stage.see("order", next_one)
            self.contents[i] = None
            if self.setting.size <= MANY:
                self.stage.step("get_new_blocks(1)")
        self._look("get")

    def _of(self, request: int) -> Table:
        return self.tables[request % len(self.tables)] if self.tables else Table([])

    def _call(self, method: str, blocks: list[KVCacheBlock], other: int) -> None:
        make, words = AS[other % 3]
        self.stage.step(f"{method}({words}{_ids(blocks)})")
        self.see("raises", self.stage.call(self.pool, method, make(list(blocks))))

    def _get(self, number: int, other: int) -> None:
        stage, free = self.stage, self.pool.get_num_free_blocks()
        few = f", {free} are free" if number > free else ""
        stage.step(f"get_new_blocks({number}){few}")
        got = stage.call(self.pool, "get_new_blocks", number)
        if isinstance(got, Raised):
            stage.see("get", got)
            return self._look("refused")
        blocks = isinstance(got, list) and all(isinstance(b, KVCacheBlock) for b in got)
        stage.see("get", "a list of blocks" if blocks else got)
        ids = sorted(block.block_id for block in got)
        held = [f"{i} ({self.contents[i] or 'empty'})" for i in ids]
        stage.see("front", held, lambda names: f"blocks {', '.join(names) or 'none'}")
        for i in ids:
            self.contents[i] = None
        if ids:
            self.tables.append(Table([self.pool.blocks[i] for i in ids]))
        got[:] = [None] * (other % 2)  # the caller may use its list for something else
        return self._look("get")

    def _touch(self, blocks: list[KVCacheBlock], other: int) -> None:
        self._call("touch", blocks, other)
        cached = [self.contents[block.block_id] is not None for block in blocks]
        self.tables.append(Table(list(blocks), (*cached, False).index(False)))
        self._look("touch")

    def _cache(self, table: Table, number: int, other: int) -> None:
        old, contents = table.num_cached, self.contents
        ready = list(takewhile(lambda b: contents[b.block_id] is None, table.blocks[old:]))
        full = old + min(number, len(ready))
        names = [contents[b.block_id] or "A" for b in table.blocks[:old]]
        letters, new = self.setting.letters, range(other, other + len(table.blocks) - old)
        names += [letters[i % len(letters)] for i in new]
        names = names[: full + other % 2]  # perhaps one more, of a block that is not computed yet
        shown = " ".join(names[:MANY])
        step = f"cache_full_blocks({_ids(table.blocks)}, hashes {shown}, {old}, {full})"
        self.stage.step(step)
        blocks, hashes = list(table.blocks), [block_hash(name) for name in names]
        arguments = (blocks, hashes, old, full)
        self.see("raises", self.stage.call(self.pool, "cache_full_blocks", *arguments))
        for i in range(old, full):
            contents[table.blocks[i].block_id] = names[i]
        table.num_cached = full
        blocks.clear()
        hashes.clear()
        self._look("cache")

    def _look(self, kind: str) -> None:
        """Everything that can be seen of the pool."""
        stage, pool, contents = self.stage, self.pool, self.contents
        pairs = zip(contents, pool.blocks, strict=True)
        cells = [f"{name or '-'}, {block.ref_cnt}" for name, block in pairs]
        stage.see(f"{kind}: counts", BAR.join(cells), _first, _picture)
        cells = [f"{_letter(block.block_hash)}, {block.ref_cnt}" for block in pool.blocks]
        stage.see(f"{kind}: hashes", BAR.join(cells), _first, _picture)
        before = _queue(pool)
        hashes = [block_hash(letter) for letter in LETTERS + "?"]
        found = self.see("lookup", stage.do(lambda: [pool.get_cached_block(h) for h in hashes]))
        held = zip(LETTERS + "?", found, strict=True)
        leads = [f"{x} leads to {self._held(block)}" for x, block in held if block is not None]
        moved = "the free blocks stay where they are" if _queue(pool) == before else "others"
        stage.see("moved", moved)
        stage.see(f"{kind}: lookups", ", ".join(leads) or "nothing is found")
        num_free = stage.call(pool, "get_num_free_blocks")
        stage.see(f"{kind}: free", num_free, lambda n: count(n, "free block"))

    def _held(self, block: Any) -> str:
        if not isinstance(block, KVCacheBlock) or self.pool.blocks[block.block_id] is not block:
            return "no block of this pool"
        return self.contents[block.block_id] or f"an empty one ({block.block_id})"


def _queue(pool: Any) -> Any:
    """The free blocks in their order, if the learner's pool keeps them in the engine's queue."""
    queue = getattr(pool, "free_block_queue", None)
    return [b.block_id for b in queue] if isinstance(queue, FreeKVCacheBlockQueue) else None


def _ids(blocks: Sequence[KVCacheBlock]) -> str:
    ids = ", ".join(str(block.block_id) for block in blocks[:MANY])
    return f"blocks {ids}{', ...' if len(blocks) > MANY else ''}"


def _letter(value: Any) -> str:
    if value is None:
        return "-"
    return next((x for x in LETTERS if value == block_hash(x)), "another hash")


def _first(cells: str) -> str:
    words = (f"block {i}: {cell}" for i, cell in enumerate(cells.split(BAR)[:MANY]))
    return "; ".join(f"{w.replace(', ', ' held by ', 1)}" for w in words)


def _picture(want: str, got: str) -> tuple[Figure, str]:
    """Each block with its hash and its references, expected and yours."""

    def cell(text: str) -> Cell:
        name, refs = text.split(", ")
        return Cell(text, "in use" if refs != "0" else "free" if name == "-" else "findable")

    pairs = list(zip(want.split(BAR), got.split(BAR), strict=True))[:MANY]
    rows = [
        ("expected", [cell(one) for one, _ in pairs]),
        ("yours", [cell(b) if a == b else Cell(b, "wrong") for a, b in pairs]),
    ]
    figure = rows_of_blocks(
        rows, "Each block: its hash, and how many requests hold it", f"block 0 to {len(pairs) - 1}"
    )
    return figure, "Each block with its contents and reference count, expected and yours."
