"""The checks of lab 04. Oracles: memory laid out slot by slot, a plain queue, torch's attention
over contiguous keys, Hugging Face's `generate`, and a forward pass without any cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_04 import (
    attention_cases,
    copies,
    growth,
    learners_engine,
    pool_mistakes,
    sharing,
    slots,
)
from utils.checks.lab_04.learners_parts import Parts

__all__ = ["Parts"]


@exercise("Exercise 1: slot_mapping", points=2)
def slot_mapping(function: Callable[..., Any]) -> str | Passed:
    """Check `slot_mapping(block_ids, block_size, start, end)`."""
    return slots.SLOT_MAPPING.check(function)


@exercise("Exercise 2: BlockPool", points=4)
def block_pool(pool_class: Callable[..., Any]) -> str | Passed:
    """Check the contract of the pool in random stories of one and two pools."""
    return pool_mistakes.BLOCK_POOL.check(pool_class)


@exercise("Exercise 3: allocate_slots", points=3)
def allocate_slots(function: Callable[..., Any]) -> str | Passed:
    """Check `allocate_slots(block_pool, block_table, num_tokens, block_size)`."""
    return growth.ALLOCATE_SLOTS.check(function)


@exercise("Exercise 4: fork", points=1)
def fork(function: Callable[..., Any]) -> str | Passed:
    """Check `fork(block_pool, block_table)`."""
    return sharing.FORK.check(function)


@exercise("Exercise 5: copy_on_write", points=3)
def copy_on_write(function: Callable[..., Any]) -> str | Passed:
    """Check `copy_on_write(block_pool, block_table, start, end, block_size)`."""
    return copies.COPY_ON_WRITE.check(function)


@exercise("Exercise 6: paged_attention", points=4)
def paged_attention(function: Callable[..., Any]) -> str:
    """Check attention over a block table, and that its memory does not grow with the text."""
    return attention_cases.check(function)


@exercise("Exercise 7: your code runs the engine", points=4)
def engine(parts: Parts) -> Passed:
    """Check that the engine speaks as Hugging Face with the learner's parts, and that answers that
    share blocks are as probable as without any sharing or paging."""
    return learners_engine.run(parts)
