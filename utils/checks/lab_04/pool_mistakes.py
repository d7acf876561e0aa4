"""What learners' pools get wrong, and the words for it: exercise 2."""

from __future__ import annotations

from typing import Any

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_04.pool_play import draw_story, play, shared_story
from utils.checks.lab_04.right_parts import Pool

OWN = "Create the blocks and the queue in `__init__`, as `self....`, not in the class body."
QUEUE = (
    "The free blocks form a queue: `get_new_blocks` takes from its front, `free_blocks` adds to "
    "its back."
)
ONE = (
    "`free_blocks` drops *one* reference of each block. A block joins the queue when its `ref_cnt` "
    "comes down to 0, and only then."
)
BEFORE = (
    "Take the blocks of the list one after the other, and raise at the one that is free; or look "
    "at all of them before you begin."
)
ALL_OR_NOTHING = "All or nothing: check first, take afterwards."

CLAUSES = {
    "new": Clause("`BlockPool(num_gpu_blocks)` gives no pool."),
    "new: free": Clause("A new pool must have all its blocks free.", OWN),
    "number": Clause("`get_num_free_blocks()` must return a number.", "Count the queue."),
    "free": Clause(
        "A block is freed twice, and the pool does not notice.",
        "A block with `ref_cnt` 0 is free already: raise a ValueError, and leave the queue alone.",
    ),
    "get": Clause(
        "Fewer blocks are free than were asked for, and the pool does not complain.",
        "`if num_blocks > self.get_num_free_blocks(): raise ValueError(...)`, before any "
        "block is taken.",
    ),
    "list": Clause(
        "`get_new_blocks` returned {got}; expected a list of KVCacheBlock.",
        "Return the blocks themselves, not their numbers.",
    ),
    "count": Clause(
        "`get_new_blocks` returned {got} blocks; expected {expected}.",
        "Take exactly as many as were asked for. (A slice like `queue[-n:]` is the "
        "whole queue for n = 0.)",
    ),
    "exists": Clause(
        "Blocks {got} do not exist: n blocks are numbered 0 to n - 1.",
        "`range(num_gpu_blocks)`: a number is a place in memory.",
    ),
    "taken": Clause(
        "Block {got} is handed out although somebody still holds it: two requests "
        "would write over each other.",
        "A block is free only when its `ref_cnt` has come down to 0, and it must be in "
        "the queue at most once.",
    ),
    "order": Clause("Blocks are not reused in the order in which they became free.", QUEUE),
    "get: ref_cnt": Clause(
        "A block that is handed out has one holder; all others keep theirs.",
        "`block.ref_cnt = 1` for each block that leaves the queue.",
    ),
    "get: free": Clause(
        "The number of free blocks is wrong after `get_new_blocks`.", "Count what is in the queue."
    ),
    "refused get: ref_cnt": Clause(
        "A refused `get_new_blocks` must change nothing.", ALL_OR_NOTHING
    ),
    "refused get: free": Clause(
        "The request was refused, but some blocks are gone: a partial failure leaks.",
        ALL_OR_NOTHING,
    ),
    "touch": Clause(
        "A free block is touched, and the pool does not complain. Nobody holds it, and "
        "the next request may get it as well.",
        "Raise a ValueError if `ref_cnt` is 0.",
    ),
    "touch: ref_cnt": Clause(
        "`touch` does not raise the reference count by one for each block.",
        "One more holder: `block.ref_cnt += 1`.",
    ),
    "touch: free": Clause("`touch` changes the number of free blocks.", "It only counts holders."),
    "free: ref_cnt": Clause("`free_blocks` must drop one holder of each block in the list.", ONE),
    "free: free": Clause("The number of free blocks is wrong after `free_blocks`.", ONE),
    "prefix": Clause(
        "Blocks that may be freed or touched are refused after an error. {says}", BEFORE
    ),
    **{
        f"refused {kind}: {what}": Clause(
            f"`{method}` was right to refuse this list. But afterwards the free block in it, and "
            "those behind it, must be as they were (not in the queue twice); those before it must "
            "be done with, or as they were, too.",
            BEFORE,
        )
        for kind, method in (("touch", "touch"), ("free", "free_blocks"))
        for what in ("ref_cnt", "free")
    },
    "other: ref_cnt": Clause("What is done to one pool changes another's blocks.", OWN),
    "other: free": Clause("What is done to one pool changes the other's free blocks.", OWN),
}


def but(**changes: Any) -> type[Pool]:
    """The right pool with other methods."""
    return type("Changed", (Pool,), {"__module__": __name__, **changes})


def _free_after_a_look(self: Any, blocks: Any) -> None:
    if any(block.ref_cnt < 1 for block in blocks):
        raise ValueError
    for block in blocks:
        block.ref_cnt -= 1
    self.queue += [block for block in blocks if block.ref_cnt <= 0]
    for block in blocks:
        block.ref_cnt = max(0, block.ref_cnt)


def _take_one_by_one(self: Any, number: int) -> Any:
    taken = []
    for _ in range(number):
        taken += Pool.get_new_blocks(self, 1)
    return taken


def _sort(self: Any, blocks: Any) -> None:
    Pool.free_blocks(self, blocks)
    self.queue.sort(key=lambda block: block.block_id)


def _sort_each_time(self: Any, block: Any) -> None:
    Pool.drop(self, block)
    self.queue.sort(key=lambda block: block.block_id)


def _queue_anyway(self: Any, block: Any) -> None:
    block.ref_cnt -= 1
    self.queue.append(block)


def _forget_holders(self: Any, block: Any) -> None:
    block.ref_cnt = 0
    self.queue.append(block)


def _to_the_front(self: Any, block: Any) -> None:
    block.ref_cnt -= 1
    if not block.ref_cnt:
        self.queue.insert(0, block)


MISTAKES = (
    mistake(
        "A block that nobody holds any more is not free again: it leaks.",
        ONE,
        but(drop=lambda self, block: setattr(block, "ref_cnt", block.ref_cnt - 1)),
    ),
    mistake(
        "A block that somebody still holds is treated as free.",
        ONE,
        but(drop=_queue_anyway),
        but(drop=_forget_holders),
    ),
    mistake(
        "A block is freed twice in a single call, and the pool does not notice.",
        "Look at `ref_cnt` for one block after the other, as it is then: the first of the two "
        "has already dropped the last reference.",
        but(free_blocks=_free_after_a_look),
    ),
    mistake(
        "The block that was freed last is reused first. Is your queue a stack?",
        QUEUE,
        but(drop=_to_the_front),
    ),
    mistake(
        "The blocks of one `free_blocks` are queued in the wrong order: the first in the list "
        "is the first to be reused.",
        QUEUE,
        but(free_blocks=lambda self, blocks: Pool.free_blocks(self, blocks[::-1])),
    ),
    mistake(
        "Freed blocks are not reused in the order in which they were freed: your queue is sorted.",
        QUEUE,
        but(free_blocks=_sort),
        but(drop=_sort_each_time),
    ),
    mistake(
        "The request was refused, but the blocks that were there are gone: a partial failure "
        "leaks.",
        ALL_OR_NOTHING,
        but(get_new_blocks=_take_one_by_one),
    ),
)

BLOCK_POOL = Contract(
    inputs=draw_story,
    judge=InLockstep(play, Pool),
    passed=lambda answer: Passed(
        "Right in 250 random stories of one and two pools: blocks are handed out, shared, freed "
        "and reused in order, and no failure leaves a trace. The picture: a block is free again "
        "when its last holder lets go.",
        shared_story(answer),
        "The reference count of each block, step by step.",
    ),
    clauses=CLAUSES,
    mistakes=MISTAKES,
    examples=250,
)
