"""What lab 13 says of predicted hits in a cache that evicts: exercise 3."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from utils.checks.kit.prefix_pictures import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_13.hits import ints
from utils.sim.prompt_cache import find_cached_tokens


class Bounded(NamedTuple):
    """Prompts that are sent one after another, to a cache of `num_blocks` blocks."""

    block_size: int
    num_blocks: int
    prompts: list[list[int]]


def replay(
    case: Bounded, *, tail_first: bool = True, move_hits: bool = True, pin: bool = True,
    partial: str = "front", evict: bool = True, reset: bool = False, newest: bool = False,
    alone: bool = False,
) -> list[int]:  # fmt: skip
    """A queue of blocks with one switch per known mistake. Serves to recognise, never as oracle."""
    size, free = case.block_size, deque[tuple[int, ...] | None]([None] * case.num_blocks)
    found = []
    for prompt in case.prompts:
        full = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        if alone:
            full = [block[-size:] for block in full]
        hits: list[tuple[int, ...]] = []
        for prefix in full:
            if prefix not in free:
                break
            hits.append(prefix)
        needed = -(-len(prompt) // size) - len(hits)
        if partial == "none" and len(prompt) % size:
            needed -= 1
        if pin:
            for prefix in hits:
                free.remove(prefix)
        if evict:
            for _ in range(needed):
                free.pop() if newest else free.popleft()
        back = full if pin else full[len(hits) :]
        if not move_hits:  # hits go back to the front, as if they had not been used
            free.extendleft(reversed(hits))
            back = full[len(hits) :]
        if reset:
            free.clear()
            free.extend([None] * case.num_blocks)
        if len(prompt) % size:
            if partial == "front":
                free.appendleft(None)
            elif partial == "back":
                free.append(None)
        free.extend(reversed(back) if tail_first else back)
        if partial == "middle":
            free.append(None)
        found.append(len(hits) * size)
    return found


_BACK = "When a prompt ends, its last block that is not full goes to the front of the queue, and " \
        "its full blocks to the back, the last one first."  # fmt: skip
_BOUNDED_BUGS: list[tuple[Callable[[Bounded], list[int]], str, str]] = [
    (lambda c: find_cached_tokens(c.prompts, c.block_size),
     "Nothing is ever evicted. This cache has no room for everything.",
     "Take the blocks that a prompt needs and does not find from the front of the queue; what they "
     "held is gone."),
    (lambda c: replay(c, tail_first=False),
     "The head of a prompt is evicted before its tail. Then nothing of the rest can be found.",
     _BACK),
    (lambda c: replay(c, move_hits=False),
     "A hit does not count as a use. That is first in, first out (FIFO): a prefix that everybody "
     "uses is evicted because it is old.",
     "Take hits out of the queue when the prompt starts. They go to the back when it ends."),
    (lambda c: replay(c, pin=False),
     "Hits stay in the queue while they are used, so they can be evicted by the very prompt that "
     "found them.", "Take all hits out of the queue before you take new blocks."),
    (lambda c: replay(c, partial="back"),
     "The block that is not full goes to the back, so a useful block is evicted in its place.",
     _BACK),
    (lambda c: replay(c, partial="middle"),
     "The block that is not full goes to the back, so a useful block is evicted in its place.",
     _BACK),
    (lambda c: replay(c, newest=True),
     "The block that was used last is evicted first.", "`popleft` takes the front; the least "
     "recently used block is there."),
    (lambda c: replay(c, reset=True),
     "Only the prompt just before can be found. Blocks that were not handed out again are still "
     "there.", _BACK),
    (lambda c: [n // c.block_size for n in find_cached_tokens(c.prompts, c.block_size,
                                                              c.num_blocks)],
     "You count blocks; expected tokens.", "Multiply by `block_size`."),
    (lambda c: replay(c, partial="none"),
     "The last block of a prompt, which is not full, needs a block, too. You take one too few, or "
     "have one too many in the cache.", "`len(prompt) // block_size` full blocks, and one more."),
    (lambda c: replay(c, alone=True),
     "Blocks are compared without what comes before them. Equal tokens behind another prefix have "
     "other keys and values.", "Compare beginnings of the prompt: `tuple(prompt[:end])`."),
    (lambda c: [0] * len(c.prompts), "Nothing is ever found.",
     "Look for the prompt's beginnings among the blocks in the queue."),
]  # fmt: skip


def judge_predict_with_eviction(function: Callable[..., list[int]]) -> Passed:
    """Check `predict_with_eviction(prompts, block_size, num_blocks)` against the block manager."""
    a, b, c, d = ([n] * 4 for n in (1, 2, 3, 4))
    cases = [
        Bounded(4, 4, [[*a, 5], [*a, 6]]),
        Bounded(4, 2, [[*a, 5], [*b, 5], [*a, 5]]),
        Bounded(4, 6, [a + b + [5], [*b, 5]]),
        Bounded(4, 3, [a + b + [5], [*c, 5], a + b + [6]]),
        Bounded(4, 4, [[*a, 5], [*b, 5], [*a, 6], [*c, 5], [*d, 5], [*a, 7]]),
        Bounded(4, 4, [a + b + c + [5], [*d, 5], a + b + c + [6]]),
        Bounded(4, 3, [[*a, 5], [*b, 6], a + c + [7], [*a, 8], [*b, 9]]),
    ]
    dice = random.Random(31)
    cases += [_random_bounded(dice) for _ in range(40)]
    answers: list[list[int]] = []
    broken: Mismatch | None = None
    for case in cases:
        try:
            answers.append(_ask_bounded(function, case))
        except Mismatch as error:  # a wrong answer to a smaller case says more than an exception
            broken = error
            break
    for case, got in zip(cases, answers, strict=False):
        want = find_cached_tokens(case.prompts, case.block_size, case.num_blocks)
        if got == want:
            continue
        says, look = "Other blocks are evicted than vLLM's rules say.", _BACK
        for wrong, words, where in _BOUNDED_BUGS:
            if _explains(wrong, cases[: len(answers)], answers):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_told_bounded(case), expected=f"`{want}`", got=f"`{got}`", look=look,
            figure=found_blocks(case.prompts, case.block_size, want, got),
            alt="Each prompt in blocks: which are found, and which you predicted.",
        )  # fmt: skip
    if broken:
        raise broken
    shown = cases[6]
    want = find_cached_tokens(shown.prompts, shown.block_size, shown.num_blocks)
    return Passed(
        f"Right on {len(cases)} lists of prompts in caches of 2 to 9 blocks; the engine's own "
        f"block manager decides the same. The picture: {shown.num_blocks} blocks of "
        f"{shown.block_size} tokens.",
        found_blocks(shown.prompts, shown.block_size, want),
        "Prompts in blocks, and which of them were found.",
    )


def _ask_bounded(function: Callable[..., list[int]], case: Bounded) -> list[int]:
    prompts = [list(prompt) for prompt in case.prompts]
    told = _told_bounded(case)
    got = call(function, prompts, case.block_size, case.num_blocks, given=told)
    if prompts != case.prompts:
        raise Mismatch("Your function changes the prompts it was given.", input=told)
    return ints(got, len(prompts), told)


def _explains(
    wrong: Callable[[Bounded], list[int]], cases: Sequence[Bounded], answers: Sequence[list[int]]
) -> bool:
    try:
        return all(wrong(c) == answer for c, answer in zip(cases, answers, strict=True))
    except (IndexError, ValueError):  # such a mistake can run out of blocks
        return False


def _told_bounded(case: Bounded) -> str:
    return f"block_size {case.block_size}, num_blocks {case.num_blocks}, prompts {case.prompts}"


def _random_bounded(dice: random.Random) -> Bounded:
    stems = [[dice.randrange(1, 4) for _ in range(16)] for _ in range(3)]
    prompts = [dice.choice(stems)[: 4 * dice.randint(0, 3)] + [dice.randrange(5, 9)] *
               dice.randint(1, 3) for _ in range(10)]  # fmt: skip
    most = max(-(-len(prompt) // 4) for prompt in prompts)
    return Bounded(4, dice.randint(max(2, most), 9), prompts)
