"""Requests that write into blocks they share: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit import block_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_04.right_parts import Pool, copy_on_write, copy_places
from utils.checks.lab_04.tables import (
    FIRST,
    Story,
    World,
    act,
    draw_position,
    draw_size,
    name,
    refused,
    state,
)

PLACES = "Places `start // block_size` to `(end - 1) // block_size` are written to, no others."


def draw_story(c: Choices) -> Story:
    """`steps`: ("fork", request), ("write", request, start, end), ("finish", request)."""
    size, large = draw_size(c), c.rarely(20)
    lengths = c.some(lambda: draw_position(c, size, 300 if large else 4), 1, 2)

    def step() -> tuple[Any, ...]:
        kind = c.pick(("write", "fork", "write", "fork", "write", "finish"))
        index = c.integer(0, 9)
        if kind != "write":
            return kind, index
        start = draw_position(c, size, 280 if large else 4)
        longest = (1, 0, 2, size - 1, size, size + 1, 2 * size, 3 * size + 1, 100 * size)
        return kind, index, start, start + c.pick(longest if large else longest[:-1])

    steps = c.some(step, 1, 9)
    spare = c.size(0, 300) if large else c.pick((3, 4, 0, 1, 2))
    return Story(size, c.pick(FIRST), tuple(lengths), spare, tuple(steps))


def play(stage: Stage, function: Any, story: Story) -> None:
    world = story.world()
    for kind, number, *rest in story.steps:
        index = number % len(world.tables)
        if kind == "write":
            _write(stage, function, world, index, *rest)
        elif kind == "finish":
            stage.step(f"{name(index)} is finished")
            world.finish(index)
        elif len(world.tables) < 6:
            stage.step(f"{name(len(world.tables))} is forked from {name(index)}")
            world.fork(index)


def _write(stage: Stage, function: Any, world: World, index: int, start: int, end: int) -> None:
    """Let the function make ready for these positions, then copy, and write."""
    table, before = world.tables[index], state(world)
    old, free, refs = before["tables"][index], before["free"], before["holders"]
    written = {position // world.size for position in range(start, end)}
    due = [i for i, block_id in enumerate(old) if i in written and refs[block_id] > 1]
    where = f"positions {start} to {end - 1}" if start < end else f"nothing (start, end = {start})"
    stage.step(f"{name(index)}, blocks {old}, is about to write {where}; {len(free)} free")
    got = act(stage, function, world.pool, table, start, end, world.size)
    if len(due) > len(free):
        refused(stage, world, before, got)
        return
    if isinstance(got, Raised):
        stage.blame("raises", f"{len(due)} copies", got)
    if got is None:
        stage.blame("none", f"a list of {len(due)} pairs", got)
    stage.expect("form", "pairs", "pairs" if _are_pairs(got) else got)
    stage.expect("length", len(old), len(table), str)
    new_ids = world.ids(table)
    replaced = [place for place, block_id in enumerate(old) if new_ids[place] != block_id]

    def picture(*_: Any) -> Any:
        wrong = [(index, place) for place in set(due) ^ set(replaced)]
        return world.picture("Block tables after the call", wrong)

    if due and not replaced:
        stage.blame("forgotten", f"places {due} replaced", f"none; returned {got}", str, picture)
    stage.expect("places", due, replaced, picture=picture)
    stage.expect("the others", before["tables"][:index], world.all_tables()[:index])
    stage.expect("the others", before["tables"][index + 1 :], world.all_tables()[index + 1 :])
    new = [new_ids[place] for place in due]
    stage.expect("from the pool", [], [i for i in new if i not in free or new.count(i) > 1])
    right_refs = refs | {old[place]: refs[old[place]] - 1 for place in due}
    right_refs |= dict.fromkeys(new, 1)
    after = world.refs()
    wrong_refs = [f"block {i}: {after[i]}, not {r}" for i, r in right_refs.items() if after[i] != r]
    stage.expect("holders", [], wrong_refs, picture=picture)
    stage.expect("free", sorted({*free} - {*new}), sorted(world.queue()))
    pairs = sorted((old[place], new_ids[place]) for place in due)
    stage.expect("pairs", pairs, sorted((a, b) for a, b in got), picture=picture)
    for source, target in pairs:
        world.contents[target] = dict(world.contents[source])
    world.write(index, start, end)


def _are_pairs(got: Any) -> bool:
    return isinstance(got, list) and all(
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(isinstance(number, int) for number in pair)
        for pair in got
    )


def _at(places: Callable[[list[Any], int, int, int], list[int]]) -> Callable[..., Any]:
    """Copies the blocks at `places(table, start, end, block_size)`."""

    def wrong(pool: Pool, table: list[Any], start: int, end: int, size: int) -> Any:
        return copy_places(pool, table, places(table, start, end, size))

    return wrong


def _shared(table: list[Any], first: int, last: int) -> list[int]:
    return [i for i in range(first, min(last + 1, len(table))) if table[i].ref_cnt > 1]


def _keep_the_table(pool: Pool, table: list[Any], start: int, end: int, size: int) -> Any:
    return copy_on_write(pool, list(table), start, end, size)


def _keep_the_reference(pool: Pool, table: list[Any], start: int, end: int, size: int) -> Any:
    before = list(table)
    copies = copy_on_write(pool, table, start, end, size)
    pool.touch([old for old, new in zip(before, table, strict=True) if old is not new])
    return copies


def _turn_round(pool: Pool, table: list[Any], start: int, end: int, size: int) -> Any:
    copies = copy_on_write(pool, table, start, end, size)
    return copies and [(new, old) for old, new in copies]


def _one_by_one(pool: Pool, table: list[Any], start: int, end: int, size: int) -> Any:
    copies = []
    for place in _shared(table, start // size, (end - 1) // size):
        if not pool.get_num_free_blocks():
            return None
        copies += copy_places(pool, table, [place]) or []
    return copies


def _passed(answer: Any) -> Passed:
    world = World(4, 4)
    world.add(6)
    world.fork(0)
    copied = []
    for index in (1, 0):
        for source, target in answer(world.pool, world.tables[index], 6, 7, 4):
            world.contents[target] = dict(world.contents[source])
            copied.append(target)
        world.write(index, 6, 7)
    return Passed(
        "Shared blocks are copied before they are written to, all others are left alone, and "
        "everybody reads their own tokens. In the picture, the parent wrote last: it was the only "
        "holder left, and needed no copy.",
        block_pictures.tables({"yours": world.panel(copied=copied)}, "B wrote g, then A wrote h"),
        "Parent and child share the first block; the second is a copy in the child.",
    )


COPY_ON_WRITE = Contract(
    inputs=draw_story,
    judge=InLockstep(play, copy_on_write),
    passed=_passed,
    clauses={
        "an error": Clause(
            "{says} The pool has too few free blocks: that is no error here but "
            "daily life, and the scheduler wants to hear of it.",
            "Ask `block_pool.get_num_free_blocks()` first, and return None.",
        ),
        "nothing changes": Clause(
            "There is not room for all copies, and afterwards something has "
            "changed: a partial failure.",
            "Count the shared blocks first; take all copies at once with "
            "`get_new_blocks(n)`, or none.",
        ),
        "no room": Clause(
            "Too few blocks are free for all copies. Your function does not say so.",
            "`if len(places) > block_pool.get_num_free_blocks(): return None`.",
        ),
        "none": Clause(
            "`copy_on_write` returned None, which means that too few blocks are free. "
            "There are enough.",
            "Return the list of copies; `[]` if there is nothing to copy.",
        ),
        "form": Clause(
            "`copy_on_write` returned {got}; expected a list of pairs of block numbers.",
            "`copies.append((old.block_id, new.block_id))`.",
        ),
        "length": Clause(
            "The table had {expected} blocks, now it has {got}.",
            "A copy takes the old block's *place*: `block_table[place] = new`.",
        ),
        "forgotten": Clause(
            "A block is shared, and about to be written to: the others would read "
            "these tokens as their own. It must be replaced by a copy.",
            "A block with `ref_cnt > 1` must be replaced before it is written to.",
        ),
        "places": Clause(
            "The wrong blocks of the table are replaced: those at places {got}, "
            "expected {expected}.",
            PLACES + " And of these only the shared ones.",
        ),
        "the others": Clause(
            "Another request's table has changed.", "Write into `block_table` only."
        ),
        "from the pool": Clause(
            "The new blocks do not come from the pool, or come twice.",
            "`block_pool.get_new_blocks(n)`.",
        ),
        "holders": Clause(
            "Blocks have the wrong number of holders afterwards: {got}.",
            "`get_new_blocks` gives the copy its one holder; `free_blocks([old])` "
            "drops one of the old block's.",
        ),
        "free": Clause(
            "More was done to the pool than to take the copies.",
            "As many new blocks as there are copies.",
        ),
        "pairs": Clause(
            "The table is right, but the list of copies is not: the engine would copy "
            "the wrong blocks.",
            "`(old.block_id, new.block_id)` for each block that "
            "was replaced, also if it is overwritten whole.",
        ),
    },
    mistakes=(
        mistake(
            "Copy-on-write is forgotten: the others would read these tokens as their own.",
            "A block with `ref_cnt > 1` must be replaced by a copy before it is written to.",
            lambda *args: [],
        ),
        mistake(
            "Blocks are copied that are only read. They can stay shared.",
            PLACES,
            _at(lambda t, a, b, s: _shared(t, 0, len(t))),
            _at(lambda t, a, b, s: _shared(t, a // s, len(t))),
            _at(lambda t, a, b, s: _shared(t, len(t) - 1, len(t))),
        ),
        mistake(
            "Blocks are copied that have one holder only: wasted work.",
            "Copy only if `ref_cnt > 1`.",
            _at(
                lambda t, a, b, s: [
                    i for i in range(len(t)) if a // s <= i <= (b - 1) // s and a < b
                ]
            ),
        ),
        mistake(
            "Off by one at the end: the last position written is `end - 1`.",
            "The last place is `(end - 1) // block_size`, not `end // block_size`.",
            _at(lambda t, a, b, s: _shared(t, a // s, b // s)),
        ),
        mistake(
            "Nothing is written if `start` equals `end`, and you copy a block.",
            "An empty range falls into no block.",
            _at(lambda t, a, b, s: _shared(t, a // s, -(-b // s) - 1)),
        ),
        mistake(
            "These positions lie in several shared blocks. Not all of them were replaced.",
            PLACES,
            _at(lambda t, a, b, s: _shared(t, a // s, (b - 1) // s)[:1] if a < b else []),
            _at(lambda t, a, b, s: _shared(t, a // s, a // s) if a < b else []),
        ),
        mistake(
            "You return a copy, but the block table still holds the old block: the new token "
            "goes into the shared block all the same.",
            "`block_table[place] = new`.",
            _keep_the_table,
        ),
        mistake(
            "The table has left the old block, whose ref_cnt is still what it was: it will "
            "never become free again. That is a leak.",
            "`block_pool.free_blocks([old])` drops one reference.",
            _keep_the_reference,
        ),
        mistake(
            "The pairs are turned round: the new, empty block would be copied over the old one.",
            "`(from, to)`: the old block first.",
            _turn_round,
        ),
        mistake(
            "There is room for some copies, and your function makes these. A partial failure.",
            "Count the shared blocks first; take all copies at once, or none.",
            _one_by_one,
        ),
    ),
    examples=300,
)
