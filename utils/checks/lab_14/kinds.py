"""What is given in lab 14: tries of a load test, what is known of a server, a mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """One try of a load test to get an answer. Times in seconds since the test began.

    Args:
        request_id: of the request; one that is refused may be tried again, under the same id
        due: when the schedule wanted it to be sent
        sent: when it was sent
        status: 200, or what the server said instead (503: refused)
        token_times: when each piece of the answer came; a piece can hold several tokens
        num_tokens: tokens of the answer, as the server counts them
        finished: whether the answer came to its end before the test was over
    """

    request_id: str
    due: float
    sent: float
    status: int = 200
    token_times: tuple[float, ...] = ()
    num_tokens: int = 0
    finished: bool = False


@dataclass(frozen=True)
class Load:
    """What is known of a server when a request comes, as it stands when the running step ends.

    Args:
        waiting: for each request without a first token, in order, the prompt tokens to compute
        num_running: requests that are being answered: a token in each step, nobody knows how long
        seconds_left: until the running step ends; 0.0 if no step runs
        max_num_batched_tokens: the most tokens in a step
        step_seconds: how long a step of so many tokens takes; more for more tokens
    """

    waiting: tuple[int, ...]
    num_running: int
    seconds_left: float
    max_num_batched_tokens: int
    step_seconds: Callable[[int], float]


class Mailbox:
    """Holds the newest output for one client, or the error that came in its place."""

    def __init__(self) -> None:
        self.news: Any = None
        self.filled = asyncio.Event()

    def put(self, news: Any) -> None:
        self.news = news
        self.filled.set()

    async def take(self) -> Any:
        await self.filled.wait()
        self.filled.clear()
        if isinstance(self.news, Exception):
            raise self.news
        return self.news
