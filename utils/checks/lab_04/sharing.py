"""Requests that are forked: exercise 4."""

from __future__ import annotations

from typing import Any

from utils.checks.kit import block_pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_04.right_parts import Pool, fork
from utils.checks.lab_04.tables import FIRST, Story, World, act, draw_position, draw_size, name
from utils.engine.core.kv_cache_utils import KVCacheBlock

ALL = "`block_pool.touch(block_table)`: one more holder for *each* block, once."


def draw_story(c: Choices) -> Story:
    """`steps`: ("fork", request), ("grow", request), ("finish", request)."""
    size, large = draw_size(c), c.rarely(20)
    lengths = c.some(lambda: draw_position(c, size, 1500 if large else 4), 1, 3)
    kinds = ("fork", "fork", "fork", "grow", "finish")
    steps = c.some(lambda: (c.pick(kinds), c.integer(0, 9)), 1, 7)
    return Story(size, c.pick(FIRST), tuple(lengths), c.pick((2, 4, 0)), tuple(steps))


def play(stage: Stage, function: Any, story: Story) -> None:
    world = story.world()
    for kind, number in story.steps:
        index = number % len(world.tables)
        if kind == "finish":
            stage.step(f"{name(index)} is finished")
            world.finish(index)
        elif kind == "grow":
            if world.pool.get_num_free_blocks():
                stage.step(f"{name(index)} takes a block")
                tables = world.all_tables()
                world.tables[index] += (new := world.pool.get_new_blocks(1))
                tables[index] += world.ids(new)
                stage.expect("own", tables, world.all_tables())
        else:
            _fork(stage, function, world, index)


def _fork(stage: Stage, function: Any, world: World, parent: int) -> None:
    tables, free, refs = world.all_tables(), world.queue(), world.refs()
    ids = tables[parent]
    stage.step(f"{name(len(tables))} = fork(block_pool, blocks {ids} of {name(parent)})")
    got = act(stage, function, world.pool, world.tables[parent])
    if isinstance(got, Raised):
        stage.blame("raises", "a block table", got)
    if not isinstance(got, list) or not all(isinstance(block, KVCacheBlock) for block in got):
        stage.blame("form", f"a list of blocks {ids}", got)
    same = next((name(i) for i, table in enumerate(world.tables) if got is table), "")
    stage.expect("own", "a list of its own", f"the list of {same}" if same else "a list of its own")
    stage.expect("parent", tables, world.all_tables())
    stage.expect("free", free, world.queue())
    world.tables.append(got)

    def picture(*_: Any) -> Any:
        wrong = [(len(tables), place) for place in range(len(got))]
        return world.picture("Block tables after the fork", wrong)

    stage.expect("blocks", ids, world.ids(got), picture=picture)
    raised = refs | {block_id: refs[block_id] + 1 for block_id in ids}
    after = world.refs()
    few = [f"block {i} has {after[i]}, not {raised[i]}" for i in raised if after[i] < raised[i]]
    many = [f"block {i} has {after[i]}, not {raised[i]}" for i in raised if after[i] > raised[i]]
    stage.expect("too few", [], few, picture=picture)
    stage.expect("too many", [], many, picture=picture)


def _of(table: Any, *touched: Any) -> Any:
    """`touched`: what is touched, each a function of the table."""

    def wrong(pool: Pool, block_table: list[Any]) -> Any:
        for which in touched:
            pool.touch(which(block_table))
        return table(block_table)

    return wrong


def _passed(answer: Any) -> Passed:
    world = World(4, 4)
    world.add(6)
    world.tables.append(answer(world.pool, world.tables[0]))
    return Passed(
        "The child has the parent's blocks in a list of its own, each with one more reference, "
        "and no block was taken.",
        block_pictures.tables({"yours": world.panel()}, "One set of blocks, two tables"),
        "Parent and child have the same two blocks.",
    )


FORK = Contract(
    inputs=draw_story,
    judge=InLockstep(play, fork),
    passed=_passed,
    clauses={
        "form": Clause(
            "`fork` returned {got}; expected the child's table, a list of KVCacheBlock.",
            "Return a list with the same blocks.",
        ),
        "own": Clause(
            "Two requests have the *same list*: when one of them grows, or copies a "
            "block, the other's table changes as well.",
            "Same blocks, but a list of its own: `list(block_table)`.",
        ),
        "parent": Clause(
            "`fork` changes the table of the parent, or of another request.",
            "Only the child's table is new.",
        ),
        "free": Clause(
            "`fork` takes blocks from the pool, or gives some back. To share costs no block.",
            "The child's table holds the very same blocks; only their `ref_cnt` rises.",
        ),
        "blocks": Clause(
            "The child's table does not hold the parent's blocks in the parent's order.",
            "`list(block_table)`.",
        ),
        "too few": Clause(
            "A block has fewer holders than there are: its ref_cnt is too low. The "
            "first request to finish would free it under the others.",
            ALL,
        ),
        "too many": Clause(
            "A block has more holders than there are: its ref_cnt is too high. It "
            "will never become free again.",
            ALL,
        ),
    },
    mistakes=(
        mistake(
            "No holder is counted: the first request to finish would free the blocks under the "
            "others.",
            ALL,
            _of(list),
        ),
        mistake(
            "Only some of the blocks get one more holder.",
            ALL,
            _of(list, lambda t: t[-1:]),
            _of(list, lambda t: t[:1]),
            _of(list, lambda t: t[:-1]),
        ),
        mistake("Each block gets two more holders; the child is one.", ALL, _of(list, list, list)),
        mistake(
            "The child gets new blocks: that is a copy. To share costs no block.",
            "The child's table holds the very same blocks; only their `ref_cnt` rises.",
            lambda pool, table: pool.get_new_blocks(len(table)),
        ),
        mistake(
            "The last block is left out. It is shared, too, full or not.",
            "`list(block_table)`.",
            _of(lambda t: t[:-1], list),
            _of(lambda t: t[:-1], lambda t: t[:-1]),
        ),
    ),
)
