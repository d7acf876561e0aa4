"""A proxy that lets one server read a prompt, and another one write the answer.

To the prefill server goes the request with `max_tokens` 1. When that is answered, the prompt's keys
and values lie in the store, and the whole request goes to the decode server, which finds them there
and streams its answer back. vLLM's own examples of disaggregated prefill do the same.

    python -m utils.disaggregation.proxy --prefill http://127.0.0.1:8001 \\
        --decode http://127.0.0.1:8002 --port 8000
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import HOST, LocalServer, PortInUse, as_options, listener
from utils.serving.http.ending import serve
from utils.serving.http.guard import guard
from utils.serving.http.tools import (
    KEEP_ALIVE,
    ClientLeft,
    EventStream,
    error_body,
    error_response,
    event,
    while_connected,
)

PATHS = ("/v1/completions", "/v1/chat/completions")
PREFILLED_BY = "x-prefilled-by"  # a header of answers: which server read the prompt, or "nobody"
CONNECT_PATIENCE, PATIENCE = 2.0, 300.0  # seconds
MAX_BODY_BYTES = 1 << 20
JSON = "application/json"


class ServersUnreachable(RuntimeError):
    """None of the servers of a kind answers."""


class Pool:
    """Servers of one kind, by turns; one that cannot be reached is passed over."""

    def __init__(self, kind: str, urls: Sequence[str]) -> None:
        self.kind, self.urls = kind, list(urls)
        self._turns = itertools.cycle(range(len(urls)))
        timeout = httpx.Timeout(PATIENCE, connect=CONNECT_PATIENCE)
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE)
        self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def send(self, path: str, body: dict[str, Any]) -> tuple[str, httpx.Response]:
        """Post to the next server that is there: its URL and its response, which is not read yet.

        Raises:
            ServersUnreachable: no server of this kind took the request.
        """
        first = next(self._turns)
        for url in self.urls[first:] + self.urls[:first]:
            request = self._client.build_request("POST", url + path, json=body)
            try:
                return url, await self._client.send(request, stream=True)
            except httpx.TransportError:
                continue
        raise ServersUnreachable(f"No {self.kind} server answers. Tried: {', '.join(self.urls)}.")

    async def close(self) -> None:
        await self._client.aclose()


def build_app(prefill: Sequence[str], decode: Sequence[str], min_prompt: int = 0) -> FastAPI:
    """The proxy as an application that uvicorn can run.

    When no prefill server can be reached, the decode server does all of it: slower, but right. When
    no decode server can be, the answer is status 503.

    Args:
        prefill, decode: URLs of servers.
        min_prompt: shorter prompts go to the decode server alone; in characters of a text, or in
            token ids. Handing over a short prompt costs more than computing it.
    """
    readers, writers = Pool("prefill", prefill), Pool("decode", decode)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await readers.close()
        await writers.close()

    app = FastAPI(lifespan=life, openapi_url=None)
    guard(app, MAX_BODY_BYTES)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    async def answer(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            if not isinstance(body, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            return error_response(400, f"The body of the request is not JSON: {error}.")
        path = request.url.path
        try:
            reader = "nobody"
            if prompt_length(body) >= min_prompt:
                reader, refusal = await while_connected(request, read(path, body))
                if refusal is not None:
                    return refusal
            return await write(request, path, body, {PREFILLED_BY: reader})
        except ServersUnreachable as error:
            return error_response(503, str(error))
        except httpx.TransportError as error:
            return error_response(502, f"A server ended within its answer ({error!r}).")
        except ClientLeft:
            return Response(status_code=499)

    async def read(path: str, body: dict[str, Any]) -> tuple[str, Response | None]:
        """Prefill: who did it, and what a server had against the request."""
        try:
            url, response = await readers.send(path, prefill_body(body))
            async with aclosing(response):
                await response.aread()
        except (ServersUnreachable, httpx.TransportError):
            return "nobody", None
        if 400 <= response.status_code < 500:
            return url, Response(response.content, response.status_code, media_type=JSON)
        return url if response.status_code == 200 else "nobody", None

    async def write(
        request: Request, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> Response:
        """Decode: the answer as it grows, or whole."""
        _, response = await while_connected(request, writers.send(path, body))
        if response.status_code == 200 and body.get("stream"):
            events = relay(response)
            stream = EventStream(events, closing=events)
            stream.headers.update(headers)
            return stream
        async with aclosing(response):
            content = await while_connected(request, response.aread())
        return Response(content, response.status_code, headers, media_type=JSON)

    for path in PATHS:
        app.post(path)(answer)
    return app


async def relay(response: httpx.Response) -> AsyncIterator[str]:
    """What a server sends, as it comes. When it ends too soon, the last event says so."""
    async with aclosing(response):
        try:
            async for text in response.aiter_text():
                yield text
        except httpx.TransportError as error:
            yield event(error_body(502, f"The decode server ended within its answer ({error!r})."))


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The request that makes a server read the prompt, and write one token, which nobody needs."""
    once: dict[str, Any] = {"max_tokens": 1, "stream": False, "n": 1}
    if "max_completion_tokens" in body:
        once["max_completion_tokens"] = 1
    drop = ("stream_options", "min_tokens")
    return {key: value for key, value in body.items() if key not in drop} | once


def prompt_length(body: dict[str, Any]) -> int:
    """Characters or token ids of a request's prompt, without looking closely."""
    prompt = body.get("prompt", body.get("messages", ""))
    return len(prompt) if body.get("prompt") is not None else len(json.dumps(prompt))


def start_proxy(
    prefill: Sequence[str],
    decode: Sequence[str],
    model: str,
    *,
    min_prompt: int = 0,
    port: int | None = None,
    verbose: bool = False,
) -> LocalServer:
    """Start the proxy in a process of its own, which ends with this one.

    Args:
        prefill, decode: URLs of the servers.
        model: under which name they know their model.

    Raises:
        ValueError: there is no server of a kind.
        PortInUse, WorkerError: see `LocalServer`.
    """
    if not prefill or not decode:
        raise ValueError(f"{prefill=}, {decode=}: the proxy needs a server of each kind.")
    options = as_options({"min_prompt": min_prompt})
    command = [
        str(pipeline_python()),
        "-m",
        "utils.disaggregation.proxy",
        "--prefill",
        *prefill,
        "--decode",
        *decode,
        *options,
    ]
    return LocalServer(
        command,
        os.environ | worker_environment(),
        model,
        name="the P/D proxy",
        port=port,
        verbose=verbose,
    )


def main() -> None:
    """Take the port, and serve until somebody says stop."""
    options = argparse.ArgumentParser("python -m utils.disaggregation.proxy")
    options.add_argument("--prefill", nargs="+", required=True, help="URLs of servers")
    options.add_argument("--decode", nargs="+", required=True, help="URLs of servers")
    options.add_argument("--min-prompt", type=int, default=0, help="shorter ones are decoded only")
    options.add_argument("--host", default=HOST, choices=[HOST], help="this machine only")
    options.add_argument("--port", type=int, default=8000)
    args = options.parse_args()
    try:
        socket = listener(args.port, args.host)
    except (PortInUse, ValueError) as error:
        raise SystemExit(str(error)) from error
    serve(build_app(args.prefill, args.decode, args.min_prompt), socket)


if __name__ == "__main__":
    main()
