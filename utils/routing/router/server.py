"""Our router behind HTTP, in a thread of this process: the policy can be any object in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Request, Response

from utils.processes.server import HOST, listener
from utils.routing.fleet.real_routers import require_live
from utils.routing.fleet.replicas import Replicas
from utils.routing.prefix_index import KVIndex
from utils.routing.router.block_names import EventNames
from utils.routing.router.event_feed import EventFeed, Listener
from utils.routing.router.router import Policy, Router, Tokenize
from utils.serving.api_server import MAX_BODY_BYTES
from utils.serving.http.guard import guard
from utils.serving.http.tools import ClientLeft, error_response, while_connected
from utils.serving.scrape import Reading, parse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PATHS = ("/v1/completions", "/v1/chat/completions")
START_PATIENCE = 10.0  # seconds


def build_router_app(router: Router) -> FastAPI:
    """A router as an application that uvicorn can run."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        checking = asyncio.create_task(router.check_health())
        yield
        checking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await checking
        await router.aclose()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    guard(app, MAX_BODY_BYTES)

    @app.get("/health")
    async def health() -> Response:
        if any(replica.alive for replica in router.replicas):
            return Response()
        return error_response(503, "No replica is alive.")

    @app.get("/metrics")
    async def metrics() -> Response:
        text = router.metrics.text(router.replicas)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> Response:
        return await router.models()

    async def forward(http: Request) -> Response:
        content = await http.body()
        return await while_connected(
            http, router.forward(http.url.path, content, dict(http.headers))
        )

    for path in PATHS:
        app.post(path)(forward)

    @app.exception_handler(ClientLeft)
    async def gone(http: Request, error: ClientLeft) -> Response:
        return Response(status_code=499)  # nobody reads it

    return app


class RouterServer:
    """A router that listens on the loopback interface. Use it in a `with` block, or `stop` it.

    Args:
        router: nobody else may use it from now on.
        port: None takes a free one.

    Raises:
        PortInUse: the port is taken.
    """

    def __init__(self, router: Router, port: int | None = None) -> None:
        self.router = router
        self._socket = listener(port or 0)
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            build_router_app(router), log_level="error", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="router", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_PATIENCE
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def metrics(self) -> Reading:
        """What the router has counted."""
        return parse(self.router.metrics.text(self.router.replicas))

    def stop(self) -> None:
        """End the router; the replicas stay. Does nothing the second time."""
        self._server.should_exit = True
        self._thread.join(START_PATIENCE)
        self._socket.close()

    def __enter__(self) -> RouterServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def our_router(
    policy: Policy,
    replicas: Replicas | Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    index: KVIndex | None = None,
    listeners: Sequence[Listener] | None = None,
    port: int | None = None,
    **options: Any,
) -> RouterServer:
    """Start our router in front of replicas.

    Args:
        policy: of `policies`, `prefix_policies`, or your own.
        replicas: servers, or their URLs.
        tokenizer: the model's; without it no policy can look at prefixes.
        index: is kept true by the replicas' KV events. None: nobody listens to them.
        listeners: hear the events in place of `index`, one listener for each replica.
        options: of `Router`.

    Raises:
        NoReplicaAnswers, PortInUse, ValueError: see `require_live`, `RouterServer`, `EventFeed`.
    """
    urls = replicas.urls if isinstance(replicas, Replicas) else list(replicas)
    require_live(urls)
    if index is not None:
        listeners = [EventNames(index, i) for i in range(len(urls))]
    if isinstance(replicas, Replicas):
        options = {"block_size": replicas.block_size} | options
        if listeners is not None:
            options["feed"] = EventFeed(listeners, urls, replicas.events, replicas.replays)
    elif listeners is not None:
        raise ValueError("KV events need `Replicas`, which know where they are published.")
    tokenize = None if tokenizer is None else prompt_tokens(tokenizer)
    return RouterServer(Router(policy, urls, tokenize=tokenize, **options), port)


def prompt_tokens(tokenizer: PreTrainedTokenizerBase) -> Tokenize:
    """What tokenizes a request's body as the servers do; of several prompts, the first."""

    def tokens(body: dict[str, Any]) -> Sequence[int]:
        if "messages" in body:
            text = tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
            return tokenizer.encode(str(text), add_special_tokens=False)
        prompt = body["prompt"]
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    return tokens
