"""The checks of lab 04: what is drawn, and what is right.

Oracles: memory laid out slot by slot, blocks counted one by one, torch's attention over contiguous
keys, Hugging Face's `generate`, and a forward pass without any cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import not_the_engines, speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.patience import watching
from utils.checks.kit.pictures import blocks as block_pictures
from utils.checks.kit.reference import reference_prompts
from utils.checks.kit.runner import Mismatch, Passed, describe
from utils.checks.lab_04 import answers, attention
from utils.checks.lab_04.attention import LONG
from utils.checks.lab_04.parts import Parts
from utils.checks.lab_04.pool_story import PoolStory, shared_story
from utils.checks.lab_04.tables import ForkStory, GrowthStory, Pool, World, WriteStory
from utils.checks.lab_04.trial import Trial
from utils.engine.attention.paged_attention import paged_attention as engine_attention
from utils.engine.attention.paged_attention import paged_attention_reference
from utils.engine.core.block_pool import BlockPool as EnginePool
from utils.timing import one_thread

__all__ = ["Parts"]
LAB = Lab(__file__)
DRAWN = 64  # slots in a picture

# Exercise 1: which slots


def draw_positions(c: Choices) -> Given:
    """Any blocks of any size; chunks that begin anywhere, end at a boundary, are empty, or are
    longer than the table."""
    table = c.some(lambda: c.size(0, 200_000, small=6), 0, 5)
    long = c.integer(1, 1500) if c.rarely(12) else 0
    table = list(dict.fromkeys([*table, *range(200_001, 200_001 + long)]))
    size = c.pick((1, 2, 4)) if long else c.size(1, 300)
    room = len(table) * size
    if not room or c.rarely(6):
        end = room + c.pick((1, 2, size, 3 * size))
        return Given(table, size, end - c.pick((1, c.integer(0, end))), end)
    end = c.pick((room, c.integer(0, room), c.integer(0, len(table)) * size))
    most = min(end, 3 * size + 1)
    return Given(table, size, end - c.pick((c.integer(0, most), end, min(1, end))), end)


def laid_out(block_ids: list[int], block_size: int, start: int, end: int) -> list[int]:
    """Write down every slot of every block in order, then cut out the piece."""
    every = [block * block_size + offset for block in block_ids for offset in range(block_size)]
    if end > len(every):
        raise ValueError("the table is too short")
    return every[start:end]


def tell_positions(given: Given) -> str:
    table, size, start, end = given.args
    which = f"positions {start} to {end - 1}" if end > start else f"start {start}, end {end}"
    blocks = str(table) if len(table) < 12 else f"[{table[0]}, {table[1]}, ...] of {len(table)}"
    return f"block table {blocks}, blocks of {size}, {which}"


def other_slots(expected: list[int], got: Any, given: Given) -> Fault | None:
    """A tensor of slots is welcome, too."""
    got = got.tolist() if isinstance(got, Tensor) else got
    if not isinstance(got, list) or not all(type(slot) is int for slot in got):
        return Fault("ints", "", expected, got)
    says = difference(expected, got)
    if not says:
        return None
    table, size, start, _ = given.args

    def picture() -> tuple[Figure | None, str]:
        num_blocks = max([*table, *(slot // size for slot in got)]) + 1
        if num_blocks * size > DRAWN or min(got, default=0) < 0:
            return None, ""
        figure = block_pictures.slots(expected, got, start, num_blocks, size)
        return figure, "The slots of memory with the tokens' positions, expected and yours."

    return Fault("returns", "", expected, got, says, picture=picture)


def praise_slots(answer: Callable[..., Any]) -> Passed:
    table = [4, 1, 6]
    mine = [int(slot) for slot in answer(list(table), 4, 0, 10)]
    return Passed(
        "Equal to laying out the memory slot by slot, on 150 random tables. The picture: 10 tokens "
        f"of a request with the block table {table}.",
        block_pictures.slots(mine, mine, 0, 8, 4),
        "Ten tokens in three blocks of four slots, in the order 4, 1, 6.",
    )


slot_mapping = LAB.check(
    answers.slot_mapping,
    draw_positions,
    Returns(laid_out, own=True, wrong=other_slots),
    passed=praise_slots,
    tell=tell_positions,
)

# Exercise 2: who hands out the blocks

block_pool = LAB.check(
    answers.BlockPool,
    PoolStory.draw,
    PoolStory.judge(answers.BlockPool),
    passed=lambda answer: Passed(
        "Right in 250 random stories of one and two pools: blocks are handed out, shared, freed "
        "and reused in order, and no failure loses a block. The picture: a block is free again "
        "when its last holder lets go.",
        shared_story(answer),
        "The reference count of each block, step by step.",
    ),
    examples=250,
)

# Exercises 3, 5 and 6: the tables of requests that grow, are forked, and write


def praise_growth(answer: Any) -> Passed:
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


def praise_fork(answer: Any) -> Passed:
    world = World(4, 4)
    world.add(6)
    world.tables.append(answer(world.pool, world.tables[0]))
    return Passed(
        "The child has the parent's blocks in a list of its own, each with one more reference, "
        "and no block was taken.",
        block_pictures.tables({"yours": world.panel()}, "One set of blocks, two tables"),
        "Parent and child have the same two blocks.",
    )


def praise_copies(answer: Any) -> Passed:
    world = World(4, 4)
    world.add(6)
    world.fork(0)
    copied = []
    for index in (1, 0):
        pairs = answer(world.pool, world.tables[index], 6, 7, 4)
        world.copy(pairs)
        copied += [target for _, target in pairs]
        world.write(index, 6, 7)
    return Passed(
        "Shared blocks are copied before they are written to, all others are left alone, and "
        "everybody reads their own tokens. In the picture, the parent wrote last: it was the only "
        "holder left, and needed no copy.",
        block_pictures.tables({"yours": world.panel(copied=copied)}, "B wrote g, then A wrote h"),
        "Parent and child share the first block; the second is a copy in the child.",
    )


allocate_slots = LAB.check(
    answers.allocate_slots,
    GrowthStory.draw,
    GrowthStory.judge(answers.allocate_slots),
    passed=praise_growth,
    examples=200,
)

# Exercise 4: the four numbers of a request

NUMBERS = "tokens", "computed", "slots", "blocks"


def draw_counts(c: Choices) -> Given:
    """Requests that end just before, at, or just behind the end of a block, and any others."""
    size, num_steps = c.pick((4, c.size(1, 300))), c.size(1, 400, small=8)
    if c.rarely(2):
        return Given(c.size(1, 3000, small=12), num_steps, size)
    end = c.size(1, 40, small=3) * size + c.integer(-1, 2)  # tokens after these steps
    return Given(max(1, end - num_steps), num_steps, size)


def counted(num_prompt_tokens: int, num_steps: int, block_size: int) -> tuple[int, ...]:
    """Run the steps one by one: room for what is missing, compute it, one more token."""
    tokens, computed, slots = num_prompt_tokens, 0, list[int]()
    for _ in range(num_steps):
        while len(slots) < tokens:
            slots += [0] * block_size
        computed = tokens
        tokens += 1
    return tokens, computed, len(slots), len(slots) // block_size


def other_counts(expected: tuple[int, ...], got: Any, _: Given) -> Fault | None:
    wrong_type = not isinstance(got, tuple | list) or len(got) != len(expected)
    if wrong_type or not all(isinstance(n, int) and not isinstance(n, bool) for n in got):
        return Fault("form", "", expected, got)
    for name, right, yours in zip(NUMBERS, expected, got, strict=True):
        if right != yours:
            return Fault(name, "", right, yours)
    return None


def praise_counts(answer: Callable[..., Any]) -> Passed:
    rows = [tuple(answer(6, step, 4)) for step in range(1, 6)]
    return Passed(
        "Equal to running the steps one by one, for 200 random requests. The picture: a prompt of "
        "6 tokens and blocks of 4. The token that was chosen last has no slot yet, so after step "
        "3, a request of 9 tokens still fits into 8 slots.",
        block_pictures.growth([(computed, blocks) for _, computed, _, blocks in rows], 4),
        "The slots of a request with 6 prompt tokens, after each of its first five steps.",
    )


counts_after = LAB.check(
    answers.counts_after,
    draw_counts,
    Returns(counted, wrong=other_counts),
    passed=praise_counts,
    examples=200,
)
fork = LAB.check(answers.fork, ForkStory.draw, ForkStory.judge(answers.fork), passed=praise_fork)
copy_on_write = LAB.check(
    answers.copy_on_write,
    WriteStory.draw,
    WriteStory.judge(answers.copy_on_write),
    passed=praise_copies,
    examples=300,
)

# Exercise 7: attention that follows a block table


class Attention(Returns):
    """Shows the attention weights of a wrong answer beside the right ones."""

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        fault = super().fault(answer, given, expected)
        if fault is None:
            return None
        return replace(fault, picture=lambda: attention.weight_maps(answer))


def praise_attention(answer: Any) -> str:
    with held_output(), watching():
        most = attention.check_memory(answer)
    return (
        "Equal to torch's attention over contiguous keys on 120 random inputs: prefill, decode, "
        "chunks, grouped heads, unused slots full of garbage. For a text of "
        f"{LONG:,} tokens, your tensors take {most:,} bytes at a time, as many as for a short one."
    )


paged_attention = LAB.check(
    answers.paged_attention,
    attention.draw_attention,
    Attention(attention.contiguous, own=True, wrong=attention.another_result),
    passed=praise_attention,
    tell=attention.tell_attention,
    examples=120,
)


# Exercise 8: the learner's parts in the engine

# Of each part: its check, and a right one to put in its place; the one that computes first is last.
PARTS: dict[str, tuple[Any, Any]] = {
    "BlockPool": (block_pool, answers.BlockPool),
    "allocate_slots": (allocate_slots, answers.allocate_slots),
    "fork": (fork, answers.fork),
    "copy_on_write": (copy_on_write, answers.copy_on_write),
    "paged_attention": (paged_attention, paged_attention_reference),
}


@LAB.exercise
@one_thread()
def engine(parts: Parts) -> Passed:
    """Check that the engine speaks as Hugging Face with the learner's parts, and that answers that
    share blocks are as probable as without any sharing or paging."""
    if not isinstance(parts, Parts):
        raise Mismatch(
            f"`engine` was given {describe(parts)}; expected the parts of this lab.",
            look="`check.Parts(BlockPool, allocate_slots, fork, copy_on_write, paged_attention)`.",
        )
    not_the_engines(parts.BlockPool, EnginePool, "BlockPool")
    not_the_engines(parts.paged_attention, engine_attention, "paged_attention")
    for name, (check, _) in PARTS.items():
        speaks_first(check, getattr(parts, name))
    with held_output(), watching():
        managers = Trial(parts, {name: right for name, (_, right) in PARTS.items()}).run()
    shared = {name: m for name, m in managers.items() if name.startswith(("Parallel", "Beam"))}
    figure = block_pictures.blocks_over_steps(
        {name: (manager.used, manager.copies) for name, manager in shared.items()}
    )
    counted = "; ".join(
        f"{name}: at most {max(m.used)} blocks in use, {max(m.copies)} without sharing, "
        f"{m.num_copied} copied on write"
        for name, m in shared.items()
    )
    return Passed(
        f"Token for token what Hugging Face generates, on {len(reference_prompts())} prompts. "
        "Answers that share blocks are as probable, token by token, as in a clean pass without "
        "blocks, also when the pool is too small for all of them. "
        f"{counted}. Every block came back.",
        figure,
        "Blocks in use after each step, and what copies would have taken.",
    )
