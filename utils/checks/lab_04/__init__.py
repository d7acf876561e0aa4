"""The checks of lab 04. Oracles: memory laid out slot by slot, a plain queue, torch's attention
over contiguous keys, Hugging Face's `generate`, and a forward pass without any cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_04 import learners_engine, slots
from utils.checks.lab_04.growth_stories import check_growth
from utils.checks.lab_04.learners_parts import Parts
from utils.checks.lab_04.paged_attention_cases import compare_with_torch, largest_tensor
from utils.checks.lab_04.pool_stories import STORIES, shared_story
from utils.checks.lab_04.sharing_stories import check_copy_on_write, check_fork

__all__ = ["Parts"]


@exercise("Exercise 1: slot_mapping", points=2)
def slot_mapping(function: Callable[..., Any]) -> Passed:
    """Check `slot_mapping(block_ids, block_size, start, end)`."""
    return slots.judge_slot_mapping(function)


@exercise("Exercise 2: BlockPool", points=4)
def block_pool(pool_class: Callable[..., Any]) -> Passed:
    """Check the contract of the pool, one small story after another."""
    for story in STORIES:
        story(pool_class)
    return Passed(
        f"Right in {len(STORIES)} stories, the last of them 300 steps at random: blocks are handed "
        "out, shared, freed and reused in order, and no failure leaves a trace. The picture: a "
        "block is free again when its last holder lets go.",
        shared_story(pool_class).picture(), "The reference count of each block, step by step.",
    )  # fmt: skip


@exercise("Exercise 3: allocate_slots", points=3)
def allocate_slots(function: Callable[..., Any]) -> Passed:
    """Check `allocate_slots(block_pool, block_table, num_tokens, block_size)`."""
    figure = check_growth(function)
    return Passed(
        "A block is taken when a token needs it, and not before: at no time does a request hold "
        "more than one block that is not full. Refused requests change nothing.",
        figure, "The slots of a request that grows token by token.",
    )  # fmt: skip


@exercise("Exercise 4: fork", points=1)
def fork(function: Callable[..., Any]) -> Passed:
    """Check `fork(block_pool, block_table)`."""
    figure = check_fork(function)
    return Passed(
        "The child has the parent's blocks in a list of its own, each with one more reference, "
        "and no block was taken.",
        figure, "Parent and child have the same two blocks.",
    )  # fmt: skip


@exercise("Exercise 5: copy_on_write", points=3)
def copy_on_write(function: Callable[..., Any]) -> Passed:
    """Check `copy_on_write(block_pool, block_table, start, end, block_size)`."""
    figure = check_copy_on_write(function)
    return Passed(
        "Shared blocks are copied before they are written to, all others are left alone, and "
        "everybody reads their own tokens. In the picture, the parent wrote last: it was the only "
        "holder left, and needed no copy.",
        figure, "Parent and child share the first block; the second is a copy in the child.",
    )  # fmt: skip


@exercise("Exercise 6: paged_attention", points=4)
def paged_attention(function: Callable[..., Any]) -> str:
    """Check attention over a block table, and that its memory does not grow with the text."""
    num_cases = compare_with_torch(function)
    largest, everything = largest_tensor(function)
    return (
        f"Equal to torch's attention over contiguous keys on {num_cases} inputs: prefill, decode, "
        "chunks, grouped heads, unused slots full of garbage. For a text of 512 tokens, your "
        f"largest tensor holds {largest} numbers; to gather its keys would take {everything}."
    )


@exercise("Exercise 7: your code runs the engine", points=4)
def engine(parts: Parts) -> Passed:
    """Check that the engine speaks as Hugging Face with the learner's parts, and that answers that
    share blocks are as probable as without any sharing or paging."""
    return learners_engine.run(parts)
