"""Stories of one or two pools, told to the learner's class and to the right one: exercise 2."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.lab.story import Story
from utils.checks.kit.pictures import blocks as block_pictures
from utils.checks.kit.pictures.blocks import FREE
from utils.engine.core.kv_cache_utils import KVCacheBlock

DRAWN = 12, 8  # blocks and steps in a picture
SHOWN = 8  # blocks in a sentence
LARGE = 50  # blocks of a pool for which a story is short
ALT = "The reference count of each block after each step, expected and yours."


@dataclass
class Shelf:
    """A pool, and the blocks that it has handed out, in the order in which they first came.

    Which of the blocks that were never used comes first is up to the learner. So a block is known
    by its place in this order.
    """

    size: int
    pool: Any
    ids: list[int] = field(default_factory=list)
    objects: dict[int, Any] = field(default_factory=dict)  # by block number

    def refs(self) -> dict[int, Any]:
        return {n: getattr(self.objects[i], "ref_cnt", None) for n, i in enumerate(self.ids)}

    def names(self, blocks: list[Any]) -> list[int]:
        for block in blocks:
            if block.block_id not in self.objects:
                self.ids.append(block.block_id)
            self.objects[block.block_id] = block
        places = {block_id: n for n, block_id in enumerate(self.ids)}
        return [places[block.block_id] for block in blocks]

    def show(self, names: list[int]) -> str:
        words = [str(self.ids[n]) if n < len(self.ids) else "one never used" for n in names[:SHOWN]]
        return f"blocks [{', '.join(words)}{', ...' if len(names) > SHOWN else ''}]"

    def show_refs(self, refs: dict[int, Any]) -> str:
        words = [f"{refs[n]} of block {self.ids[n]}" for n in refs if n < len(self.ids)]
        return f"ref_cnt {', '.join(words[:SHOWN])}{', ...' if len(words) > SHOWN else ''}"


class PoolStory(Story):
    """The setting: how many blocks each pool has. A list that holds a free block is refused, and
    ends the story: until there, the right class may have done other steps than the learner's."""

    kinds = ("get", "free", "touch", "get_free")

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, ...]:
        first = c.size(60, 3000) if c.rarely(15) else c.integer(1, 6)
        return first, *c.pick(((), (), (), (first,), (3,)))

    @classmethod
    def tell(cls, setting: tuple[int, ...]) -> str:
        return " and ".join(f"BlockPool({size})" for size in setting)

    @classmethod
    def longest(cls, setting: tuple[int, ...]) -> int:
        return 5 if setting[0] > LARGE else 20

    @classmethod
    def draw_get(cls, c: Choices, sizes: tuple[int, ...]) -> tuple[int, int, bool]:
        """Pool, number of blocks, and whether the caller empties the list."""
        number = c.size(0, 1100, 4) if sizes[0] > LARGE else c.integer(0, 4)
        return c.integer(0, len(sizes) - 1), number, c.rarely(4)

    @classmethod
    def draw_get_free(cls, c: Choices, sizes: tuple[int, ...]) -> tuple[int, int, bool]:
        """Pool, how many more than are free, and whether the caller empties the list."""
        return c.integer(0, len(sizes) - 1), c.pick((0, 1, -1, 5)), c.rarely(4)

    @classmethod
    def draw_touch(cls, c: Choices, sizes: tuple[int, ...]) -> tuple[int, bool, tuple[int, ...]]:
        """Pool, whether free blocks are taken, too, and which blocks."""
        picks = tuple(c.some(lambda: c.integer(0, 12), 0, 5))
        return c.integer(0, len(sizes) - 1), c.rarely(4), picks

    draw_free = draw_touch

    def start(self, answer: Any) -> None:
        self.shelves: list[Shelf] = []
        self.rows: list[tuple[str, dict[int, Any]]] = []  # what the first pool looked like
        self.words, self.over = f"BlockPool({self.setting[0]})", False
        for size in self.setting:
            made = self.stage.do(answer, size)
            self.see("new", made, "a pool")
            self.shelves.append(Shelf(size, made))
        for index in range(len(self.shelves)):
            self._look(index, "new")

    def do_get(self, index: int, number: int, emptied: bool) -> None:
        if self.over:
            return
        stage, shelf = self.stage, self.shelves[index]
        held = {shelf.ids[n] for n, ref in shelf.refs().items() if ref}
        then = ", and the caller empties that list" if emptied else ""
        self._step(index, f"get_new_blocks({number}){then}")
        got = self.see("get", stage.call(shelf.pool, "get_new_blocks", number))
        if isinstance(got, Raised):
            stage.refused()
            self._look(index, "refused get")
            return
        if not isinstance(got, list) or not all(isinstance(block, KVCacheBlock) for block in got):
            stage.blame("list", "a list of KVCacheBlock", got)
        stage.see("count", len(got))
        ids = [block.block_id for block in got]
        stage.see("exists", [i for i in ids if i not in range(shelf.size)])
        again = [i for n, i in enumerate(ids) if i in held or i in ids[:n]]
        stage.see("taken", again, picture=self._draw_again)
        stage.see("order", shelf.names(got), shelf.show)
        self._look(index, "get")
        if emptied:
            got.clear()

    def do_get_free(self, index: int, more: int, emptied: bool) -> None:
        if not self.over:
            self.do_get(index, max(0, self._free(index) + more), emptied)

    def do_touch(self, index: int, free_ones: bool, picks: tuple[int, ...]) -> None:
        self._pass_on("touch", index, free_ones, picks)

    def do_free(self, index: int, free_ones: bool, picks: tuple[int, ...]) -> None:
        self._pass_on("free_blocks", index, free_ones, picks)

    def end(self) -> None:
        for index in range(len(self.shelves)):
            self.do_get_free(index, 0, False)

    def _pass_on(self, method: str, index: int, free_ones: bool, picks: tuple[int, ...]) -> None:
        """Touch or free blocks that were handed out."""
        stage, shelf = self.stage, self.shelves[index]
        places = [n for n, ref in shelf.refs().items() if ref or free_ones]
        if self.over or not places:
            return
        blocks = [shelf.objects[shelf.ids[places[pick % len(places)]]] for pick in picks]
        self._step(index, f"{method}({[block.block_id for block in blocks]})")
        given = list(blocks)
        got = self.see(method, stage.call(shelf.pool, method, given))
        given.clear()
        if isinstance(got, Raised):
            self._after_an_error(index)
        else:
            self._look(index, method)

    def _after_an_error(self, index: int) -> None:
        """Each block is held or in the queue, once."""
        stage, shelf = self.stage, self.shelves[index]
        stage.refused()
        self.over = True
        held = {shelf.ids[n] for n, ref in shelf.refs().items() if ref}
        left = stage.call(shelf.pool, "get_new_blocks", self._free(index))
        if not isinstance(left, list):
            stage.blame("lost", "all free blocks", left)
        ids = [block.block_id for block in left]
        stage.expect("twice", [], sorted({i for i in ids if i in held or ids.count(i) > 1}))
        stage.expect("lost", [], sorted({*range(shelf.size)} - held - {*ids}))

    def _free(self, index: int) -> Any:
        got = self.stage.call(self.shelves[index].pool, "get_num_free_blocks")
        self.stage.see("number", "a number" if isinstance(got, int) else got)
        return got

    def _step(self, index: int, words: str) -> None:
        self.words = f"pool {index + 1}: {words}" if len(self.setting) > 1 else words
        self.stage.step(self.words)

    def _look(self, index: int, after: str) -> None:
        """All that can be seen: reference counts, and the number of free blocks."""
        for other, shelf in enumerate(self.shelves):
            refs = shelf.refs()
            free = self.stage.call(shelf.pool, "get_num_free_blocks")
            draw = None
            if other == 0:
                self.rows.append((self.words, self._row(refs, free)))
                draw = self._draw
            clause = after if other == index else "other"
            refs_picture = draw and functools.partial(draw, free=free)
            self.stage.see(f"{clause}: ref_cnt", refs, shelf.show_refs, refs_picture)
            free_picture = draw and functools.partial(draw, refs=refs)
            self.stage.see(f"{clause}: free", free, _free_blocks, free_picture)

    def _row(self, refs: dict[int, Any], free: Any) -> dict[int, Any]:
        ids = self.shelves[0].ids
        return {ids[n]: ref for n, ref in refs.items() if n < len(ids)} | {FREE: free}

    def _draw(self, want: Any, got: Any, refs: Any = None, free: Any = None) -> Any:
        """The last row as it should be, and as it is."""
        row = self._row(want, free) if refs is None else self._row(refs, want)
        return self._picture(self.rows[-1][1], row)

    def _draw_again(self, want: Any, got: list[int]) -> tuple[Figure | None, str]:
        row = self.rows[-1][1]
        self.rows.append((self.words, row | dict.fromkeys(got, "again")))
        return self._picture(self.rows[-1][1], row)

    def _picture(self, mine: Any, expected: Any) -> tuple[Figure | None, str]:
        num_blocks, num_rows = DRAWN
        if self.setting[0] > num_blocks:
            return None, ""
        steps, rows = zip(*self.rows[-num_rows:], strict=True)
        before = list(rows[:-1])
        figure = block_pictures.ref_counts(
            steps, [*before, expected], [*before, mine], self.setting[0]
        )
        return figure, ALT


def _free_blocks(number: Any) -> str:
    return f"{block_pictures.count(number, 'free block')}"


def shared_story(pool_class: Any) -> Figure:
    """Two holders, then three, then none: a picture of a right answer."""
    story = PoolStory(Stage(), (4,))
    story.start(pool_class)
    story.do_get(0, 2, False)
    for method, picks in (
        ("touch", (0, 1)),
        ("touch", (0,)),
        ("free_blocks", (1, 0)),
        ("free_blocks", (1,)),
        ("free_blocks", (0,)),
        ("free_blocks", (0,)),
    ):
        story._pass_on(method, 0, False, picks)
    steps, rows = zip(*story.rows, strict=True)
    return block_pictures.ref_counts(steps, rows, rows, 4)
