"""Small stories about a pool of blocks, each told to the learner's class: the check of `BlockPool`.

Beside the learner's pool runs a model of it: a plain queue of block numbers. After each step both
must agree in everything that can be seen from outside.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import FREE
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.core.kv_cache_utils import KVCacheBlock

OWN = "Create the blocks and the queue in `__init__`, as `self....`, not in the class body."
QUEUE = (
    "The free blocks form a queue: `get_new_blocks` takes from its front, `free_blocks` adds to "
    "its back."
)


class Story:
    """A learner's pool and its model, moved in step."""

    def __init__(self, pool_class: Callable[..., Any], num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.steps: list[str] = []
        # After each step: what happened, the reference counts expected, and those found.
        self.seen: list[tuple[str, dict[int, int], dict[int, int | str]]] = []
        self.objects: dict[int, Any] = {}
        self.refs: Counter[int] = Counter()
        # Blocks never handed out may come in any order; those freed come in the order of freeing.
        self.fresh = set(range(num_blocks))
        self.freed: deque[int] = deque()
        self.steps.append(f"BlockPool({num_blocks})")
        self.pool = call(pool_class, num_blocks, given=self.told)
        self.look("A new pool must have all its blocks free.", OWN)

    @property
    def told(self) -> str:
        return "; ".join(["...", *self.steps[-6:]] if len(self.steps) > 6 else self.steps)

    def wrong(self, says: str, look: str = "", expected: str = "", got: str = "") -> Mismatch:
        figure = self.picture() if self.seen else None
        return Mismatch(
            says, input=self.told, expected=expected, got=got, look=look, figure=figure,
            alt="The reference count of each block after each step, expected and yours.",
        )  # fmt: skip

    def picture(self) -> Figure:
        steps, expected, yours = zip(*self.seen[-8:], strict=True)
        return block_pictures.ref_counts(steps, expected, yours, self.num_blocks)

    def get(self, count: int) -> list[Any]:
        """Take blocks, and check which they are."""
        self.steps.append(f"get_new_blocks({count})")
        got = call(self.pool.get_new_blocks, count, given=self.told)
        if not isinstance(got, list | tuple) or any(not hasattr(b, "block_id") for b in got):
            raise self.wrong(
                f"`get_new_blocks({count})` returned {describe(got)}; expected a list of "
                "KVCacheBlock.",
                "Return the blocks themselves, not their numbers.",
            )
        if len(got) != count:
            raise self.wrong(
                f"`get_new_blocks({count})` returned {len(got)} blocks.",
                "Take exactly as many as were asked for. (A slice like `queue[-n:]` is the whole "
                "queue for n = 0.)",
            )
        ids = [block.block_id for block in got]
        for block, block_id in zip(got, ids, strict=True):
            self._take(block, block_id, ids)
        self.look("", "")
        return list(got)

    def _wrong_block(self, block_id: int, says: str, look: str, **words: str) -> Mismatch:
        """A block that must not be handed out now; it is marked in the picture."""
        _, want, have = self.seen[-1]
        self.seen.append((self.steps[-1], want, {**have, block_id: "again"}))
        return self.wrong(says, look, **words)

    def _take(self, block: Any, block_id: int, ids: list[int]) -> None:
        if block_id not in range(self.num_blocks):
            raise self.wrong(
                f"Block {block_id} does not exist: {self.num_blocks} blocks are numbered 0 to "
                f"{self.num_blocks - 1}.",
                "`range(num_gpu_blocks)`: a number is a place in memory.",
            )
        if ids.count(block_id) > 1 or self.refs[block_id]:
            raise self._wrong_block(
                block_id,
                f"Block {block_id} is handed out although somebody still holds it: two requests "
                "would write over each other.",
                "A block is free only when its `ref_cnt` has come down to 0, and it must be in "
                "the queue at most once.",
                got=f"blocks `{ids}`",
            )  # fmt: skip
        if self.fresh and block_id not in self.fresh:
            raise self._wrong_block(
                block_id,
                f"Block {block_id} was freed just now and is handed out again, although others "
                "have been free for longer. Is your queue a stack, or is it sorted?",
                QUEUE, got=f"blocks `{ids}`",
            )  # fmt: skip
        if block_id in self.fresh:
            self.fresh.remove(block_id)
        else:
            if block_id != self.freed[0]:
                raise self._wrong_block(
                    block_id,
                    "Freed blocks are not reused in the order in which they were freed.",
                    QUEUE + " The first block of the argument is the first to be reused.",
                    expected=f"block {self.freed[0]} next", got=f"block {block_id}",
                )  # fmt: skip
            self.freed.popleft()
        self.refs[block_id] = 1
        self.objects[block_id] = block

    def touch(self, blocks: Sequence[Any]) -> None:
        self.steps.append(f"touch({_ids(blocks)})")
        call(self.pool.touch, list(blocks), given=self.told)
        self.refs.update(block.block_id for block in blocks)
        self.look(
            "`touch` does not raise the reference count.",
            "One more holder: `block.ref_cnt += 1`.",
        )

    def free(self, blocks: Sequence[Any]) -> None:
        self.steps.append(f"free_blocks({_ids(blocks)})")
        call(self.pool.free_blocks, list(blocks), given=self.told)
        for block in blocks:
            self.refs[block.block_id] -= 1
            if self.refs[block.block_id] == 0:
                self.freed.append(block.block_id)
        shared = any(self.refs[block.block_id] for block in blocks)
        self.look(
            "A block that somebody still holds is treated as free."
            if shared
            else "A block that nobody holds any more is not free again: it leaks.",
            "`free_blocks` drops *one* reference of each block. A block joins the queue when its "
            "`ref_cnt` comes down to 0, and only then.",
        )

    def refused(self, words: str, action: Callable[[], Any], says: str, look: str) -> None:
        """The next call must raise a ValueError."""
        self.steps.append(words)
        try:
            got = call(action, given=self.told)
        except Mismatch as wrong:
            if wrong.headline.startswith("Your code raised ValueError"):
                return
            raise Mismatch(
                f"{wrong.headline} Expected a ValueError that says what is wrong.",
                input=self.told, look=look,
            ) from None  # fmt: skip
        raise self.wrong(says, look, expected="ValueError", got=describe(got))

    def look(self, says: str, look: str) -> None:
        """Compare all that can be seen: reference counts, and the number of free blocks."""
        want = {i: self.refs[i] for i in range(self.num_blocks)}
        have = {i: getattr(b, "ref_cnt", 0) for i, b in self.objects.items()}
        num_free = len(self.fresh) + len(self.freed)
        got = call(self.pool.get_num_free_blocks, given=self.told)
        found: dict[int, int | str] = {i: have.get(i, 0) for i in range(self.num_blocks)}
        self.seen.append((self.steps[-1], {**want, FREE: num_free}, {**found, FREE: got}))
        for block_id, count in have.items():
            if count != self.refs[block_id]:
                last = self.steps[-1]
                if last.startswith("get_new_blocks"):
                    says = "A block that is handed out has one holder."
                    look = "`block.ref_cnt = 1` for each block that leaves the queue."
                raise self.wrong(
                    says, look, expected=f"block {block_id} with ref_cnt {self.refs[block_id]}",
                    got=f"ref_cnt {count}",
                )  # fmt: skip
        if got != num_free:
            raise self.wrong(
                says or "The number of free blocks is wrong.",
                look or "Count what is in the queue.",
                expected=f"{num_free} free blocks", got=describe(got),
            )  # fmt: skip

    def drain(self) -> None:
        """Hand out everything that is free."""
        self.get(len(self.fresh) + len(self.freed))


def _ids(blocks: Sequence[Any]) -> str:
    return "[" + ", ".join(str(block.block_id) for block in blocks) + "]"


def _story_get(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    story.get(1)
    story.get(0)
    story.get(3)


def _story_shortage(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    story.get(1)
    story.refused(
        "get_new_blocks(3)", lambda: story.pool.get_new_blocks(3),
        "Two blocks are free, three are asked for, and the pool does not complain.",
        "`if num_blocks > self.get_num_free_blocks(): raise ValueError(...)`, before any block "
        "is taken.",
    )  # fmt: skip
    story.look(
        "The request was refused, but some blocks are gone: a partial failure leaks.",
        "All or nothing: check first, take afterwards.",
    )
    story.drain()


def _story_reuse(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    a, b, c, d = story.get(4)
    story.free([c, a])
    story.free([d])
    story.get(2)
    story.get(1)
    story.free([b])
    story.drain()


def _story_fresh_first(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 4)
    a, b = story.get(2)
    story.free([a, b])
    story.drain()


def shared_story(pool_class: Callable[..., Any]) -> Story:
    """Two holders, then three, then none: also the picture of a right answer."""
    story = Story(pool_class, 4)
    a, b = story.get(2)
    story.touch([a, b])
    story.touch([a])
    story.free([b, a])
    story.free([b])
    story.free([a])
    story.free([a])
    story.drain()
    return story


def _story_double_free(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    a, _ = story.get(2)
    story.free([a])
    story.refused(
        f"free_blocks({_ids([a])})", lambda: story.pool.free_blocks([a]),
        f"Block {a.block_id} is freed twice, and the pool does not notice.",
        "A block with `ref_cnt` 0 is free already: raise a ValueError, and leave the queue alone.",
    )  # fmt: skip
    _no_block_twice(story, "A block that was freed twice")
    story = Story(pool_class, 3)
    (a,) = story.get(1)
    story.refused(
        f"free_blocks({_ids([a, a])})", lambda: story.pool.free_blocks([a, a]),
        f"Block {a.block_id} is freed twice in a single call, and the pool does not notice.",
        "Look at `ref_cnt` for one block after the other, as it is then: the first of the two "
        "has already dropped the last reference.",
    )  # fmt: skip
    _no_block_twice(story, "A block that was freed twice in one call")


def _no_block_twice(story: Story, what: str) -> None:
    """After a refused call: however many blocks the pool calls free, each comes out once."""
    taken: list[int] = []
    count = call(story.pool.get_num_free_blocks, given=story.told)
    for _ in range(min(count, 2 * story.num_blocks)):
        taken += [b.block_id for b in call(story.pool.get_new_blocks, 1, given=story.told)]
    if len(set(taken)) < len(taken):
        story.steps.append(f"get_new_blocks(1), {len(taken)} times")
        raise story.wrong(
            f"{what} is in the queue twice: two requests get the same block.",
            "Check `ref_cnt` before the block joins the queue.", got=f"blocks `{taken}`",
        )  # fmt: skip


def _story_touch_free(pool_class: Callable[..., Any]) -> None:
    story = Story(pool_class, 3)
    (a,) = story.get(1)
    story.free([a])
    story.steps.append(f"touch({_ids([a])})")
    try:
        call(story.pool.touch, [a], given=story.told)
    except Mismatch as wrong:
        if wrong.headline.startswith("Your code raised ValueError"):
            return
        raise
    # To take it out of the queue would be right, too: that is what prefix caching does.
    count = call(story.pool.get_num_free_blocks, given=story.told)
    taken = [b.block_id for b in call(story.pool.get_new_blocks, count, given=story.told)]
    if a.block_id in taken:
        raise story.wrong(
            f"Block {a.block_id} is free, is touched, and stays in the queue: the next request "
            "gets it as well.",
            "A free block has no contents that anybody could share. Raise a ValueError if "
            "`ref_cnt` is 0.",
            expected="ValueError", got=f"`get_new_blocks({count})` hands out blocks {taken}",
        )  # fmt: skip


def _story_two_pools(pool_class: Callable[..., Any]) -> None:
    first = Story(pool_class, 3)
    first.get(1)
    try:
        Story(pool_class, 3).drain()
    except Mismatch:
        raise Mismatch(
            "Two pools share their blocks.", look=OWN,
            input="two pools of 3; the first hands out a block, the second all of its own",
        ) from None  # fmt: skip


def _story_random(pool_class: Callable[..., Any]) -> None:
    """300 steps at random: whatever a scheduler may do."""
    dice = random.Random(0)
    story = Story(pool_class, 10)
    tables: list[list[KVCacheBlock]] = []
    for _ in range(300):
        num_free = len(story.fresh) + len(story.freed)
        action = dice.choice(("get", "get", "fork", "free", "free"))
        if action == "get" and num_free:
            tables.append(story.get(dice.randint(1, min(4, num_free))))
        elif action == "fork" and tables:
            table = dice.choice(tables)
            story.touch(table)
            tables.append(list(table))
        elif action == "free" and tables:
            story.free(tables.pop(dice.randrange(len(tables)))[::-1])
    while tables:
        story.free(tables.pop()[::-1])


STORIES: tuple[Callable[[Callable[..., Any]], Any], ...] = (
    _story_get,
    _story_shortage,
    _story_two_pools,
    _story_fresh_first,
    shared_story,
    _story_reuse,
    _story_double_free,
    _story_touch_free,
    _story_random,
)
