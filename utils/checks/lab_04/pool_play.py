"""Stories of one or two pools, told to the learner's class and to a right one: exercise 2."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import FREE
from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.engine.core.kv_cache_utils import KVCacheBlock

DRAWN = 12, 8  # blocks and steps in a picture
SHOWN = 8


@dataclass(frozen=True)
class Story:
    """`steps`, each for a pool: ("get", pool, number, list emptied), ("get free", pool, more than
    are free, list emptied), ("touch", pool, which, picks), ("free", pool, which, picks); `which`
    is "held" (any number of times) or "any" (the free ones, too)."""

    sizes: tuple[int, ...]
    steps: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return " and ".join(f"BlockPool({size})" for size in self.sizes)


def draw_story(c: Choices) -> Story:
    large = c.rarely(15)
    sizes = [c.size(60, 3000) if large else c.integer(1, 6)]
    sizes += c.pick(((), (), (), (sizes[0],), (3,)))

    def step() -> tuple[Any, ...]:
        kind, pool = c.pick(("get", "free", "touch", "get free")), c.integer(0, len(sizes) - 1)
        if kind == "get":
            return kind, pool, c.size(0, 1100, 4) if large else c.integer(0, 4), c.rarely(4)
        if kind == "get free":
            return kind, pool, c.pick((0, 1, -1, 5)), c.rarely(4)
        which = c.pick(("held", "held", "held", "any"))
        return kind, pool, which, tuple(c.some(lambda: c.integer(0, 12), 0, 5))

    return Story(tuple(sizes), tuple(c.some(step, 0, 5 if large else 20)))


def play(stage: Stage, pool_class: Any, story: Story) -> None:
    Teller(stage, story).tell(pool_class)


@dataclass
class _Shelf:
    """A pool, and the blocks that it has handed out, in the order in which they first came.

    Which of the blocks that were never used comes first is nobody's business. So a block is known
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


class Teller:
    """Tells a story, and keeps what the first pool looked like after each step."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self.stage, self.story = stage, story
        self.shelves: list[_Shelf] = []
        self.rows: list[tuple[str, dict[int, Any]]] = []
        self.words = ""

    def tell(self, pool_class: Any) -> None:
        for size in self.story.sizes:
            made = self.stage.do(pool_class, size)
            self.stage.see("new", made if isinstance(made, Raised) else "a pool")
            self.shelves.append(_Shelf(size, made))
        self._step(0, f"BlockPool({self.story.sizes[0]})")
        for index in range(len(self.shelves)):
            self._look(index, "new")
        for kind, index, *rest in self.story.steps:
            if kind.startswith("get"):
                more = max(0, self._free(index) + rest[0]) if kind == "get free" else rest[0]
                self._get(index, more, rest[1])
            else:
                self._pass_on(kind, index, *rest)
        for index in range(len(self.shelves)):
            self._get(index, self._free(index), False)

    @staticmethod
    def _count(shelf: _Shelf) -> Any:
        return shelf.pool.get_num_free_blocks()

    def _free(self, index: int) -> Any:
        got = self.stage.call(self.shelves[index].pool, "get_num_free_blocks")
        self.stage.see("number", "a number" if isinstance(got, int) else got)
        return got

    def _step(self, index: int, words: str) -> None:
        self.words = f"pool {index + 1}: {words}" if len(self.story.sizes) > 1 else words
        self.stage.step(self.words)

    def _get(self, index: int, number: int, emptied: bool) -> None:
        stage, shelf = self.stage, self.shelves[index]
        held = {shelf.ids[n] for n, ref in shelf.refs().items() if ref}
        then = ", and the caller empties that list" if emptied else ""
        self._step(index, f"get_new_blocks({number}){then}")
        got = stage.call(shelf.pool, "get_new_blocks", number)
        if isinstance(got, Raised):
            stage.see("get", got)
            self._look(index, "refused get")
            return
        stage.see("get", "blocks" if isinstance(got, list) else got)
        if not all(isinstance(block, KVCacheBlock) for block in got):
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

    def _pass_on(self, kind: str, index: int, which: str, picks: tuple[int, ...]) -> None:
        """Touch or free blocks that were handed out; a free one must be refused."""
        stage, shelf = self.stage, self.shelves[index]
        before = shelf.refs()
        places = [n for n, ref in before.items() if ref or which == "any"]
        if not places:
            return
        blocks = [shelf.objects[shelf.ids[places[pick % len(places)]]] for pick in picks]
        method = "touch" if kind == "touch" else "free_blocks"
        self._step(index, f"{method}({[block.block_id for block in blocks]})")
        refs, num_fine = {id(block): block.ref_cnt for block in blocks}, 0
        for block in blocks:
            if not refs[id(block)]:
                break
            refs[id(block)] += 1 if kind == "touch" else -1
            num_fine += 1
        free, given = self._free(index), list(blocks)
        got = stage.call(shelf.pool, method, given)
        given.clear()
        stage.see(kind, got if isinstance(got, Raised) else "no error")
        if isinstance(got, Raised):
            untouched = shelf.refs() == before and attempt(self._count, shelf) == free
            if num_fine and untouched:
                # It looked at all of them before it began. That is right, too: do the rest now.
                got = attempt(lambda: getattr(shelf.pool, method)(blocks[:num_fine]))
                stage.see("prefix", got if isinstance(got, Raised) else "no error")
            else:
                stage.see("prefix", "no error")
            kind = f"refused {kind}"
        self._look(index, kind)

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
            self.stage.see(f"{clause}: free", free, picture=free_picture)

    def _row(self, refs: dict[int, Any], free: Any) -> dict[int, Any]:
        ids = self.shelves[0].ids
        return {ids[n]: ref for n, ref in refs.items() if n < len(ids)} | {FREE: free}

    def _draw(self, want: Any, got: Any, refs: Any = None, free: Any = None) -> Any:
        """The last row as it should be, and as it is."""
        row = self._row(want, free) if refs is None else self._row(refs, want)
        return self.picture(self.rows[-1][1], row)

    def _draw_again(self, want: Any, got: list[int]) -> tuple[Figure | None, str]:
        row = self.rows[-1][1]
        self.rows.append((self.words, row | dict.fromkeys(got, "again")))
        return self.picture(self.rows[-1][1], row)

    def picture(self, mine: Any, expected: Any) -> tuple[Figure | None, str]:
        num_blocks, num_rows = DRAWN
        if self.shelves[0].size > num_blocks:
            return None, ""
        steps, rows = zip(*self.rows[-num_rows:], strict=True)
        before = list(rows[:-1])
        figure = block_pictures.ref_counts(
            steps, [*before, expected], [*before, mine], self.shelves[0].size
        )
        return figure, "The reference count of each block after each step, expected and yours."


SHARED = Story(
    (4,),
    (
        ("get", 0, 2, False),
        ("touch", 0, "held", (0, 1)),
        ("touch", 0, "held", (0,)),
        ("free", 0, "held", (1, 0)),
        ("free", 0, "held", (1,)),
        ("free", 0, "held", (0,)),
        ("free", 0, "held", (0,)),
    ),
)


def shared_story(pool_class: Any) -> Figure:
    """Two holders, then three, then none: a picture of a right answer."""
    teller = Teller(Stage(), SHARED)
    teller.tell(pool_class)
    steps, rows = zip(*teller.rows, strict=True)
    return block_pictures.ref_counts(steps, rows, rows, SHARED.sizes[0])
