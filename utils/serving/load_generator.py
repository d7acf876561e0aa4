"""Load for an OpenAI-compatible server, ours or vLLM's: many clients in one event loop.

Open loop: requests come when they come, as from many people who know nothing of each other, however
slow the server is. Closed loop: a fixed number of users, and each sends the next request when the
last one is answered. In a closed loop a slow server slows down its own load.

Schroeder, Wierman, Harchol-Balter, "Open Versus Closed: A Cautionary Tale", NSDI 2006.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx

from utils.serving.load_report import LoadReport, Timing

CHAT = "/v1/chat/completions"
PATIENCE = 120.0  # seconds without a sign of life after which a request has failed

Body = dict[str, Any]


def chat_body(model: str, messages: list[dict[str, str]], max_tokens: int, **extra: Any) -> Body:
    """A greedy chat request of exactly `max_tokens` tokens, streamed, with the counts at the end.

    Without `ignore_eos` the length of the answers, and with it the load, would be up to the model.
    """
    return {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | extra


def poisson_arrivals(rate: float, num_requests: int, seed: int = 0) -> list[float]:
    """When requests come, in seconds, if they come at random: `rate` per second on average.

    The times between them are exponential. The same seed gives the same pattern at every rate, only
    faster or slower, so that two rates differ in nothing else.

    Raises:
        ValueError: the rate is not positive.
    """
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate!r} requests per second.")
    rng = random.Random(seed)
    gaps = [rng.expovariate(1.0) / rate for _ in range(num_requests)]
    return list(itertools.accumulate(gaps))


class LoadGenerator:
    """Sends requests to one server, and takes the time. Use it in an `async with` block.

    Args:
        url: root of the server, such as http://127.0.0.1:8000.
        path: where requests are posted.
        transport: in place of the network, for tests.
    """

    def __init__(
        self, url: str, path: str = CHAT, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._path = path
        # No limit of connections here: a request that waits for one would wait unseen. And each has
        # one of its own, as people have. A server may just be closing one that was used before:
        # llama.cpp's does so once in a hundred times, and the request is lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            base_url=url, timeout=PATIENCE, limits=limits, transport=transport, trust_env=False
        )
        self._begin = 0.0

    async def __aenter__(self) -> LoadGenerator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def open_loop(
        self, bodies: Sequence[Body], times: Sequence[float], connections: int | None = None
    ) -> LoadReport:
        """Send each body at its time, whatever has become of the others.

        Args:
            bodies: one per request.
            times: seconds from now, ascending; `poisson_arrivals` for instance.
            connections: the most requests at a time. The others wait in the client, and their
                latencies say so. None: no limit.
        """
        if len(bodies) != len(times):
            raise ValueError(f"Got {len(bodies)} bodies but {len(times)} times.")
        slot: AbstractAsyncContextManager[Any] = contextlib.nullcontext()
        if connections is not None:
            slot = asyncio.Semaphore(connections)

        async def one(body: Body, intended: float) -> Timing:
            await asyncio.sleep(intended - self._elapsed())
            async with slot:
                return await self._send(body, intended)

        self._begin = _now()
        jobs = [one(body, intended) for body, intended in zip(bodies, times, strict=True)]
        return self._report(await asyncio.gather(*jobs))

    async def closed_loop(self, bodies: Sequence[Body], num_users: int) -> LoadReport:
        """Let `num_users` users send the bodies, each of them one after the other."""
        left = iter(bodies)

        async def user() -> list[Timing]:
            return [await self._send(body, self._elapsed()) for body in left]

        self._begin = _now()
        per_user = await asyncio.gather(*(user() for _ in range(num_users)))
        return self._report(list(itertools.chain(*per_user)))

    async def warm_up(self, bodies: Sequence[Body]) -> None:
        """Send bodies one after the other, and forget how long that took.

        The first requests pay for connections, memory and caches that later ones find ready.

        Raises:
            RuntimeError: a request failed.
        """
        for body in bodies:
            timing = await self._send(body, self._elapsed())
            if not timing.succeeded:
                raise RuntimeError(f"The server cannot be warmed up: {timing.error or 'no token'}")

    async def _send(self, body: Body, intended: float) -> Timing:
        """Send one request, and read its answer to the end."""
        timing = Timing(intended, self._elapsed())
        try:
            async with self._client.stream("POST", self._path, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    timing.error = f"status {response.status_code}: {text[:200]}"
                    return timing
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        self._read(json.loads(line[6:]), timing)
        except httpx.HTTPError as error:
            timing.error = f"{type(error).__name__}: {error}"
        return timing

    def _read(self, data: dict[str, Any], timing: Timing) -> None:
        """Book one event of a stream."""
        if "error" in data:
            timing.error = data["error"]["message"]
        for choice in data.get("choices", ()):
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if text or choice.get("finish_reason"):
                timing.token_times.append(self._elapsed())
                timing.num_tokens += 1  # unless the server knows better, see below
        if usage := data.get("usage"):
            timing.num_tokens = usage["completion_tokens"]
            timing.num_prompt_tokens = usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            timing.num_cached_tokens = details.get("cached_tokens")

    def _report(self, timings: list[Timing]) -> LoadReport:
        timings.sort(key=lambda timing: timing.intended)
        first = timings[0].intended if timings else 0.0
        return LoadReport(timings, self._elapsed() - first)

    def _elapsed(self) -> float:
        """Seconds since the test began."""
        return _now() - self._begin


def _now() -> float:
    return asyncio.get_running_loop().time()
