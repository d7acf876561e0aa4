"""What a server for long answers needs from HTTP: events, goodbyes, and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
# Seconds after which our clients close an idle connection. Servers do so after 5 s, and httpx by
# default just then, too: a request that is sent in that moment is lost. So the client goes first.
KEEP_ALIVE = 2.0
DONE = "data: [DONE]\n\n"  # the last event of a stream, in OpenAI's API


class ClientLeft(Exception):
    """The client has closed the connection. Nobody is there to read a response."""


def event(data: dict[str, Any]) -> str:
    """One server-sent event: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


class EventStream(StreamingResponse):
    """A stream of events. When the client leaves, whoever produces them is told at once.

    Starlette stops iterating then. Without `aclosing` the producer would notice when Python
    collects it, some time.
    """

    def __init__(self, events: AsyncIterator[str | bytes], closing: Any) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._closing):
            await super().__call__(scope, receive, send)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves.

    The body of the request must have been read: whatever else the client sends is thrown away.

    Raises:
        ClientLeft: there is nobody to give the result to.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnect(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ErrorInfo(BaseModel):
    """OpenAI's format of an error; it comes as `{"error": {...}}`."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(BaseModel):
    """What comes with every status from 400 on."""

    error: ErrorInfo


def error_response(
    status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in OpenAI's format."""
    return JSONResponse(error_body(status, message, param), status, headers)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    kinds = {
        400: "BadRequestError",
        404: "NotFoundError",
        413: "BadRequestError",
        503: "ServiceUnavailableError",
    }
    kind = kinds.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    # A message may quote the client, and half of a surrogate pair cannot be sent.
    message = message.encode(errors="backslashreplace").decode()
    return {"error": ErrorInfo(message=message, type=kind, param=param, code=status).model_dump()}
