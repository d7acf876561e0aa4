"""The checks of lab 06.

Oracles: brute force, a scheduler of plain numbers, and the engine with its own scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, exercise
from utils.checks.lab_06 import learners_engine, preemption, recovery, token_choices
from utils.checks.lab_06.scheduler_stories import STORIES, engine_methods_refuse


@exercise("Exercise 1: batch_waste", points=2)
def batch_waste(function: Callable[..., tuple[int, int]]) -> Passed:
    """Check `batch_waste(prompt_lens, output_lens, batch_size)`."""
    return token_choices.judge_batch_waste(function)


@exercise("Exercise 2: choose_tokens", points=3)
def choose_tokens(function: Callable[..., dict[str, int]]) -> Passed:
    """Check `choose_tokens(running, waiting, max_num_seqs, max_num_batched_tokens)`."""
    return token_choices.judge_choose_tokens(function)


@exercise("Exercise 3: next_chunk", points=2)
def next_chunk(function: Callable[..., tuple[int, bool]]) -> Passed:
    """Check `next_chunk(request, budget, num_running_after)`."""
    return token_choices.judge_next_chunk(function)


@exercise("Exercise 4: make_room", points=4)
def make_room(function: Callable[..., list[Any]]) -> str:
    """Check `make_room(request, num_new_tokens, running, waiting, kv_cache_manager)`."""
    return preemption.judge_make_room(function)


@exercise("Exercise 5: by_importance", points=2)
def by_importance(function: Callable[..., list[Any]]) -> str:
    """Check `by_importance(requests)`."""
    return preemption.judge_by_importance(function)


@exercise("Exercise 6: recovery_seconds", points=2)
def recovery_seconds(function: Callable[..., tuple[float, float]]) -> Passed:
    """Check `recovery_seconds(num_tokens, costs)`."""
    return recovery.judge_recovery_seconds(function)


@exercise("Exercise 7: MyScheduler", points=6)
def scheduler(scheduler_class: Callable[..., Any]) -> str:
    """Check `schedule`, `update_from_output` and `abort_requests`, one story after another."""
    if not isinstance(scheduler_class, type):
        raise Mismatch("Expected the class itself: `check.scheduler(MyScheduler)`.")
    with engine_methods_refuse():
        for story in STORIES:
            story(scheduler_class)
    return (
        "Both limits are kept, nobody stands still, nobody overtakes, and everybody finishes. "
        "Equal to a scheduler of plain numbers, step by step, in all stories, 60 random ones among "
        "them; no block is lost."
    )


@exercise("Exercise 8: your scheduler runs the engine", points=3)
def engine(scheduler_class: Callable[..., Any]) -> Passed:
    """Check `LLM(scheduler_cls=...)`: the same answers, with plenty of memory and with little."""
    for story in STORIES[:2]:  # unwritten parts answer before the model is loaded
        story(scheduler_class)
    return learners_engine.run(scheduler_class)
