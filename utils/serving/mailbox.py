"""What the engine's thread hands to those who wait for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from utils.engine import RequestOutput
from utils.engine.output_processor import RequestState


class QueueOverflowError(RuntimeError):
    """The server has as many requests as it is allowed to have."""


class EngineGenerateError(RuntimeError):
    """A step of the engine failed, and the request with it. Others can be sent."""


class FormError(RuntimeError):
    """The form that a client asked its answer to have cannot be followed."""


class EngineDeadError(RuntimeError):
    """The engine does not run (any more)."""


class Mailbox:
    """Where a caller finds the newest answers to its prompts.

    It holds one output per prompt, the latest: outputs contain all that came before. So a client
    that reads slowly costs no memory, and when it comes back it gets what is new in one piece.
    """

    def __init__(self) -> None:
        self._news: dict[int, RequestOutput] = {}
        self._error: Exception | None = None
        self._filled = asyncio.Event()

    def put(self, index: int, output: RequestOutput) -> None:
        self._news[index] = output
        self._filled.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._filled.set()

    async def take(self) -> dict[int, RequestOutput]:
        """Wait for news: outputs by the index of the prompt. Raises if the engine failed."""
        await self._filled.wait()
        self._filled.clear()
        if self._error is not None:
            raise self._error
        news, self._news = self._news, {}
        return news


class Answers:
    """The growing answers of some requests, to be iterated with `async for`.

    Each item holds what is new: by the index of the request, its answers so far. Whoever leaves
    before the end must close this, so that the engine does not go on for nobody. Iterating raises
    `EngineGenerateError` if a step failed, and `EngineDeadError` if the engine did.

    Args:
        requests: to be answered.
        let_go: told at the end about these answers, with the ids of the requests not finished.
    """

    def __init__(
        self, requests: Sequence[RequestState], let_go: Callable[[Answers, list[str]], None]
    ) -> None:
        self.mailbox, self.num_requests = Mailbox(), len(requests)
        self._unfinished = {i: request.request_id for i, request in enumerate(requests)}
        self._let_go = let_go
        self._closed = False

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> dict[int, RequestOutput]:
        if not self._unfinished:
            raise StopAsyncIteration
        news = await self.mailbox.take()
        for index, output in news.items():
            if output.finished:
                del self._unfinished[index]
        return news

    async def aclose(self) -> None:
        """Abort what is not finished. To be called once or more often, also after the end."""
        if not self._closed:
            self._closed = True
            self._let_go(self, list(self._unfinished.values()))
