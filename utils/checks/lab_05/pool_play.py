"""Stories of requests that take, find and give back blocks, told to two pools: exercise 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.prefix_pictures import Cell, rows_of_blocks
from utils.engine.core.kv_cache_utils import BlockHash, KVCacheBlock

LETTERS = "ABCDEFGH"
# In the order in which the methods are written: the first stories have only the first kinds.
KINDS = ("get", "get", "join", "free", "cache", "hit", "fill", "free", "fill", "cache", "hit")
AS: tuple[Callable[[list[Any]], Any], ...] = (list, iter, tuple)
BAR = " | "
MANY = 16  # blocks: fewer can be drawn, and told one by one


@dataclass(frozen=True)
class Story:
    """Each step is (kind, pool, request, number, number); requests are counted from the oldest."""

    sizes: tuple[int, ...]  # of each pool
    letters: str  # the fewer, the more blocks with the same hash
    together: bool  # whether several blocks without a hash are freed at once
    steps: tuple[tuple[str, int, int, int, int], ...]

    def __str__(self) -> str:
        return " and ".join(f"a pool of {size} blocks" for size in self.sizes)


def draw(c: Choices) -> Story:
    large = c.rarely(50)
    sizes, second = [c.integer(1100, 1300) if large else c.integer(1, 7)], c.integer(1, 3)
    sizes += [second] if c.rarely(6) else []

    def step() -> tuple[str, int, int, int, int]:
        kind, which = c.pick(KINDS), c.integer(0, len(sizes) - 1)
        most = 1050 if large and c.rarely(2) else 3
        return kind, which, c.integer(0, 4), c.integer(0, most), c.integer(0, 7)

    letters, together = c.pick((LETTERS, "AC", "ACB")), c.rarely(2)
    return Story(tuple(sizes), letters, together, tuple(c.some(step, 0, 6 if large else 18)))


def block_hash(letter: str) -> BlockHash:
    """Equal to others of this letter, and another object."""
    return BlockHash(b"%s " % letter.encode() * 4)


class Table:
    """A request's blocks, and how many of them can be found."""

    def __init__(self, blocks: list[KVCacheBlock], num_cached: int) -> None:
        self.blocks, self.num_cached = blocks, num_cached


class _Teller:
    """Tells one pool its part of the story, and looks at it after each step."""

    def __init__(self, stage: Stage, pool: Any, story: Story, number: int) -> None:
        self.stage, self.pool, self.story, self.size = stage, pool, story, story.sizes[number]
        self.name = f"pool {number + 1}: " if len(story.sizes) > 1 else ""
        size, self.letters = self.size, story.letters
        self.contents: list[str | None] = [None] * size
        self.tables: list[Table] = []

    def tell(self, kind: str, request: int, number: int, other: int) -> None:
        table = self.tables[request % len(self.tables)] if self.tables else Table([], 0)
        if kind == "get":
            self._get(number + (other > 1))
        elif kind == "fill":
            self._get(number)
            if self.tables and not self.tables[-1].num_cached:
                self._cache(self.tables[-1], number, other)
        elif kind == "hit":
            self._hit(request + 1, other)
        elif kind == "join" and table.blocks:
            self._touch(table.blocks[: len(table.blocks) - other % 2], other)
        elif kind == "free" and table.blocks:
            self._free(table, number, other)
        elif kind == "cache":
            growing = [t for t in self.tables if len(t.blocks) > t.num_cached]
            if growing:
                self._cache(growing[request % len(growing)], number, other)

    def _get(self, count: int) -> None:
        free = self.pool.get_num_free_blocks()
        self._step(f"get_new_blocks({count})" + (f", {free} are free" if count > free else ""))
        got = self.stage.call(self.pool, "get_new_blocks", count)
        if isinstance(got, Raised):
            self.stage.see("get", got)
            return self.look("refused")
        blocks = isinstance(got, list) and all(isinstance(b, KVCacheBlock) for b in got)
        self.stage.see("get", "a list of blocks" if blocks else got)
        ids = sorted(block.block_id for block in got)
        held = [f"{i} ({self.contents[i] or 'empty'})" for i in ids]
        self.stage.see("front", held, lambda names: f"blocks {', '.join(names) or 'none'}")
        for i in ids:
            self.contents[i] = None
        if ids:
            self.tables.append(Table([self.pool.blocks[i] for i in ids], 0))
        got.clear()  # the caller may use its list again
        return self.look("get")

    def _hit(self, count: int, other: int) -> None:
        there = [letter for letter in LETTERS if letter in self.contents]
        letters = (there[other % (len(there) or 1) :] + there)[: min(count, len(there))]
        if letters:  # any block with these contents will do, so take the first
            blocks = [self.pool.blocks[self.contents.index(letter)] for letter in letters]
            self._touch(blocks, other)
            self.tables[-1].num_cached = len(letters)

    def _touch(self, blocks: Sequence[KVCacheBlock], other: int) -> None:
        self._step(f"touch({_ids(blocks)})")
        got = self.stage.call(self.pool, "touch", AS[other % 3](list(blocks)))
        self.stage.see("touched", got if isinstance(got, Raised) else "no error")
        cached = [self.contents[block.block_id] is not None for block in blocks]
        self.tables.append(Table(list(blocks), (*cached, False).index(False)))
        self.look("touch")

    def _free(self, table: Table, number: int, other: int) -> None:
        """All of a request's blocks, the tail first; or only the last of them, as given."""
        keep = len(table.blocks) - number if other == 3 else 0
        blocks, table.blocks = table.blocks[max(0, keep) :], table.blocks[: max(0, keep)]
        blocks = blocks if other in (1, 5) else blocks[::-1]
        if not table.blocks:
            self.tables.remove(table)
        table.num_cached = min(table.num_cached, len(table.blocks))
        empty = [] if self.story.together else [b for b in blocks if self._is_empty(b)]
        for block in empty[1:]:
            self._free_blocks([block], other)
        self._free_blocks([b for b in blocks if b not in empty[1:]], other)

    def _free_blocks(self, blocks: list[KVCacheBlock], other: int) -> None:
        self._step(f"free_blocks({_ids(blocks)})")
        got = self.stage.call(self.pool, "free_blocks", AS[other % 3](list(blocks)))
        self.stage.see("freed", got if isinstance(got, Raised) else "no error")
        self.look("free")

    def _cache(self, table: Table, number: int, other: int) -> None:
        old = table.num_cached
        ready = list(takewhile(self._is_empty, table.blocks[old:]))
        full = old + min(number, len(ready))
        names = [self.contents[b.block_id] or "A" for b in table.blocks[:old]]
        new = range(other, other + len(table.blocks) - old)
        names += [self.letters[i % len(self.letters)] for i in new]
        names = names[: full + other % 2]  # perhaps one more, of a block that is not computed yet
        hashes = [block_hash(name) for name in names]
        shown = " ".join(names[:MANY])
        self._step(f"cache_full_blocks({_ids(table.blocks)}, hashes {shown}, {old}, {full})")
        args = (list(table.blocks), hashes, old, full)
        got = self.stage.call(self.pool, "cache_full_blocks", *args)
        self.stage.see("cached", got if isinstance(got, Raised) else "no error")
        for i in range(old, full):
            self.contents[table.blocks[i].block_id] = names[i]
        table.num_cached = full
        args[0].clear()
        hashes.clear()
        self.look("cache")

    def _is_empty(self, block: KVCacheBlock) -> bool:
        return self.contents[block.block_id] is None

    def look(self, kind: str) -> None:
        """Everything that can be seen of the pool."""
        stage, blocks = self.stage, self.pool.blocks
        pairs = zip(self.contents, blocks, strict=True)
        cells = [f"{name or '-'}, {block.ref_cnt}" for name, block in pairs]
        stage.see(f"{kind}: counts", BAR.join(cells), _first, _picture)
        cells = [f"{_letter(block.block_hash)}, {block.ref_cnt}" for block in blocks]
        stage.see(f"{kind}: hashes", BAR.join(cells), _first, _picture)
        found = stage.do(lambda: [self.pool.get_cached_block(block_hash(x)) for x in LETTERS + "?"])
        if not isinstance(found, Raised):
            held = [None if block is None else self._held(block) for block in found]
            pairs = zip(LETTERS + "?", held, strict=True)
            leads = ", ".join(f"{name} leads to {block}" for name, block in pairs if block)
            found = leads or "nothing is found"
        stage.see(f"{kind}: lookups", found)
        num_free = stage.call(self.pool, "get_num_free_blocks")
        stage.see(f"{kind}: free", num_free, _free_blocks)

    def _held(self, block: Any) -> str:
        if not isinstance(block, KVCacheBlock) or self.pool.blocks[block.block_id] is not block:
            return "no block of this pool"
        return self.contents[block.block_id] or f"an empty one ({block.block_id})"

    def drain(self) -> None:
        """In which order are the free blocks reused?"""
        for _ in range(self.pool.get_num_free_blocks()):
            got = self.stage.call(self.pool, "get_new_blocks", 1)
            wrong = isinstance(got, Raised) or not got
            i = -1 if wrong else got[0].block_id
            self.stage.see("order", got if wrong else f"block {i} ({self.contents[i] or 'empty'})")
            self.contents[i] = None
            if self.size <= MANY:
                self._step("get_new_blocks(1)")
        self.look("get")

    def _step(self, words: str) -> None:
        self.stage.step(self.name + words)


def play(stage: Stage, pool_class: Any, story: Story) -> None:
    tellers = []
    for number, size in enumerate(story.sizes):
        pool = stage.do(pool_class, size)
        stage.see("new", pool if isinstance(pool, Raised) else "a pool")
        tellers.append(_Teller(stage, pool, story, number))
        tellers[-1].look("new")
    for kind, which, *numbers in story.steps:
        tellers[which].tell(kind, *numbers)
        if len(tellers) > 1:
            tellers[1 - which].look("other")
    for teller in tellers:
        teller.drain()


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


def _free_blocks(number: int) -> str:
    return f"{number} free block{'s' if number != 1 else ''}"


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
