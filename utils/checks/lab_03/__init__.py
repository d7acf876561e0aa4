"""The checks of lab 03.

Oracles: plain and slow counterparts, slot by slot; at last, the course's simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_03 import blocks, buddies, experiment, room, states
from utils.checks.lab_03 import first_fit as chunks_of_any_size
from utils.checks.lab_03.experiment import Parts

__all__ = ["Parts"]


@exercise("Exercise 1: count_states", points=2)
def count_states(function: Callable[..., dict[str, int]]) -> str | Passed:
    """Check `count_states(running, holes, need, now)`."""
    return states.COUNT_STATES.check(function)


@exercise("Exercise 2: FirstFit", points=3)
def first_fit_memory(memory_class: Callable[[int], Any]) -> str | Passed:
    """Check `place`, `free`, `holes` and `chunk_size` in random stories of two memories."""
    return chunks_of_any_size.FIRST_FIT.check(memory_class)


@exercise("Exercise 3: Buddy", points=4)
def buddy_memory(memory_class: Callable[[int], Any]) -> str | Passed:
    """As exercise 2, with buddies."""
    return buddies.BUDDY.check(memory_class)


@exercise("Exercise 4: BlockMemory", points=3)
def block_memory(memory_class: Callable[[int, int], Any]) -> str | Passed:
    """Check `hold`, `free` and the counts in random stories of two memories."""
    return blocks.BLOCKS.check(memory_class)


@exercise("Exercise 5: make_room", points=5)
def make_room(function: room.MakeRoom) -> str:
    """Check `make_room(chunks, num_slots, need)`; any moves will do that copy little enough."""
    room.MAKE_ROOM.check(function)
    return room.cheaper_than_sliding(function)


@exercise("Exercise 6: the paper's experiment", points=4)
def engine(make_parts: Callable[[], Parts]) -> Passed:
    """Check `advance` and all other parts, then run the paper's experiment with them."""
    return experiment.against_the_course(experiment.rehearse(make_parts))
