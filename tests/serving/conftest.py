"""Servers on a tiny model and on the real one, in a thread of the tests' process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.engine.tiny_engines import tiny_llama, tiny_speaker
from utils.engine import LLM, LLMEngine
from utils.pipeline.vllm.local_server import HOST, listener
from utils.serving.api_server import build_app
from utils.serving.async_engine import AsyncLLM
from utils.serving.http.guard import PatientProtocol
from utils.serving.scrape import Reading, scrape

PATIENCE = 30.0  # seconds until something that must happen counts as failed


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it never happened: {what}"
        time.sleep(0.01)


class Served:
    """A server in this process, and what the tests want to know about it."""

    def __init__(self, url: str, engine: AsyncLLM) -> None:
        self.url, self.engine = url, engine
        self.http = httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", **body)

    def metrics(self) -> Reading:
        return scrape(self.url)


@contextmanager
def serve(engine: LLMEngine, **limits: Any) -> Iterator[Served]:
    """Run a server on an engine, and stop it at the end."""
    app = build_app(engine, "tiny", **limits)
    with listener(0) as socket:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", http=PatientProtocol))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        eventually(lambda: server.started, "the server is ready")
        served = Served(f"http://{HOST}:{socket.getsockname()[1]}", app.state.engine)
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
