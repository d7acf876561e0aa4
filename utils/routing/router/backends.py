"""The replicas behind our router: what is known of each, and one exchange with one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx

PATIENCE = 300.0  # seconds without a byte after which a replica counts as stuck
CHECK_PATIENCE = 5.0  # seconds that a health check may take
MAX_FAILED_CHECKS = 3  # in a row, as in vllm-router; a refused connection is enough


@dataclass
class BackendReplica:
    """A server behind the router, and its load as the router knows it: a policy's `Replica`.

    Attributes:
        num_running: answers whose first byte has come.
        num_waiting: requests without a first byte yet.
        waiting_tokens: prompt tokens of those.
    """

    index: int
    url: str
    alive: bool = True
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0
    failed_checks: int = 0
    _death: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def die(self) -> None:
        """It is out of service; who waits for its first byte is told."""
        self.alive = False
        self._death.set()

    def revive(self) -> None:
        self.alive = True
        if self._death.is_set():
            self._death = asyncio.Event()

    async def death(self) -> None:
        """Wait until it dies."""
        await self._death.wait()


class ReplicaFailed(Exception):
    """A replica could not be reached, or its answer broke off."""


@dataclass
class Exchange:
    """A request that is with a replica: counted in its load until `aclose`.

    Attributes:
        status: of the answer.
        headers: of the answer, names in lower case.
        first: the first bytes of the answer.
    """

    replica: BackendReplica
    num_tokens: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    first: bytes = b""
    _rest: AsyncIterator[bytes] | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _state: str = "new"

    async def begin(self, client: httpx.AsyncClient, path: str, content: bytes) -> None:
        """Send the request, and wait for the first bytes of its answer.

        Raises:
            ReplicaFailed: there were none; or the replica was taken out of service before they
                came. A process that is stopped keeps its connections open, and says nothing.
        """
        self._enter("waiting")
        beginning = asyncio.ensure_future(self._begin(client, path, content))
        dying = asyncio.ensure_future(self.replica.death())
        try:
            await asyncio.wait({beginning, dying}, return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                raise ReplicaFailed("it does not answer its health checks")
            beginning.result()
        finally:
            for task in (beginning, dying):
                task.cancel()
            await asyncio.gather(beginning, dying, return_exceptions=True)
        self._enter("running")

    async def _begin(self, client: httpx.AsyncClient, path: str, content: bytes) -> None:
        request = client.stream(
            "POST",
            self.replica.url + path,
            content=content,
            headers={"Content-Type": "application/json"},
        )
        try:
            response = await self._stack.enter_async_context(request)
            self._rest = response.aiter_bytes()
            self.first = await anext(self._rest, b"")
        except httpx.TransportError as error:
            raise ReplicaFailed(_words(error)) from error
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows the first bytes. Raises `ReplicaFailed` if it breaks off."""
        assert self._rest is not None
        try:
            async for chunk in self._rest:
                yield chunk
        except httpx.TransportError as error:
            raise ReplicaFailed(_words(error)) from error

    async def aclose(self) -> None:
        """Let the replica go, whether its answer is complete or not. (It aborts what is not.)"""
        self._enter("done")
        await self._stack.aclose()

    def _enter(self, state: str) -> None:
        """Move this request from one count of the replica's load to the next."""
        for name, change in ((self._state, -1), (state, 1)):
            if name == "waiting":
                self.replica.num_waiting += change
                self.replica.waiting_tokens += change * self.num_tokens
            elif name == "running":
                self.replica.num_running += change
        self._state = state


async def check(client: httpx.AsyncClient, replica: BackendReplica) -> bool:
    """Ask a replica whether it is healthy, and book the answer. Returns whether it counts as so.

    One that is dead and answers is alive again. One that does not answer in time may only be busy,
    so that counts after some times in a row; a refused connection counts at once.
    """
    try:
        response = await client.get(f"{replica.url}/health", timeout=CHECK_PATIENCE)
        failed = 0 if response.is_success else replica.failed_checks + 1
    except httpx.ConnectError:
        failed = MAX_FAILED_CHECKS
    except httpx.TransportError:
        failed = replica.failed_checks + 1
    replica.failed_checks = failed
    return failed == 0 or (replica.alive and failed < MAX_FAILED_CHECKS)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
