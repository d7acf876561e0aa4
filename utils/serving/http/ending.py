"""A server process: it serves until a signal, and ends so that nobody is left wondering."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from socket import socket

import uvicorn
from fastapi import FastAPI

LAST_WORDS_S = 10  # for what ending takes: a step of the engine, and the last event of each stream


class _EndingServer(uvicorn.Server):
    """One that tells the application when those in progress have had their time."""

    def __init__(self, config: uvicorn.Config, grace_s: int, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._grace_s, self._end = grace_s, end

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self._grace_s, self._end)
        await super().shutdown(sockets)


def serve(
    app: FastAPI, listening: socket, grace_s: int = 5, end: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT (Ctrl-C) or SIGTERM; the exit code is 128 + the signal's number then.

    After the signal nobody new is let in. Who is being answered has `grace_s` seconds. Then `end`
    is called, which can make what is left fail, so that each client hears of it in words. What
    still goes on `LAST_WORDS_S` seconds later is cut off.
    """
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=grace_s + LAST_WORDS_S
    )
    try:
        _EndingServer(config, grace_s, end).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises the signal again, once all is done
        raise SystemExit(128 + signal.SIGINT) from None
