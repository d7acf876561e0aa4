"""Scheduling policies, and the queue that keeps to one. vLLM's `v1/core/sched/request_queue.py`.

A policy is a function of a request. What it returns is compared: the smallest is the most important
one, goes first, and is preempted last. It must not change while the request is in the engine.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable

from utils.engine.request import Request

SchedulingPolicy = Callable[[Request], tuple[int, ...]]


def fcfs(request: Request) -> tuple[int, ...]:
    """First come, first served."""
    return (request.arrival_index,)


def priority(request: Request) -> tuple[int, ...]:
    """The lowest number that a user gave first; among equals, who came first."""
    return (request.priority, request.arrival_index)


POLICIES: dict[str, SchedulingPolicy] = {"fcfs": fcfs, "priority": priority}


def get_policy(policy: str | SchedulingPolicy) -> SchedulingPolicy:
    """A policy by its name, or your own.

    Raises:
        ValueError: no policy has this name.
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(
            f"Unknown scheduling_policy {policy!r}. Expected {' or '.join(POLICIES)}, or a "
            f"function of a request (see utils/engine/core/sched/request_queue.py)."
        )
    return POLICIES[policy]


class RequestQueue(deque[Request]):
    """Waiting requests, the most important first.

    Args:
        policy: says how important a request is.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        super().__init__()
        self.policy = policy

    def add_request(self, request: Request) -> None:
        """Put a request where its importance puts it: a new one often last, of all."""
        if not self or self.policy(self[-1]) <= self.policy(request):
            self.append(request)
        else:
            bisect.insort(self, request, key=self.policy)
