"""The checks of lab 05: what is drawn, and what is right.

Oracles: brute force over tokens and prefixes, the engine's own cache and counters, and the engine
without a prefix cache. `answers.py` is held against the engine's own parts in `tests/`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Raised, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.patience import watching
from utils.checks.kit.pictures import prefixes as prefix_pictures
from utils.checks.kit.runner import Mismatch, Passed, describe
from utils.checks.lab_05 import answers, block_digests, tables, thefts
from utils.checks.lab_05.growth_story import GrowthStory
from utils.checks.lab_05.learners_engine import (
    ALT,
    BLOCK_SIZE,
    ManagerFactory,
    Trial,
    counted_hits,
    example_prompts,
    plugged,
)
from utils.checks.lab_05.pool_story import PoolStory
from utils.timing import one_thread

LAB = Lab(__file__)
Prompts = Sequence[Sequence[int]]

# Exercise 1: what will be found


def draw_prompts(c: Choices) -> Given:
    """Prompts that begin as earlier ones do, and end with or within a block."""
    block_size = c.pick((4, 2, 1, 3, 16))
    long = c.rarely(10)
    offset = c.pick((0, 0, 70_000))
    prompts: list[list[int]] = []

    def prompt() -> None:
        start: list[int] = []
        if prompts and not c.rarely(4):
            earlier = prompts[-1 - c.integer(0, len(prompts) - 1)]
            start = earlier[: len(earlier) - c.integer(0, len(earlier))]
        blocks = c.integer(0, 40 if long else 2)
        tail = blocks * block_size + c.pick((0, 1, c.integer(0, block_size)))
        # Few tokens, for equal blocks behind other blocks; and such as 1, 11 and 1, 1, 1.
        kinds = c.pick(((1, 2, 3), (1,), (1, 11, 111)))
        new = [offset + c.pick(kinds) for _ in range(max(tail, not start))]
        prompts.append([*start, *new])

    c.some(prompt, 0, 24 if c.rarely(6) else 7)
    return Given(prompts, block_size)


def found_tokens(prompts: Prompts, block_size: int) -> list[int]:
    """Brute force: compare each prompt with each earlier one, token by token."""
    found = []
    for number, prompt in enumerate(prompts):
        # What an earlier prompt leaves behind are its full blocks.
        earlier = [p[: len(p) // block_size * block_size] for p in prompts[:number]]
        found.append(min(common(earlier, prompt), len(prompt) - 1) // block_size * block_size)
    return found


def common(earlier: Prompts, prompt: Sequence[int]) -> int:
    """With how many tokens does the prompt begin as one of the earlier ones does?"""
    best = 0
    for other in earlier:
        same = 0
        while same < min(len(other), len(prompt)) and other[same] == prompt[same]:
            same += 1
        best = max(best, same)
    return best


def other_numbers(expected: list[int], got: Any, given: Given) -> Fault | None:
    says = difference(expected, got)
    prompts, size = given.args
    if says and isinstance(got, list) and len(got) == len(prompts):
        number = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
        says = f"Of prompt {number}, {expected[number]} tokens are found, not {got[number]!r}."
    draw_it = functools.partial(picture_of_prompts, prompts, size, expected, got)
    return Fault("returns", "", expected, got, says, picture=draw_it) if says else None


def picture_of_prompts(prompts: Prompts, size: int, want: list[int], got: Any) -> Any:
    short = max(map(len, prompts)) <= 40 * size and len(prompts) <= 8
    figure: Figure | None = prefix_pictures.prompts(prompts, size, want, got) if short else None
    return figure, ALT if short else ""


def tell_prompts(given: Given) -> str:
    prompts, size = given.args
    shown = [p if len(p) <= 40 else [*p[:12], "...", *p[-4:]] for p in prompts]
    return f"block_size {size}, prompts {shown}"


def praise_prediction(answer: Any) -> Passed:
    """The engine's own counters, on real prompts."""
    prompts, counted = example_prompts(), counted_hits()
    predicted = attempt(answer, [list(prompt) for prompt in prompts], BLOCK_SIZE)
    if predicted != counted:
        raise Mismatch(
            "The engine counted something else.",
            expected=f"`{counted}`",
            got=predicted.says if isinstance(predicted, Raised) else describe(predicted),
        )
    return Passed(
        f"Right on 200 lists of prompts. Then the engine ran {len(prompts)} prompts of "
        f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens, in blocks of {BLOCK_SIZE}. "
        f"You predicted {predicted}; its own counters say {counted}.",
        prefix_pictures.prompts(prompts, BLOCK_SIZE, counted),
        "The engine's prompts in blocks, and which of them were found.",
    )


predict_num_cached_tokens = LAB.check(
    answers.predict_num_cached_tokens,
    draw_prompts,
    Returns(found_tokens, wrong=other_numbers),
    passed=praise_prediction,
    tell=tell_prompts,
    examples=200,
)

# Exercises 2 to 7: the parts of the cache, and how to steal from a weak one

hash_block_tokens = LAB.check(
    answers.hash_block_tokens,
    block_digests.draw,
    InLockstep(block_digests.play, answers.hash_block_tokens),
    examples=600,
)
request_block_hasher = LAB.check(
    answers.request_block_hasher,
    GrowthStory.draw,
    GrowthStory.judge(answers.request_block_hasher),
    examples=200,
)
get_computed_blocks = LAB.check(
    answers.get_computed_blocks,
    tables.draw_lookup,
    InLockstep(tables.play_lookup, answers.get_computed_blocks),
    examples=200,
)
block_pool = LAB.check(
    answers.CachingBlockPool,
    PoolStory.draw,
    PoolStory.judge(answers.CachingBlockPool),
    examples=300,
)
free_request = LAB.check(
    answers.free_request, tables.draw_ending, InLockstep(tables.play_ending, answers.free_request)
)
steal_blocks = LAB.check(
    answers.steal_blocks, thefts.draw, InLockstep(thefts.play, answers.steal_blocks)
)

# Exercise 8: the learner's parts in the engine

PARTS: dict[str, Callable[..., Any]] = {
    "hash_block_tokens": hash_block_tokens,
    "request_block_hasher": request_block_hasher,
    "get_computed_blocks": get_computed_blocks,
    "block_pool": block_pool,
    "free_request": free_request,
}


@LAB.exercise
@one_thread()
def engine(make_manager: ManagerFactory) -> Passed:
    """Check each part alone, then that the engine's text is that of a run without a cache."""
    for name, part in plugged(make_manager).parts().items():
        speaks_first(PARTS[name], part)  # type: ignore[arg-type]
    with held_output(), watching():
        return Trial(make_manager).run()
