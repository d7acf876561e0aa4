"""Which of a learner's earlier functions is at fault when the scheduler fails."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from utils.checks.kit.contracts import Contract
from utils.checks.kit.contracts.guards import methods_refuse
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_06.chunks import NEXT_CHUNK
from utils.checks.lab_06.giving_way.preemption import MAKE_ROOM
from utils.checks.lab_06.importance import BY_IMPORTANCE
from utils.checks.lab_06.scheduler_mistakes import SCHEDULER
from utils.engine.core.scheduler import Scheduler

METHODS = ("schedule", "update_from_output", "abort_requests")
# By the name that the scheduler calls them by: the number of the exercise, and its check.
PARTS: dict[str, tuple[int, Contract]] = {
    "by_importance": (5, BY_IMPORTANCE),
    "next_chunk": (3, NEXT_CHUNK),
    "make_room": (4, MAKE_ROOM),
}


def engine_methods_refuse() -> AbstractContextManager[None]:
    """While this is on, a learner's scheduler cannot let the engine's do the work."""
    return methods_refuse(
        Scheduler,
        METHODS,
        "The engine's own scheduler does the work, by inheritance or through `super()`.",
        f"Write all three methods yourself: {', '.join(METHODS)}.",
    )


def check_scheduler(scheduler_class: Any) -> Any:
    """Exercise 8. If it fails because of an earlier exercise, that one speaks."""
    if not isinstance(scheduler_class, type):
        raise Mismatch("Expected the class itself: `check.scheduler(MyScheduler)`.")
    try:
        with engine_methods_refuse():
            return SCHEDULER.check(scheduler_class)
    except Mismatch as wrong:
        raise faulty_part(scheduler_class) or wrong from None


def faulty_part(scheduler_class: type) -> Mismatch | None:
    """What the own check of an earlier exercise says of the part that this class uses."""
    for name, (number, contract) in PARTS.items():
        for part in _used(scheduler_class, name):
            try:
                contract.check(part)
            except Mismatch as wrong:
                wrong.headline = (
                    f"Your scheduler uses `{name}`, and that is not right yet (exercise {number}). "
                    f"{wrong.headline}"
                )
                return wrong
    return None


def _used(scheduler_class: type, name: str) -> set[Callable[..., Any]]:
    """The functions of this name that the class's methods find."""
    bodies = (value for owner in scheduler_class.__mro__ for value in vars(owner).values())
    methods = (value for value in bodies if isinstance(value, types.FunctionType))
    found = {m.__globals__.get(name) for m in methods if name in m.__code__.co_names}
    return {part for part in found if callable(part)}
