"""What stands between a server and those who write to it. It listens on the loopback interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from utils.processes.server import HOST
from utils.serving.http.tools import error_response

# A page of another origin can let its own name lead here (DNS rebinding), and the browser would
# send it our answers. But it also sends that name, in the header Host.
LOCAL = ["localhost", HOST]


def guard(app: FastAPI, max_bytes: int, host: str = HOST) -> None:
    """Answer those only who call this machine by a name of its own, and who do not say too much.

    Args:
        host: the address that the server listens on, another loopback address perhaps.
    """
    app.add_middleware(BodyLimit, max_bytes=max_bytes)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL, host], www_redirect=False)

    @app.exception_handler(Exception)
    async def unforeseen(http: Request, error: Exception) -> Response:
        # uvicorn logs it, with its traceback, and closes the connection: the client must know.
        text = f"The server failed: {type(error).__name__}."
        return error_response(500, text, headers={"Connection": "close"})


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
