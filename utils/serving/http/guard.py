"""What stands between a server and those who write to it: limits, patience, and a last resort."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from utils.serving.http.tools import error_response

logger = logging.getLogger(__name__)
PATIENCE = 30.0  # seconds for the head of a request, and for its body


def guard(app: FastAPI, max_bytes: int) -> None:
    """Put all of this file's middleware around a server: of what comes, nothing may hurt it."""
    app.add_middleware(LastResort)
    app.add_middleware(BodyLimit, max_bytes=max_bytes)
    app.add_middleware(BodyPatience)
    app.add_middleware(LocalHosts)


class LastResort:
    """Middleware for errors that nobody foresaw: logged here, and told in OpenAI's format."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            if scope["type"] != "http" or begun:
                raise
            logger.exception("A request failed for a reason that nobody foresaw")
            says = f"The server failed: {type(error).__name__}."  # the log has more
            await error_response(500, says)(scope, receive, send)


class BodyLimit:
    """Middleware that refuses bodies of more than `max_bytes`, before they fill the memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.max_bytes:
            await self._refuse()(scope, receive, send)
            return
        await self.app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.max_bytes:
                raise HTTPException(413, self._text())
            return message

        return counted

    def _refuse(self) -> JSONResponse:
        return error_response(413, self._text(), headers={"Connection": "close"})

    def _text(self) -> str:
        return f"The body is larger than {self.max_bytes:,} bytes. Send a shorter prompt."


class BodyPatience:
    """Middleware that waits `PATIENCE` seconds for the body of a request, and no longer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrapped = self._timed(receive) if scope["type"] == "http" else receive
        await self.app(scope, wrapped, send)

    def _timed(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        # None: the body has come; what follows is the goodbye, which may take as long as it likes.
        deadline: float | None = asyncio.get_running_loop().time() + PATIENCE

        async def timed() -> Message:
            nonlocal deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"The body did not come within {PATIENCE:.0f} s."
                ) from None
            if not message.get("more_body"):
                deadline = None
            return message

        return timed


class LocalHosts:
    """Middleware that answers only those who call this machine by a name of its own.

    A page of another origin can let its own name lead here (DNS rebinding), and the browser would
    send it our answers. But it also sends that name, in the header Host. An address is always fine,
    and so is no header at all: HTTP/1.0 has none, and browsers always send one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"host")
            host = None if header is None else header.decode("latin-1")
            if host is not None and not is_local_name(host):
                says = f"This server answers to localhost and to its address, not to {host!r}."
                await error_response(403, says)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def is_local_name(host: str) -> bool:
    """Whether a Host header, with or without a port, is an address, or "localhost"."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class PatientProtocol(HttpToolsProtocol):
    """Closes a connection on which a request does not come in time, and nobody else waits for it.

    Somebody who opens connections and says little could hold all that there are: "slow loris".
    uvicorn itself limits only the time between two requests, and begins anew at each byte. While a
    request is answered, its body is waited for by `BodyPatience`, which can say so. The head comes
    before that; and after it what is left of a body that was not needed for the answer.
    """

    _waiting: asyncio.TimerHandle | None = None
    _is_whole = True  # the request that is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_whole = False
        self._wait()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_whole = True
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_whole:
            self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(PATIENCE, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
