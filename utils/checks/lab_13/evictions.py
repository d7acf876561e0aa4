"""How many tokens of each prompt are found in a cache that evicts: exercise 3."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.prefix_pictures import prompts as found_blocks
from utils.checks.kit.runner import Passed
from utils.checks.lab_13.hits import found_tokens
from utils.checks.lab_13.prompts import draw_prompts, wrong_counts
from utils.sim.prompt_cache import find_cached_tokens

Rule = Callable[[list[list[int]], int, int], list[int]]


def draw_bounded(c: Choices) -> Given:
    """Prompts in a cache that holds the longest of them, and a little more, or much more."""
    block_size = c.pick((2, 3, 4, 16))
    prompts = [] if c.rarely(30) else draw_prompts(c, block_size, inside=True, longest=100)
    if prompts and len(prompts) < 20:  # some come back
        prompts += c.some(lambda: prompts[c.integer(0, len(prompts) - 1)], 0, 16)
    needed = max((len(prompt) // block_size + 1 for prompt in prompts), default=1)
    more = c.size(0, 2000) if c.rarely(8) else c.integer(0, 3)
    return Given(prompts, block_size, needed + more)


def found_by_manager(prompts: list[list[int]], block_size: int, num_blocks: int) -> list[int]:
    """What the block manager of the course's engine finds."""
    return find_cached_tokens(prompts, block_size, num_blocks)


def _replay(
    prompts: list[list[int]],
    size: int,
    num_blocks: int,
    *,
    tail_first: bool = True,
    move_hits: bool = True,
    held: bool = True,
    partial: str = "front",
    newest: bool = False,
    chained: bool = True,
    reset: bool = False,
) -> list[int]:
    """A queue of blocks with a switch for each known mistake; never the oracle."""
    free = deque[tuple[int, ...] | None]([None] * num_blocks)
    found = []
    for prompt in prompts:
        ends = range(size, len(prompt) + 1, size)
        full = [tuple(prompt[0 if chained else end - size : end]) for end in ends]
        hits: list[tuple[int, ...]] = []
        for prefix in full:
            if prefix not in free:
                break
            hits.append(prefix)
        for prefix in hits if held else ():
            free.remove(prefix)
        for _ in range(len(full) - len(hits) + (partial != "none")):
            free.pop() if newest else free.popleft()
        back = full if held else full[len(hits) :]
        if not move_hits:  # hits go back to the front, as if they had not been used
            free.extendleft(reversed(hits))
            back = full[len(hits) :]
        if reset:
            free = deque([None] * (num_blocks - len(back) - 1))
        free.extendleft([None] * (partial == "front"))
        free.extend([None] * (partial == "before"))
        free.extend(reversed(back) if tail_first else back)
        free.extend([None] * (partial == "after"))
        found.append(len(hits) * size)
    return found


def _with(**switches: Any) -> Rule:
    """`_replay` with a mistake. It may run out of blocks where a right one does not."""

    @functools.wraps(_replay)
    def rule(prompts: list[list[int]], size: int, num_blocks: int) -> list[int]:
        return _replay(prompts, size, num_blocks, **switches)

    return rule


def _wrong(expected: Any, got: Any, given: Given) -> Fault | None:
    return wrong_counts(expected, got, given.args[0], given.args[1])


def _passed(answer: Rule) -> Passed:
    a, b, c = ([n] * 4 for n in (1, 2, 3))
    prompts = [[*a, 5], [*b, 6], a + c + [7], [*a, 8], [*b, 9]]
    want = found_by_manager(prompts, 4, 3)
    return Passed(
        "Right on 300 lists of prompts; the engine's own block manager decides the same. The "
        "picture: 3 blocks of 4 tokens.",
        found_blocks(prompts, 4, want),
        "Prompts in blocks, and which of them were found.",
    )


_BACK = (
    "When a prompt ends, its last block that is not full goes to the front of the queue, and "
    "its full blocks to the back, the last one first."
)

PREDICT_WITH_EVICTION = Contract(
    inputs=draw_bounded,
    judge=Returns(found_by_manager, wrong=_wrong),
    examples=300,
    tell=lambda given: "block_size {1}, num_blocks {2}, prompts {0}".format(*given.args),
    passed=_passed,
    clauses={
        "returns": Clause("Other blocks are evicted than vLLM's rules say. {says}", _BACK),
        "changes": Clause("Your function changes the prompts it was given."),
    },
    mistakes=(
        mistake(
            "Nothing is ever evicted. This cache has no room for everything.",
            "Take the blocks that a prompt needs and does not find from the front of the "
            "queue; what they held is gone.",
            lambda prompts, size, n: found_tokens([(None, p) for p in prompts], size),
        ),
        mistake(
            "The head of a prompt is evicted before its tail. Then nothing of the rest can be "
            "found.",
            _BACK,
            _with(tail_first=False),
        ),
        mistake(
            "A hit does not count as a use. That is first in, first out (FIFO): a prefix that "
            "everybody uses is evicted because it is old.",
            "Take hits out of the queue when the prompt starts. They go to the back when it ends.",
            _with(move_hits=False),
        ),
        mistake(
            "Hits stay in the queue while they are used, so they can be evicted by the very "
            "prompt that found them.",
            "Take all hits out of the queue before you take new blocks.",
            _with(held=False),
        ),
        mistake(
            "The block that is not full goes to the back, so a useful block is evicted in its "
            "place.",
            _BACK,
            _with(partial="before"),
            _with(partial="after"),
        ),
        mistake(
            "The block that was used last is evicted first, so only the prompt just before can "
            "be found.",
            "`popleft` takes the front; the least recently used block is there. "
            "What was not handed out again is still in the queue.",
            _with(newest=True),
            _with(reset=True),
        ),
        mistake(
            "You count blocks; expected tokens.",
            "Multiply by `block_size`.",
            lambda prompts, size, n: [k // size for k in found_by_manager(prompts, size, n)],
        ),
        mistake(
            "The last block of a prompt, which is not full, needs a block, too. You take one "
            "too few, or have one too many in the cache.",
            "`len(prompt) // block_size` full blocks, and one more.",
            _with(partial="none"),
        ),
        mistake(
            "Blocks are compared without what comes before them. Equal tokens behind another "
            "prefix have other keys and values.",
            "Compare beginnings of the prompt: `tuple(prompt[:end])`.",
            _with(chained=False),
        ),
    ),
)
