"""A router for OpenAI-compatible servers: any policy, several replicas, no request lost in vain.

A request goes to the replica that the policy chooses. If that one fails before the first byte of
its answer has gone to the client, the request goes to another one, and the client notices nothing.
After the first byte it is lost: what another replica would write need not continue it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx
from fastapi import Response

from utils.routing.policies import NoLiveReplicaError, RoutingRequest
from utils.routing.router.backends import (
    CHECK_PATIENCE,
    PATIENCE,
    BackendReplica,
    Exchange,
    ReplicaFailed,
    check,
)
from utils.routing.router.block_names import block_names
from utils.routing.router.event_feed import EventFeed
from utils.routing.router.metrics import RouterMetrics
from utils.serving.http.tools import KEEP_ALIVE, EventStream, error_body, error_response, event

Tokenize = Callable[[dict[str, Any]], Sequence[int]]
SESSION_HEADER = "x-session-id"  # as for vllm-router
RETRY_AFTER = {"Retry-After": "1"}


class Policy(Protocol):
    """What a router asks of a policy. It may have `lost(index)`, too: a replica has died."""

    def choose(self, request: RoutingRequest, replicas: Sequence[BackendReplica]) -> int: ...


class Router:
    """Sends requests to replicas. All methods run in one event loop.

    Args:
        policy: chooses.
        urls: of the replicas.
        tokenize: prompt tokens of a request's body, for policies that look at prefixes. None:
            a policy sees neither blocks nor lengths.
        block_size: tokens in a block of the replicas' caches.
        feed: keeps the policy's index true, asked before each choice. None: no events.
        max_concurrent_requests: more get status 429, as from vllm-router. None: no limit.
        health_check_interval: seconds.
        transport: in place of the network, for tests.

    Raises:
        ValueError: there is no replica, or two have the same URL.
    """

    def __init__(
        self,
        policy: Policy,
        urls: Sequence[str],
        *,
        tokenize: Tokenize | None = None,
        block_size: int = 16,
        feed: EventFeed | None = None,
        max_concurrent_requests: int | None = None,
        health_check_interval: float = 1.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"A router needs one replica or more, all different, not {urls!r}.")
        self.policy, self.tokenize, self.block_size, self.feed = policy, tokenize, block_size, feed
        self.replicas = [BackendReplica(i, url) for i, url in enumerate(urls)]
        self.metrics = RouterMetrics()
        self.max_concurrent_requests = max_concurrent_requests
        self.health_check_interval = health_check_interval
        self._numbers = itertools.count()
        # No limit of connections: a request that waits for one would wait unseen.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE
        )
        timeout = httpx.Timeout(PATIENCE, connect=5.0)
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=limits, transport=transport, trust_env=False
        )

    async def forward(self, path: str, content: bytes, headers: Mapping[str, str]) -> Response:
        """The answer of some replica, or why there is none, in OpenAI's format.

        Args:
            path: such as "/v1/completions".
            content: the client's body, which goes on as it is.
            headers: the client's; names in lower case.
        """
        limit = self.max_concurrent_requests
        if limit is not None and self.num_unfinished >= limit:
            self.metrics.count("rejected")
            text = f"{limit} requests are in progress, which is the limit. Try again later."
            return error_response(429, text, headers=RETRY_AFTER)
        request = await self.describe(_parse(content), headers)
        tried: set[int] = set()
        busy: Response | None = None
        while True:
            try:
                replica = self.choose(request, tried)
            except NoLiveReplicaError as error:
                self.metrics.count("rejected")
                return busy or error_response(503, str(error), headers=RETRY_AFTER)
            except Exception as error:  # the policy may be a learner's
                self.metrics.count("policy_errors")
                return error_response(500, f"The policy failed: {type(error).__name__}: {error}")
            self.metrics.count("requests", replica.url)
            if tried:
                self.metrics.count("retries")
            tried.add(replica.index)
            with contextlib.suppress(ReplicaFailed):
                response = await self._send(replica, path, content, request.num_tokens)
                if response.status_code != 503:
                    return response
                busy = response  # alive, with too much to do; perhaps another one has less

    async def models(self) -> Response:
        """What models there are: the answer of the first replica that gives one."""
        for replica in self.replicas:
            if replica.alive:
                with contextlib.suppress(httpx.TransportError):
                    answer = await self._client.get(
                        f"{replica.url}/v1/models", timeout=CHECK_PATIENCE
                    )
                    return Response(
                        answer.content, answer.status_code, media_type="application/json"
                    )
        return error_response(503, str(NoLiveReplicaError()), headers=RETRY_AFTER)

    async def describe(self, body: dict[str, Any], headers: Mapping[str, str]) -> RoutingRequest:
        """What a policy is told about a request."""
        session = headers.get(SESSION_HEADER) or body.get("user")
        if session is not None:  # policies hash it, and half of a surrogate pair has no bytes
            session = str(session).encode(errors="backslashreplace").decode()
        request = RoutingRequest(next(self._numbers), session_id=session)
        if self.tokenize is not None:
            # A body that cannot be tokenized goes on, and the replica says what is wrong with it.
            with contextlib.suppress(Exception):
                tokens = await asyncio.to_thread(self.tokenize, body)
                request.num_tokens = len(tokens)
                request.block_hashes = block_names(tokens, self.block_size, body.get("cache_salt"))
        return request

    def choose(self, request: RoutingRequest, tried: set[int] | frozenset[int]) -> BackendReplica:
        """Ask the policy.

        Raises:
            NoLiveReplicaError: all are dead, or have been tried.
            ValueError: the policy chose one that it was not offered.
        """
        if self.feed is not None:
            self.feed.drain()
        offered = [r for r in self.replicas if r.alive and r.index not in tried]
        if not offered:
            raise NoLiveReplicaError
        chosen, indices = self.policy.choose(request, offered), [r.index for r in offered]
        if chosen not in indices:
            raise ValueError(f"it chose {chosen!r}, and was offered {indices}")
        return self.replicas[chosen]

    @property
    def num_unfinished(self) -> int:
        """Requests that are with a replica."""
        return sum(replica.num_running + replica.num_waiting for replica in self.replicas)

    async def check_health(self) -> None:
        """Ask all replicas how they are, and listen to their events, all the time."""
        while True:
            if self.feed is not None:
                self.feed.drain()  # the first time it subscribes: who is not there hears nothing
            healthy = await asyncio.gather(*(check(self._client, r) for r in self.replicas))
            for replica, is_healthy in zip(self.replicas, healthy, strict=True):
                if is_healthy:
                    replica.revive()
                else:
                    self._bury(replica)
            await asyncio.sleep(self.health_check_interval)

    async def aclose(self) -> None:
        await self._client.aclose()
        if self.feed is not None:
            self.feed.close()

    async def _send(
        self, replica: BackendReplica, path: str, content: bytes, num_tokens: int
    ) -> Response:
        """One replica's answer: whole, or a stream whose first byte is there."""
        exchange = Exchange(replica, num_tokens)
        try:
            await exchange.begin(self._client, path, content)
            kind = exchange.headers.get("content-type", "application/json")
            if kind.startswith("text/event-stream"):
                return EventStream(self._relay(exchange), closing=exchange)
            whole = exchange.first + b"".join([chunk async for chunk in exchange.rest()])
        except BaseException as error:  # also when the client left
            await exchange.aclose()
            if isinstance(error, ReplicaFailed):
                self._bury(replica)
            raise
        await exchange.aclose()
        kept = {k: v for k, v in exchange.headers.items() if k == "retry-after"}
        return Response(whole, exchange.status, kept, kind)

    async def _relay(self, exchange: Exchange) -> AsyncIterator[bytes]:
        yield exchange.first
        try:
            async for chunk in exchange.rest():
                yield chunk
        except ReplicaFailed as error:
            self.metrics.count("lost")
            self._bury(exchange.replica)
            message = f"The replica failed in the middle of its answer: {error}"
            yield event(error_body(502, message)).encode()

    def _bury(self, replica: BackendReplica) -> None:
        """A replica has died, and its cache with it. A health check may find it alive again."""
        if replica.alive:
            replica.die()
            if self.feed is not None:
                self.feed.forget(replica.index)
            if lost := getattr(self.policy, "lost", None):
                lost(replica.index)


def _parse(content: bytes) -> dict[str, Any]:
    """The body as far as it is one: what is wrong with it, the replica will say."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
