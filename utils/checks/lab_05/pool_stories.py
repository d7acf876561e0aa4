"""Small stories about a pool with prefix caching, each told to the learner's class.

Beside the learner's pool runs a model of it, made of plain lists. After each step both must agree
in everything that can be seen from outside. Which of several empty blocks is handed out is free.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure

from utils.checks.kit.prefix_pictures import Cell, rows_of_blocks
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

METHODS = ("get_new_blocks", "get_cached_block", "touch", "free_blocks", "cache_full_blocks")
EVICT = (
    "In `get_new_blocks`, for each block that has a `block_hash`: remove it from "
    "`cached_block_hash_to_block`, and set `block.block_hash = None`."
)
QUEUE = "`append_n` puts blocks at the back of the queue, `prepend_n` at the front."


def _hash(letter: str) -> bytes:
    return letter.encode()


@contextlib.contextmanager
def engine_methods_refuse() -> Iterator[None]:
    """While this is on, a learner's pool cannot let the engine's pool do the work."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Mismatch(
            "The engine's own method does the work, by inheritance or through `super()`.",
            look=f"Write all five methods yourself: {', '.join(METHODS)}.",
        )

    with contextlib.ExitStack() as stack:
        for method in METHODS:
            stack.enter_context(patch.object(BlockPool, method, refuse))
        yield


class Story:
    """A learner's pool and its model, moved in step."""

    def __init__(self, pool_class: Callable[..., Any], num_blocks: int) -> None:
        self.steps = [f"a pool of {num_blocks} blocks"]
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.contents: list[str | None] = [None] * num_blocks
        self.findable_free: list[int] = []  # the first to be evicted in front
        self.letters: list[str] = []
        self.last_freed: list[int] = []
        self.last = ""
        self.pool = call(pool_class, num_blocks, given=self.told)
        self.look()

    # --- steps -----------------------------------------------------------------------------------

    def get(self, num_blocks: int) -> list[KVCacheBlock]:
        self._step("get", f"get_new_blocks({num_blocks})")
        got = call(self.pool.get_new_blocks, num_blocks, given=self.told)
        if not isinstance(got, list) or not all(isinstance(b, KVCacheBlock) for b in got):
            raise self.wrong(
                f"`get_new_blocks` returned {describe(got)}; expected a list of KVCacheBlock."
            )
        ids = [block.block_id for block in got]
        if len(set(ids)) != num_blocks or len(ids) != num_blocks or min(ids, default=0) < 0:
            raise self.wrong(
                f"`get_new_blocks({num_blocks})` returned blocks {ids}; expected {num_blocks} "
                "different ones."
            )
        if used := [i for i in ids if self.refs[i]]:
            raise self.wrong(
                f"Block {used[0]} is handed out while a request holds it. Its keys and values "
                "would be overwritten.",
                look="A touched block must leave the free queue, and a block that still has "
                "references must not enter it.",
            )
        self._judge_order(ids)
        self._hand_out(ids)
        self.look()
        return got

    def get_too_many(self, num_blocks: int) -> None:
        self._step("get", f"get_new_blocks({num_blocks}), more than are free")
        try:
            got = self.pool.get_new_blocks(num_blocks)
        except ValueError:
            self.look()
            return
        except Exception as error:
            raise self.wrong(
                f"Asking for more blocks than are free raised {type(error).__name__}; expected a "
                "ValueError that says so.",
                look="Compare with `self.get_num_free_blocks()` before anything changes.",
            ) from None
        raise self.wrong(
            "Asking for more blocks than are free passes silently.",
            expected="ValueError", got=describe(got),
            look="Compare with `self.get_num_free_blocks()` before anything changes.",
        )  # fmt: skip

    def cache(
        self, blocks: Sequence[KVCacheBlock], letters: str, num_cached: int, num_full: int
    ) -> None:
        ids = [block.block_id for block in blocks]
        hashes = [_hash(letter) for letter in letters]
        self._step("cache", f"cache_full_blocks(blocks {ids}, {hashes}, {num_cached}, {num_full})")
        arguments = (list(blocks), hashes, num_cached, num_full)
        call(self.pool.cache_full_blocks, *arguments, given=self.told)
        for place in range(num_cached, num_full):
            self.contents[ids[place]] = letters[place]
        self.letters += [letter for letter in letters if letter not in self.letters]
        self.look()

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._step("touch", f"touch({_ids(blocks)})")
        call(self.pool.touch, list(blocks), given=self.told)
        for block in blocks:
            self.refs[block.block_id] += 1
        self.findable_free = [i for i in self.findable_free if not self.refs[i]]
        self.look()

    def free(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._step("free", f"free_blocks({_ids(blocks)})")
        call(self.pool.free_blocks, list(blocks), given=self.told)
        self.last_freed = [block.block_id for block in blocks]
        for block in blocks:
            i = block.block_id
            self.refs[i] -= 1
            if self.refs[i] == 0 and self.contents[i] is not None:
                self.findable_free.append(i)
        self.look()

    def find(self, letter: str) -> KVCacheBlock:
        """A block that the model knows to be findable."""
        self._step("find", f"get_cached_block({_hash(letter)!r})")
        return call(self.pool.get_cached_block, _hash(letter), given=self.told)

    def _hand_out(self, ids: Sequence[int]) -> None:
        for i in ids:
            self.refs[i], self.contents[i] = 1, None
        self.findable_free = [i for i in self.findable_free if i not in ids]

    # --- judgement -------------------------------------------------------------------------------

    @property
    def told(self) -> str:
        shown = self.steps if len(self.steps) <= 8 else [self.steps[0], "...", *self.steps[-6:]]
        return "; ".join(shown)

    def _step(self, kind: str, words: str) -> None:
        self.last = kind
        self.steps.append(words)

    def wrong(
        self,
        says: str,
        look: str = "",
        expected: str = "",
        got: str = "",
        blamed: int | None = None,
    ) -> Mismatch:
        return Mismatch(
            says, input=self.told, expected=expected, got=got, look=look,
            figure=self.picture(blamed),
            alt="Each block with its contents and reference count, expected and yours.",
        )  # fmt: skip

    def picture(self, blamed: int | None) -> Figure:
        """Blocks as the model has them and as the learner has them: contents, and references."""
        expected, yours = [], []
        for i, block in enumerate(self.pool.blocks):
            expected.append(self._cell(self.contents[i], self.refs[i]))
            found = block.block_hash
            cell = self._cell(found.decode() if isinstance(found, bytes) else None, block.ref_cnt)
            same = (cell.text, cell.kind) == (expected[-1].text, expected[-1].kind)
            yours.append(cell if same and i != blamed else Cell(cell.text, "wrong"))
        return rows_of_blocks(
            [("expected", expected), ("yours", yours)],
            "Each block: its hash, and how many requests hold it",
            f"block 0 to {self.num_blocks - 1}",
        )

    @staticmethod
    def _cell(letter: str | None, refs: int) -> Cell:
        kind = "in use" if refs else "free" if letter is None else "findable"
        return Cell(f"{letter or '-'}, {refs}", kind)

    def _judge_order(self, ids: Sequence[int]) -> None:
        held = zip(self.refs, self.contents, strict=True)
        empty = [i for i, (refs, letter) in enumerate(held) if refs == 0 and letter is None]
        evicted = [i for i in ids if self.contents[i] is not None]
        num_evicted = max(0, len(ids) - len(empty))
        free, right = self.findable_free, self.findable_free[:num_evicted]
        if sorted(evicted) == sorted(right):
            return
        lost = self.contents[evicted[0]]
        self._hand_out([*empty[: len(ids)], *right])  # so that the picture shows what was expected
        if len(evicted) > num_evicted:
            raise self.wrong(
                f"Block {evicted[0]}, which holds {lost}, is evicted although {len(empty)} free "
                "block(s) hold nothing that anybody could find.",
                look="In `free_blocks`, blocks without a `block_hash` go to the front of the "
                f"queue, the others to the back. {QUEUE}",
                blamed=evicted[0],
            )  # fmt: skip
        says = "The wrong block is evicted."
        if set(free) <= set(self.last_freed):
            says = (
                "The blocks of one `free_blocks` are reused in the wrong order. The first in the "
                "list must be the first to be reused."
            )
        elif sorted(evicted) == sorted(free[-num_evicted:]):
            says = "The most recently freed block is evicted. It must be the least recently used."
        raise self.wrong(
            says,
            expected=f"evicted {right}; the free ones were freed in the order {free}",
            got=f"evicted {sorted(evicted)}",
            look="In `free_blocks`, blocks that can be found go to the back of the queue, in the "
            f"order given. {QUEUE}",
            blamed=evicted[0],
        )

    def look(self) -> None:
        """Compare all that can be seen."""
        for i, block in enumerate(self.pool.blocks):
            if block.ref_cnt != self.refs[i]:
                raise self._wrong_count(i, block.ref_cnt)
        for i, letter in enumerate(self.contents):
            if letter is not None:
                self._judge_hash(i, letter)
        for letter in ("?", *self.letters):
            self._judge_lookup(letter)
        for i, block in enumerate(self.pool.blocks):
            if block.block_hash is not None and self.contents[i] is None:
                raise self.wrong(
                    f"Block {i} keeps its old hash, {block.block_hash!r}, though its contents are "
                    "gone.",
                    look=EVICT, blamed=i,
                )  # fmt: skip
        num_free, expected = self.pool.get_num_free_blocks(), self.refs.count(0)
        if num_free != expected:
            says, look = "The number of free blocks is wrong.", ""
            if self.last == "touch":
                says = "A touched block is still in the free queue. It could be handed out again."
                look = "If its `ref_cnt` was 0: `self.free_block_queue.remove(block)`."
            elif self.last == "free":
                look = "A block enters the queue when its `ref_cnt` falls to 0, and only then."
                says = "A block that another request still holds is in the free queue."
                if num_free < expected:
                    says = "A block that nobody holds any more is missing from the free queue."
            raise self.wrong(says, expected=f"{expected} free blocks", got=f"{num_free}", look=look)

    def _wrong_count(self, i: int, got: int) -> Mismatch:
        says = {
            "get": "A block that is handed out has one reference.",
            "touch": "`touch` must raise the reference count: one more request holds the block.",
            "free": "`free_blocks` must lower the reference count by one.",
        }.get(self.last, "The reference count is wrong.")
        return self.wrong(
            says, expected=f"block {i} with ref_cnt {self.refs[i]}", got=f"ref_cnt {got}", blamed=i
        )

    def _judge_hash(self, i: int, letter: str) -> None:
        got = self.pool.blocks[i].block_hash
        if got == _hash(letter):
            return
        says = f"Block {i} holds {letter}, but its `block_hash` is {got!r}."
        look = "`block.block_hash = block_hash`."
        if self.last == "cache":
            if got is None:
                says += " When it is evicted, nobody will know which hash to forget."
            else:
                look = "`blocks[i]` belongs to `block_hashes[i]`, with the same i in both."
        if self.last in ("touch", "free"):
            says = f"`block_hash` of block {i} is {got!r} after `{self.steps[-1]}`."
            look = "A free block keeps its contents, and its hash, until it is handed out again."
        raise self.wrong(says, look=look, blamed=i)

    def _judge_lookup(self, letter: str) -> None:
        holders = [i for i, held in enumerate(self.contents) if held == letter]
        given = f"{self.told}; get_cached_block({_hash(letter)!r})"
        got = call(self.pool.get_cached_block, _hash(letter), given=given)
        if got is None and not holders:
            return
        if got is not None and not isinstance(got, KVCacheBlock):
            raise self.wrong(
                f"`get_cached_block` returned {describe(got)}; expected a KVCacheBlock or None."
            )
        if got is None:
            raise self._lost(letter, holders)
        if got.block_id in holders:
            return
        i = got.block_id
        if self.last == "get":
            says = (
                f"An evicted block is still found by its hash: {letter} leads to block {i}, which "
                "now belongs to another request and is being overwritten."
            )
            raise self.wrong(says, look=EVICT, blamed=i)
        if self.last == "cache" and not holders:
            raise self.wrong(
                f"{letter} can be found, in block {i}, but that block is not computed in full.",
                look="Only `blocks[num_cached_blocks:num_full_blocks]` become findable.", blamed=i,
            )  # fmt: skip
        raise self.wrong(
            f"{letter} is found in block {i}.", expected=f"block {holders}" if holders else "None",
            look="`blocks[i]` belongs to `block_hashes[i]`, with the same i in both.", blamed=i,
        )  # fmt: skip

    def _lost(self, letter: str, holders: Sequence[int]) -> Mismatch:
        says = f"{letter} cannot be found, though block {holders[0]} holds it."
        look = "`get_cached_block` looks the hash up in `cached_block_hash_to_block`."
        if self.last == "free":
            says = (
                f"{letter} cannot be found any more after its block was freed. A free block keeps "
                "its contents until it is handed out again: that is the cache."
            )
            look = "Nothing is removed from `cached_block_hash_to_block` in `free_blocks`."
        elif self.last == "get":
            says = (
                f"{letter} cannot be found, though block {holders[0]} still holds it. Another "
                "block with the same hash was evicted."
            )
            look = (
                "Several blocks may have one hash. Keep all of them: "
                "`cached_block_hash_to_block[block_hash][block_id] = block`."
            )
        return self.wrong(says, look=look, blamed=holders[0])


def _ids(blocks: Sequence[KVCacheBlock]) -> str:
    return f"blocks {[block.block_id for block in blocks]}"


# --- the stories, from the simplest on -----------------------------------------------------------


def _story_get(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    story.get(2)
    story.get_too_many(3)
    story.get(2)


def _story_free(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    blocks = story.get(3)
    story.free(blocks[:1])
    story.free(blocks[1:])
    story.get(3)


def _story_cache(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    blocks = story.get(3)
    story.cache(blocks, "ABC", 0, 2)  # the third is hashed already, but not computed yet
    story.cache(blocks, "ABC", 2, 3)


def _story_keep(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    blocks = story.get(2)
    story.cache(blocks, "AB", 0, 2)
    story.free(blocks[::-1])


def _story_hit(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    blocks = story.get(2)
    story.cache(blocks, "AB", 0, 2)
    story.touch([story.find("A")])  # in use: a second request joins
    story.free(blocks[::-1])
    story.touch([story.find("B")])  # free: it must leave the queue
    story.get(1)
    story.get_too_many(1)


def _story_oldest_first(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    blocks = story.get(3)
    story.cache(blocks, "ABC", 0, 3)
    for place in (1, 0, 2):
        story.free([blocks[place]])
    story.get(1)


def _story_evict(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 2)
    blocks = story.get(2)
    story.cache(blocks, "AB", 0, 2)
    story.free(blocks[::-1])
    new = story.get(1)
    story.cache(new, "C", 0, 1)
    story.get(1)


def _story_order(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    first, second = story.get(2), story.get(2)
    story.cache(first, "AB", 0, 2)
    story.cache(second, "CD", 0, 2)
    story.free([second[1]])
    story.free(first[::-1])
    story.get(1)
    story.get(1)


def _story_empty_first(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    blocks, other = story.get(2), story.get(2)
    story.cache(blocks, "AB", 0, 1)  # the second is not full
    story.cache(other, "CD", 0, 2)
    story.free(other[::-1])
    story.free(blocks[::-1])
    story.get(1)
    story.get(2)


def _story_twins(pool_class: Callable[..., Any]) -> None:
    for order in (0, 1):
        story = Story(pool_class, 2)
        blocks = [story.get(1), story.get(1)]
        for block in blocks:
            story.cache(block, "A", 0, 1)
        story.free(blocks[order])
        story.free(blocks[1 - order])
        story.get(1)
        story.get(1)


def _story_random(pool_class: Callable[..., Any]) -> None:
    dice = random.Random(5)
    story = Story(pool_class, 6)
    held: list[KVCacheBlock] = []  # a block with two references is here twice
    for _ in range(300):
        action = dice.choice(["get", "cache", "touch", "free", "free"])
        if action == "get":
            held += story.get(dice.randint(0, story.refs.count(0)))
        elif action == "cache":
            new = [b for b in dict.fromkeys(held) if story.contents[b.block_id] is None]
            letters = "".join(dice.choices("ABCDEFGH", k=len(new)))
            story.cache(new, letters, 0, dice.randint(0, len(new)))
        elif action == "touch":
            found = [letter for letter in set(story.contents) if letter is not None]
            if found:
                block = story.find(dice.choice(sorted(found)))
                story.touch([block])
                held.append(block)
        else:
            dice.shuffle(held)
            count = dice.randint(0, len(held))
            freed = list(dict.fromkeys(held[:count]))
            for block in freed:
                held.remove(block)
            story.free(freed)


STORIES: tuple[Callable[[Callable[..., Any]], None], ...] = (
    _story_get,
    _story_free,
    _story_cache,
    _story_keep,
    _story_hit,
    _story_oldest_first,
    _story_evict,
    _story_order,
    _story_empty_first,
    _story_twins,
    _story_random,
)
