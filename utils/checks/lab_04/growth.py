"""Requests that grow: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_04.right_parts import Pool, allocate_slots
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

NEEDED = "Needed in all: `math.ceil(num_tokens / block_size)`, minus what the table has."
DRAWN = 64  # slots in a picture


def draw_story(c: Choices) -> Story:
    """Steps: ("grow", request, tokens), ("grow to", request, more blocks than are free, tokens in
    the last), ("finish", request), ("fork", request)."""
    large = c.rarely(15)
    num_blocks = c.size(100, 3000) if large else c.pick((6, 9, 12, 1, 2, 3))
    size, requests = draw_size(c), c.integer(1, 3)

    def step() -> tuple[Any, ...]:
        kind = c.pick(("grow", "grow", "grow", "grow to", "finish", "fork"))
        index = c.integer(0, 9)
        if kind == "grow":
            return kind, index, draw_position(c, size, num_blocks)
        if kind == "grow to":
            return kind, index, c.pick((0, 1, -1, 3)), c.pick((size, 1, max(1, size - 1)))
        return kind, index

    steps = c.some(step, 0, 6 if large else 12)
    return Story(size, c.pick(FIRST), (0,) * requests, num_blocks, tuple(steps))


def play(stage: Stage, function: Any, story: Story) -> None:
    world = story.world()
    seen: dict[int, list[tuple[int, int]]] = {}
    for kind, number, *rest in story.steps:
        index = number % len(world.tables)
        if kind == "finish":
            stage.step(f"{name(index)} is finished")
            world.finish(index)
        elif kind == "fork":
            if len(world.tables) < 6:
                stage.step(f"{name(index)} is forked")
                world.fork(index)
        else:
            num_tokens = rest[0]
            if kind == "grow to":
                num_blocks = len(world.tables[index]) + world.pool.get_num_free_blocks() + rest[0]
                num_tokens = max(0, (num_blocks - 1) * story.size + rest[1])
            _grow(stage, function, world, index, num_tokens, seen.setdefault(index, []))


def _grow(
    stage: Stage,
    function: Any,
    world: World,
    index: int,
    num_tokens: int,
    seen: list[tuple[int, int]],
) -> None:
    """Place each token to see how many blocks they need, then let the function do it."""
    table, size, before = world.tables[index], world.size, state(world)
    old, free = before["tables"][index], before["free"]
    needed = len({position // size for position in range(num_tokens)})
    missing = max(0, needed - len(old))
    stage.step(
        f"{name(index)} has {block_pictures.count(len(old), 'block')} and needs room for "
        f"{block_pictures.count(num_tokens, 'token')} in all; "
        f"{block_pictures.count(len(free), 'block')} free"
    )
    got = act(stage, function, world.pool, table, num_tokens, size)
    seen.append((num_tokens, len(table)))
    if missing > len(free):
        refused(stage, world, before, got)
        return
    if isinstance(got, Raised):
        stage.blame("raises", f"{missing} new blocks", got)
    stage.expect("kept", old, world.ids(table[: len(old)]))
    if got is None and len(table) == len(old):
        stage.blame("none", f"a list of {missing}", got)

    def picture(*_: Any) -> tuple[Figure | None, str]:
        widest = max(max(n, blocks * size) for n, blocks in seen[-10:])
        if widest > DRAWN:
            return None, ""
        return block_pictures.growth(seen[-10:], size), "The slots of the request after each step."

    stage.expect("number", len(old) + missing, len(table), str, picture)
    new = world.ids(table[len(old) :])
    stage.expect("from the pool", [], [i for i in new if i not in free or new.count(i) > 1])
    stage.expect(
        "the others",
        [t for i, t in enumerate(before["tables"]) if i != index],
        [t for i, t in enumerate(world.all_tables()) if i != index],
    )
    stage.expect("free", sorted({*free} - {*new}), sorted(world.queue()))
    stage.expect("holders", before["holders"] | dict.fromkeys(new, 1), world.refs())
    ids = sorted(world.ids(got), key=str) if isinstance(got, list) else got
    stage.expect("returned", sorted(new, key=str), ids)
    got.clear()  # it is the caller's
    stage.expect("own", old + new, world.ids(table))


def by_number(count: Callable[[int, int, int], int]) -> Callable[..., Any]:
    """`count(num_tokens, blocks in the table, block_size)` new blocks."""

    def allocate(pool: Pool, table: list[Any], num_tokens: int, size: int) -> Any:
        missing = max(0, count(num_tokens, len(table), size))
        if missing > pool.get_num_free_blocks():
            return None
        table += (new := pool.get_new_blocks(missing))
        return new

    return allocate


def _take_what_there_is(pool: Pool, table: list[Any], num_tokens: int, size: int) -> Any:
    new = []
    while (len(table)) * size < num_tokens:
        if not pool.get_num_free_blocks():
            return None
        new += pool.get_new_blocks(1)
        table.append(new[-1])
    return new


def _keep_out_of_the_table(pool: Pool, table: list[Any], num_tokens: int, size: int) -> Any:
    return allocate_slots(pool, list(table), num_tokens, size)


def _return_the_table(pool: Pool, table: list[Any], num_tokens: int, size: int) -> Any:
    new = allocate_slots(pool, table, num_tokens, size)
    return None if new is None else table


def _passed(answer: Any) -> Passed:
    pool, table, seen = Pool(8), list[Any](), list[tuple[int, int]]()
    for num_tokens in range(1, 10):
        answer(pool, table, num_tokens, 4)
        seen.append((num_tokens, len(table)))
    return Passed(
        "A block is taken when a token needs it, and not before: at no time does a request hold "
        "more than one block that is not full. Refused requests change nothing, in 200 random "
        "stories of requests that grow in turn.",
        block_pictures.growth(seen, 4),
        "The slots of a request that grows token by token.",
    )


ALLOCATE_SLOTS = Contract(
    inputs=draw_story,
    judge=InLockstep(play, allocate_slots),
    passed=_passed,
    clauses={
        "an error": Clause(
            "{says} The pool has too few free blocks: that is no error here but "
            "daily life, and the scheduler wants to hear of it.",
            "`if n > block_pool.get_num_free_blocks(): return None`.",
        ),
        "nothing changes": Clause(
            "Too few blocks are free, and afterwards something has changed. "
            "A partial failure leaks: the request cannot run, and holds on "
            "to blocks that others need.",
            "All or nothing: ask `block_pool.get_num_free_blocks()` before you take any.",
        ),
        "no room": Clause(
            "Too few blocks are free, and your function does not say so.", "`return None`."
        ),
        "kept": Clause(
            "The blocks that the table had already were replaced, or are gone. The "
            "tokens in them are lost.",
            "A table only grows: `block_table.extend(new_blocks)`. If it has enough "
            "blocks, return `[]`.",
        ),
        "none": Clause(
            "`allocate_slots` returned None, which means that there is no room. There is.",
            "Return the new blocks; `[]` if none is needed. A request may take "
            "the last free block.",
        ),
        "number": Clause("The table has {got} blocks; the tokens need {expected}.", NEEDED),
        "from the pool": Clause(
            "The new blocks in the table do not come from the pool.",
            "`block_pool.get_new_blocks(n)`.",
        ),
        "the others": Clause("Another request's table has changed.", "Write into `block_table`."),
        "free": Clause(
            "More was done to the pool than to take the missing blocks.",
            "`block_pool.get_new_blocks(n)`, once.",
        ),
        "holders": Clause(
            "Blocks have the wrong number of holders afterwards.",
            "`get_new_blocks` counts the first holder; nothing else to count.",
        ),
        "returned": Clause(
            "The table is right, but the *new* blocks are not what was returned.",
            "Return what `get_new_blocks` gave you; `[]` if nothing was needed.",
        ),
        "own": Clause(
            "What you return is the block table itself: if the caller changes the one, "
            "the other changes.",
            "Return a list of its own.",
        ),
    },
    mistakes=(
        mistake(
            "The last, partly filled block is missing.",
            "Round up. " + NEEDED,
            by_number(lambda n, have, size: n // size - have),
        ),
        mistake(
            "A block is taken one token too early: these tokens fill the blocks exactly.",
            "Round up with `math.ceil`, not `num_tokens // block_size + 1`.",
            by_number(lambda n, have, size: n // size + 1 - have),
        ),
        mistake(
            "The blocks that the table has already are not counted: all of them are allocated "
            "again.",
            NEEDED,
            by_number(lambda n, have, size: -(-n // size)),
        ),
        mistake(
            "One block per token. A block holds `block_size` tokens.",
            NEEDED,
            by_number(lambda n, have, size: n - have),
            by_number(lambda n, have, size: n),
        ),
        mistake(
            "At most one block is taken. A prompt may need many at once.",
            NEEDED,
            by_number(lambda n, have, size: int(n > have * size)),
        ),
        mistake(
            "Blocks are reserved for tokens that may never come. That is the waste of notebook 03.",
            "Take what the tokens need now, and no more. " + NEEDED,
            by_number(lambda n, have, size: -(-n // size) + 1 - have),
            by_number(lambda n, have, size: -(-n // size) + 2 - have),
            by_number(
                lambda n, have, size: max(-(-n // size), 2 * have) - have if n > have * size else 0
            ),
        ),
        mistake(
            "Blocks were taken from the pool that are not in the table: they leak.",
            "`block_table.extend(new_blocks)`; `block_table = block_table + ...` makes another "
            "list.",
            _keep_out_of_the_table,
        ),
        mistake(
            "You return the whole table; expected the *new* blocks only.",
            "Return what `get_new_blocks` gave you; `[]` if nothing was needed.",
            _return_the_table,
        ),
        mistake(
            "Too few blocks are free, and your function takes some all the same. A partial "
            "failure leaks.",
            "All or nothing: ask `block_pool.get_num_free_blocks()` before you take any.",
            _take_what_there_is,
        ),
    ),
    examples=200,
)
