"""Servers on a tiny model and on the real one, in a thread of the tests' process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.engine.tiny_engines import tiny_llama, tiny_speaker
from tests.serving.waiting import PATIENCE, eventually
from utils.engine import LLM, LLMEngine
from utils.processes.server import HOST, listener
from utils.serving.api_server import build_app
from utils.serving.async_engine import AsyncLLM
from utils.serving.scrape import Reading, scrape


class Served:
    """A server in this process, and what the tests want to know about it."""

    def __init__(self, url: str, engine: AsyncLLM, server: uvicorn.Server) -> None:
        self.url, self.engine, self.server = url, engine, server
        self.http = httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", **body)

    def metrics(self) -> Reading:
        return scrape(self.url, timeout=PATIENCE)

    def ask(self, **body: Any) -> HTTPConnection:
        """Ask for a whole answer, and do not wait for it. Who closes the connection has left."""
        address = self.http.base_url
        connection = HTTPConnection(address.host, address.port or 80, timeout=PATIENCE)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection


@contextmanager
def serve(engine: LLMEngine, **limits: Any) -> Iterator[Served]:
    """Run a server on an engine, and stop it at the end."""
    app = build_app(engine, "tiny", **limits)
    with listener(0) as socket:
        config = uvicorn.Config(app, log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        eventually(lambda: server.started, "the server is ready")
        url = f"http://{HOST}:{socket.getsockname()[1]}"
        served = Served(url, app.state.engine, server)
        try:
            yield served
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            served.http.close()
    assert not thread.is_alive(), "the server does not stop"


def slow_down(engine: LLMEngine, seconds: float) -> None:
    """Let every step of an engine take that much longer."""
    advance = engine.advance

    def slower() -> list:
        time.sleep(seconds)
        return advance()

    engine.advance = slower  # type: ignore[method-assign]


class Steps:
    """Each step of an engine waits until it is allowed. So a test can stop an answer in its middle.

    A step that waits is one in which the engine's thread reads no messages: what others want from
    it, it learns when the step has ended.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._allowed, self._free = threading.Semaphore(0), False
        advance = engine.advance

        def when_allowed() -> list:
            if not self._free:
                assert self._allowed.acquire(timeout=2 * PATIENCE), "nobody allows the next step"
            return advance()

        engine.advance = when_allowed  # type: ignore[method-assign]

    def allow(self, number: int) -> None:
        self._allowed.release(number)

    def allow_all(self) -> None:
        self._free = True
        self._allowed.release()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers and 13 words, w0 to w12."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_llama(folder, seed=3)
    return folder


@pytest.fixture(scope="session")
def speaking_folder(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the course's tokenizer."""
    return tiny_speaker(tmp_path_factory.mktemp("speaking") / "model", model_path)


@pytest.fixture
def tiny(tiny_folder: Path) -> LLM:
    return LLM(tiny_folder, max_num_seqs=4, block_size=4)


@pytest.fixture
def served(tiny: LLM) -> Iterator[Served]:
    with serve(tiny.llm_engine) as server:
        yield server
