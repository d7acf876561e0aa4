"""Small stories about requests that share blocks: the checks of `fork` and `copy_on_write`.

A token is a letter, so that the feedback can say whose token lies where.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import Cell
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

BLOCK_SIZE = 4
EMPTY = "·"
Panel = list[tuple[str, list[Cell]]]


class Family:
    """Requests by name, their block tables, and the letters in the blocks. The oracle: this class
    forks and copies by itself, the slow and obvious way."""

    def __init__(self, num_blocks: int, text: str) -> None:
        self.pool = BlockPool(num_blocks)
        # Block numbers that look like places in a table would hide a mistake.
        order = self.pool.get_new_blocks(num_blocks)
        random.Random(num_blocks).shuffle(order)
        self.pool.free_blocks(order)
        self.contents = {block: [EMPTY] * BLOCK_SIZE for block in range(num_blocks)}
        table = self.pool.get_new_blocks(-(-len(text) // BLOCK_SIZE))
        self.tables: dict[str, list[KVCacheBlock]] = {"parent": table}
        self.told = [f"blocks of {BLOCK_SIZE} tokens; the parent holds {text!r} in {_ids(table)}"]
        for position, letter in enumerate(text):
            self.write("parent", position, letter)

    @property
    def story(self) -> str:
        return "; ".join(self.told)

    def fork(self, child: str, parent: str = "parent") -> None:
        self.pool.touch(self.tables[parent])
        self.tables[child] = list(self.tables[parent])
        self.told.append(f"{child} is forked from {parent}")

    def write(self, name: str, position: int, letter: str) -> None:
        block = self.tables[name][position // BLOCK_SIZE].block_id
        self.contents[block][position % BLOCK_SIZE] = letter

    def read(self, name: str) -> str:
        return "".join(self.letters(block) for block in self.tables[name])

    def letters(self, block: KVCacheBlock) -> str:
        return "".join(self.contents[block.block_id])

    def panel(self, wrong: Sequence[tuple[str, int]] = (), copied: Sequence[int] = ()) -> Panel:
        """The tables as rows of cells; `wrong` are (name, place), `copied` are block numbers."""
        return [
            (
                name,
                [
                    Cell(
                        f"block {b.block_id}\n{self.letters(b)}  ref {b.ref_cnt}",
                        "wrong" if (name, place) in wrong
                        else "copy" if b.block_id in copied
                        else "shared" if b.ref_cnt > 1 else "used",
                    )
                    for place, b in enumerate(table)
                ],
            )
            for name, table in self.tables.items()
        ]  # fmt: skip


def _ids(table: Sequence[Any]) -> str:
    return "blocks [" + ", ".join(str(block.block_id) for block in table) + "]"


def _is_table(got: Any) -> bool:
    return isinstance(got, list) and all(isinstance(block, KVCacheBlock) for block in got)


# --- fork ----------------------------------------------------------------------------------------


def check_fork(function: Callable[..., Any]) -> Figure:
    """Fork once, fork three times, fork an empty table; return a picture of the first."""
    family = _forked(function, "abcdef", ["child"])
    _forked(function, "abcdefgh", ["child 1", "child 2", "child 3"])
    _forked(function, "", ["child"])
    return block_pictures.tables({"yours": family.panel()}, "One set of blocks, two tables")


def _forked(function: Callable[..., Any], text: str, names: Sequence[str]) -> Family:
    """Fork the parent's table for each name, by the learner's function, and judge each time."""
    family, right = Family(8, text), Family(8, text)
    before = list(family.tables["parent"])
    for name in names:
        num_free = family.pool.get_num_free_blocks()
        family.told.append(f"{name} = fork(block_pool, the parent's table)")
        got = call(function, family.pool, family.tables["parent"], given=family.story)
        right.fork(name)
        if problem := _fork_problem(family, got, before, num_free):
            figure = None
            if _is_table(got) and got:
                family.tables[name] = got
                yours = family.panel(wrong=[(name, place) for place in range(len(got))])
                panels = {"expected": right.panel(), "yours": yours}
                figure = block_pictures.tables(panels, "Block tables after the fork")
            raise Mismatch(
                problem[0], input=family.story, look=problem[1], figure=figure,
                alt="The block tables of parent and child, expected and yours.",
            )  # fmt: skip
        family.tables[name] = got
    return family


def _fork_problem(
    family: Family, got: Any, before: Sequence[KVCacheBlock], num_free: int
) -> tuple[str, str] | None:
    """What is wrong with a fork, and where to look; None if it is right."""
    parent = family.tables["parent"]
    holders = len(family.tables) + 1
    if not _is_table(got):
        return (f"`fork` returned {describe(got)}; expected the child's table, a list of "
                "KVCacheBlock.", "Return a list with the same blocks.")  # fmt: skip
    if got is parent:
        return ("Parent and child have the *same list*: when one of them grows, or copies a block, "
                "the other's table changes as well.",
                "Same blocks, but a list of its own: `list(block_table)`.")  # fmt: skip
    if parent != before:
        return "`fork` changes the parent's table.", "Only the child's table is new."
    if family.pool.get_num_free_blocks() != num_free:
        return ("`fork` takes blocks from the pool: that is a copy. To share costs no block.",
                "The child's table holds the very same blocks; only their `ref_cnt` "
                "rises.")  # fmt: skip
    if got != before:
        return ("The child's table does not hold the parent's blocks in the parent's order.",
                "`list(block_table)`.")  # fmt: skip
    for block in before:
        if block.ref_cnt != holders:
            danger = (
                "The first of them to finish would free it under the others."
                if block.ref_cnt < holders
                else "It will never become free again."
            )
            return (f"Block {block.block_id} is held by {holders} requests, and its ref_cnt is "
                    f"{block.ref_cnt}. {danger}",
                    "`block_pool.touch(block_table)`: one more holder for *each* block, "
                    "once.")  # fmt: skip
    return None


# --- copy-on-write -------------------------------------------------------------------------------


def check_copy_on_write(function: Callable[..., Any]) -> Figure:
    """Tell all stories; return a picture of the first one's end."""
    figure = _story_two_writers(function)
    _story_nothing_shared(function)
    _story_full_block(function)
    _story_ranges(function)
    _story_beyond_the_table(function)
    _story_many_writers(function)
    _story_shortage(function)
    return figure


def _step(family: Family, function: Callable[..., Any], name: str, text: str, start: int) -> None:
    """`name` is about to write `text` from position `start` on: call, judge, copy, write."""
    end = start + len(text)
    table = family.tables[name]
    before, refs = list(table), {block.block_id: block.ref_cnt for block in family.pool.blocks}
    others = {other: list(t) for other, t in family.tables.items() if other != name}
    num_free = family.pool.get_num_free_blocks()
    family.told.append(f"{name} writes {text!r} at positions {start} to {end - 1}")
    got = call(function, family.pool, table, start, end, BLOCK_SIZE, given=family.story)
    written = range(start // BLOCK_SIZE, min(len(before), -(-end // BLOCK_SIZE)))
    due = [place for place in written if refs[before[place].block_id] > 1]

    def wrong(says: str, look: str, places: Sequence[int] = ()) -> Mismatch:
        marked = [(name, place) for place in places if place < len(table)]
        panels = {"yours, after the call": family.panel(wrong=marked)}
        return Mismatch(
            says, input=family.story, look=look, got=describe(got),
            figure=block_pictures.tables(panels, "Block tables"),
            alt="The block tables after your function was called.",
        )  # fmt: skip

    if got is None:
        raise wrong(
            f"`copy_on_write` returned None, which means that too few blocks are free. "
            f"{len(due)} {'is' if len(due) == 1 else 'are'} needed, {num_free} are free.",
            "Return the list of copies; `[]` if there is nothing to copy.",
        )
    pairs = _pairs(got)
    if pairs is None:
        raise wrong(
            f"`copy_on_write` returned {describe(got)}; expected a list of pairs of block numbers.",
            "`copies.append((old.block_id, new.block_id))`.",
        )
    if any(list(family.tables[other]) != t for other, t in others.items()):
        raise wrong("Another request's table has changed.", "Write into `block_table` only.")
    if len(table) != len(before):
        raise wrong(
            f"The table had {len(before)} blocks, now it has {len(table)}.",
            "A copy takes the old block's *place*: `block_table[place] = new`.",
        )
    replaced = [place for place, old in enumerate(before) if table[place] is not old]
    _judge_places(wrong, family, name, text, start, before, refs, due, replaced, pairs)
    for place in replaced:
        old, new = before[place], table[place]
        if new.ref_cnt != 1:
            raise wrong(
                f"The new block {new.block_id} has one holder, and its ref_cnt is {new.ref_cnt}.",
                "Take it with `block_pool.get_new_blocks(1)`, which sets the count.",
                [place],
            )
        if old.ref_cnt == refs[old.block_id]:
            raise wrong(
                f"{name} has left block {old.block_id}, whose ref_cnt is still {old.ref_cnt}: it "
                "will never become free again. That is a leak.",
                "`block_pool.free_blocks([old])` drops one reference.", [place],
            )  # fmt: skip
    changed = [b for b in family.pool.blocks if b.ref_cnt != _expected_ref(b, refs, before, table)]
    if changed:
        block = changed[0]
        raise wrong(
            f"Block {block.block_id} should have ref_cnt "
            f"{_expected_ref(block, refs, before, table)}, and has {block.ref_cnt}.",
            "Only the block that is left loses a reference, and only one.",
        )
    expected_pairs = [(before[place].block_id, table[place].block_id) for place in due]
    if sorted(pairs) != sorted(expected_pairs):
        turned = sorted(pairs) == sorted((b, a) for a, b in expected_pairs)
        raise wrong(
            "The pairs are turned round: the new, empty block would be copied over the old one."
            if turned
            else "The table is right, but the list of copies is not: the engine would copy the "
            "wrong blocks.",
            f"(from, to): expected `{expected_pairs}`.", due,
        )  # fmt: skip
    for source, target in pairs:
        family.contents[target] = list(family.contents[source])
    for position, letter in enumerate(text, start):
        if position < len(table) * BLOCK_SIZE:
            family.write(name, position, letter)


def _expected_ref(
    block: KVCacheBlock, refs: dict[int, int], before: Sequence[Any], after: Sequence[Any]
) -> int:
    left = sum(old is block and new is not block for old, new in zip(before, after, strict=True))
    came = sum(new is block and old is not block for old, new in zip(before, after, strict=True))
    return refs[block.block_id] - left + came


def _judge_places(
    wrong: Callable[..., Mismatch], family: Family, name: str, text: str, start: int,
    before: Sequence[KVCacheBlock], refs: dict[int, int], due: Sequence[int],
    replaced: Sequence[int], pairs: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    """Which blocks of the table were replaced, and which had to be."""
    missing = [place for place in due if place not in replaced]
    extra = [place for place in replaced if place not in due]
    end = start + len(text)
    if missing and not replaced and pairs:
        raise wrong(
            "You return a copy, but the block table still holds the old block: the new token "
            "goes into the shared block all the same.",
            "`block_table[place] = new`.", missing,
        )  # fmt: skip
    if missing and not replaced:
        block = before[missing[0]]
        victims = [n for n, t in family.tables.items() if n != name and block in t]
        raise wrong(
            f"Copy-on-write is forgotten. Block {block.block_id} is shared, {name} is about to "
            f"write {text!r} into it, and {victims[0]} would read {name}'s tokens as its own.",
            "A block with `ref_cnt > 1` must be replaced by a copy before it is written to.",
            missing,
        )  # fmt: skip
    if missing:
        raise wrong(
            f"Positions {start} to {end - 1} lie in several shared blocks. Not all of them were "
            "replaced.",
            f"Places `start // block_size` to `(end - 1) // block_size`: {list(due)}.", missing,
        )  # fmt: skip
    if not extra:
        return
    place = extra[0]
    if refs[before[place].block_id] == 1:
        raise wrong(
            f"Block {before[place].block_id} has one holder only, and is copied: wasted work. "
            f"{name} may write into it.",
            "Copy only if `ref_cnt > 1`.", extra,
        )  # fmt: skip
    if place == -(-end // BLOCK_SIZE):
        raise wrong(
            f"Off by one at the end: `end` is {end}, so the last position written is {end - 1}. "
            f"The block at place {place} is not touched, and you copy it.",
            "The last place is `(end - 1) // block_size`, not `end // block_size`.", extra,
        )  # fmt: skip
    raise wrong(
        f"Too much is copied: {name} writes positions {start} to {end - 1}, and only *reads* the "
        f"block at place {place}. It can stay shared.",
        "Only places `start // block_size` to `(end - 1) // block_size` are written to.", extra,
    )  # fmt: skip


def _pairs(got: Any) -> list[tuple[int, int]] | None:
    if not isinstance(got, list | tuple):
        return None
    pairs = []
    for pair in got:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return None
        if not all(isinstance(number, int) for number in pair):
            return None
        pairs.append((pair[0], pair[1]))
    return pairs


def _same(family: Family, name: str, text: str) -> None:
    read = family.read(name)[: len(text)]
    assert read == text, f"{name} reads {read!r}"


def _story_two_writers(function: Callable[..., Any]) -> Figure:
    family = Family(8, "abcdef")
    family.fork("child")
    _step(family, function, "child", "Y", 6)
    copied = [family.tables["child"][1].block_id]
    _step(family, function, "parent", "X", 6)
    _same(family, "child", "abcdefY")
    _same(family, "parent", "abcdefX")
    panels = {"yours": family.panel(copied=copied)}
    return block_pictures.tables(panels, "The child wrote Y into a copy, the parent wrote X")


def _story_nothing_shared(function: Callable[..., Any]) -> None:
    family = Family(8, "abcdef")
    _step(family, function, "parent", "gh", 6)


def _story_full_block(function: Callable[..., Any]) -> None:
    """The shared blocks are full: the next token goes into a block that does not exist yet."""
    family = Family(8, "abcdefgh")
    family.fork("child")
    _step(family, function, "child", "I", 8)


def _story_ranges(function: Callable[..., Any]) -> None:
    for start, text in ((2, "CD"), (4, "EFGH"), (2, "CDEFG"), (7, "H")):
        family = Family(12, "abcdefghijkl")
        family.fork("child")
        _step(family, function, "child", text, start)
        _same(family, "parent", "abcdefghijkl")


def _story_beyond_the_table(function: Callable[..., Any]) -> None:
    family = Family(8, "abcdef")
    family.fork("child")
    _step(family, function, "child", "GHIJK", 6)
    _same(family, "parent", "abcdef")


def _story_many_writers(function: Callable[..., Any]) -> None:
    family = Family(12, "abcde")
    names = ["answer 1", "answer 2", "answer 3"]
    for name in names:
        family.fork(name)
    for name, letter in zip([*names, "parent"], "wxyz", strict=True):
        _step(family, function, name, letter, 5)
    for name, letter in zip([*names, "parent"], "wxyz", strict=True):
        _same(family, name, "abcde" + letter)


def _story_shortage(function: Callable[..., Any]) -> None:
    family = Family(3, "abcdef")
    family.fork("child")
    table = family.tables["child"]
    before, refs = list(table), [block.ref_cnt for block in table]
    family.told.append("child writes 'CDEFG' at positions 2 to 6; one block is free, two are due")
    try:
        got = call(function, family.pool, table, 2, 7, BLOCK_SIZE, given=family.story)
    except Mismatch as wrong:
        if not wrong.headline.startswith("Your code raised ValueError"):
            raise
        raise Mismatch(
            "Your code raised ValueError: the pool has too few free blocks. That is no error here "
            "but daily life; the scheduler wants to hear of it.",
            input=family.story, expected="None",
            look="Ask `block_pool.get_num_free_blocks()` first, and return None.",
        ) from None  # fmt: skip
    unchanged = table == before and [block.ref_cnt for block in before] == refs
    if not unchanged or family.pool.get_num_free_blocks() != 1:
        raise Mismatch(
            "There is room for one of two copies. Your function makes the one and cannot make the "
            "other: a partial failure.",
            input=family.story, expected="None, and nothing has changed",
            got=f"{describe(got)}; the table is {_ids(table)}, it was {_ids(before)}; "
            f"{family.pool.get_num_free_blocks()} blocks are free, 1 was",
            look="Count the shared blocks first; take all copies at once with "
            "`get_new_blocks(n)`, or none.",
        )  # fmt: skip
    if got is not None:
        raise Mismatch(
            "Too few blocks are free for all copies. Your function does not say so.",
            input=family.story, expected="None", got=describe(got),
            look="`if len(places) > block_pool.get_num_free_blocks(): return None`.",
        )  # fmt: skip
