"""The checks of lab 06.

Oracles: brute force, a right scheduler, and the engine with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_06 import (
    chunks,
    importance,
    learners_engine,
    learners_parts,
    static_batches,
    token_choices,
)
from utils.checks.lab_06.giving_way import preemption, recovery, swapping


@exercise("Exercise 1: batch_waste", points=2)
def batch_waste(function: Callable[..., tuple[int, int]]) -> str | Passed:
    """Check `batch_waste(prompt_lens, output_lens, batch_size)`."""
    return static_batches.BATCH_WASTE.check(function)


@exercise("Exercise 2: choose_tokens", points=3)
def choose_tokens(function: Callable[..., dict[str, int]]) -> str | Passed:
    """Check `choose_tokens(running, waiting, max_num_seqs, max_num_batched_tokens)`."""
    return token_choices.CHOOSE_TOKENS.check(function)


@exercise("Exercise 3: next_chunk", points=2)
def next_chunk(function: Callable[..., tuple[int, bool]]) -> str | Passed:
    """Check `next_chunk(request, budget, num_running_after)`."""
    return chunks.NEXT_CHUNK.check(function)


@exercise("Exercise 4: make_room", points=4)
def make_room(function: Callable[..., list[Any]]) -> str | Passed:
    """Check `make_room(request, num_new_tokens, running, waiting, kv_cache_manager)`."""
    return preemption.MAKE_ROOM.check(function)


@exercise("Exercise 5: by_importance", points=2)
def by_importance(function: Callable[..., list[Any]]) -> str | Passed:
    """Check `by_importance(requests)`."""
    return importance.BY_IMPORTANCE.check(function)


@exercise("Exercise 6: recovery_seconds", points=2)
def recovery_seconds(function: Callable[..., tuple[float, float]]) -> str | Passed:
    """Check `recovery_seconds(num_tokens, costs)`."""
    return recovery.RECOVERY_SECONDS.check(function)


@exercise("Exercise 7: SwapOrRecompute", points=3)
def swap_or_recompute(swapping_class: Callable[..., Any]) -> str | Passed:
    """Check `give_way` and `come_back` in random stories."""
    return swapping.SWAP.check(swapping_class)


@exercise("Exercise 8: MyScheduler", points=6)
def scheduler(scheduler_class: Callable[..., Any]) -> str | Passed:
    """Check `schedule`, `update_from_output` and `abort_requests` in random stories."""
    return learners_parts.check_scheduler(scheduler_class)


@exercise("Exercise 9: your scheduler runs the engine", points=3)
def engine(scheduler_class: Callable[..., Any]) -> Passed:
    """Check `LLM(scheduler_cls=...)`: the same answers and steps, with much memory and little."""
    return learners_engine.run(scheduler_class)
