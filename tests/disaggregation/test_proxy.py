"""The P/D proxy before two servers that write down what they are asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.serving.waiting import PATIENCE, eventually
from utils.disaggregation.proxy import (
    MAX_BODY_BYTES,
    PREFILLED_BY,
    build_app,
    prefill_body,
    start_proxy,
)
from utils.disaggregation.vllm_servers import RequestRefused, complete
from utils.processes.server import HOST, listener
from utils.serving.http.tools import event


class Upstream:
    """A server that remembers bodies, and answers with as many words as were asked for."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.left = 0  # clients that left within a stream
        self.slow = 0.0  # seconds between words
        self.may_write: threading.Semaphore | None = None  # by word; None: all at once
        app = FastAPI()

        @app.post("/v1/{kind:path}")
        async def answer(kind: str, request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            if body.get("temperature", 0) < 0:
                return JSONResponse({"error": {"message": "too cold", "code": 400}}, 400)
            if not body.get("stream"):
                text = "word " * body["max_tokens"]
                return JSONResponse({"choices": [{"text": text}], "usage": {"prompt_tokens": 3}})
            return StreamingResponse(self.words(body), media_type="text/event-stream")

        socket = listener(0)
        self.url = f"http://{HOST}:{socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [socket]})
        self.thread.start()

    async def words(self, body: dict[str, Any]) -> AsyncIterator[str]:
        sent = 0
        try:
            for sent in range(1, body["max_tokens"] + 1):
                await asyncio.sleep(self.slow)
                while self.may_write and not self.may_write.acquire(blocking=False):
                    await asyncio.sleep(0.005)
                yield event({"choices": [{"text": "word ", "token_ids": [sent]}]})
                if body.get("prompt") == "break" and sent == 2:
                    raise RuntimeError("the server falls")
            yield "data: [DONE]\n\n"
        finally:
            self.left += sent < body["max_tokens"]

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()


@pytest.fixture
def servers() -> Iterator[tuple[Upstream, Upstream]]:
    pair = Upstream(), Upstream()
    yield pair
    for server in pair:
        server.stop()


@pytest.fixture
def proxy(servers: tuple[Upstream, Upstream]) -> Iterator[httpx.Client]:
    yield from proxied([servers[0].url], [servers[1].url])


def proxied(prefill: list[str], decode: list[str], **options: Any) -> Iterator[httpx.Client]:
    socket = listener(0)
    app = build_app(prefill, decode, **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    url = f"http://{HOST}:{socket.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client
    server.should_exit = server.force_exit = True
    thread.join()


BODY = {"model": "m", "prompt": "some prompt", "max_tokens": 3}


def test_one_reads_with_one_token_and_the_other_one_writes(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    answer = proxy.post("/v1/completions", json=BODY)
    assert answer.json()["choices"][0]["text"] == "word word word "
    assert answer.headers[PREFILLED_BY] == servers[0].url
    assert servers[0].bodies == [BODY | {"max_tokens": 1, "stream": False, "n": 1}]
    assert servers[1].bodies == [BODY]


def test_chat_and_streams_go_through_as_they_come(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    servers[1].may_write = may_write = threading.Semaphore(1)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = []
    with proxy.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers[PREFILLED_BY] == servers[0].url
        for line in answer.iter_lines():
            if line:  # each word is written only when the one before has come: none may wait
                lines.append(line)
                may_write.release()
    assert len(lines) == 5 and lines[-1] == "data: [DONE]"
    assert "stream_options" not in servers[0].bodies[0] and not servers[0].bodies[0]["stream"]


def test_what_a_server_refuses_is_refused(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    answer = proxy.post("/v1/completions", json=BODY | {"temperature": -1})
    assert answer.status_code == 400 and answer.json()["error"]["message"] == "too cold"
    assert servers[1].bodies == []
    answer = proxy.post("/v1/completions", content=b"{no json")
    assert answer.status_code == 400 and "not JSON" in answer.json()["error"]["message"]
    answer = proxy.post("/v1/completions", content=b"[]")
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "BadRequestError"


def test_without_a_prefill_server_the_decode_server_does_all(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    servers[0].stop()
    answer = proxy.post("/v1/completions", json=BODY)
    assert answer.status_code == 200 and answer.headers[PREFILLED_BY] == "nobody"


def test_without_a_decode_server_the_answer_is_503(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    servers[1].stop()
    answer = proxy.post("/v1/completions", json=BODY | {"stream": True})
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "ServiceUnavailableError"
    assert servers[1].url in answer.json()["error"]["message"]


def test_a_dead_server_among_others_is_passed_over(servers: tuple[Upstream, Upstream]) -> None:
    with listener(0) as taken:  # nobody else can listen there, and nobody does
        dead = f"http://{HOST}:{taken.getsockname()[1]}"
        for client in proxied([dead, servers[0].url], [dead, servers[1].url]):
            for _ in range(4):
                answer = client.post("/v1/completions", json=BODY)
                assert answer.status_code == 200
                assert answer.headers[PREFILLED_BY] == servers[0].url


def test_a_server_that_falls_within_a_stream_ends_it_with_an_error(proxy: httpx.Client) -> None:
    body = BODY | {"prompt": "break", "stream": True, "max_tokens": 5}
    lines = [line for line in proxy.post("/v1/completions", json=body).text.splitlines() if line]
    assert len(lines) == 3
    assert "ended within its answer" in json.loads(lines[-1][6:])["error"]["message"]


def test_when_the_client_leaves_the_server_is_told(
    servers: tuple[Upstream, Upstream], proxy: httpx.Client
) -> None:
    servers[1].slow = 0.05
    body = BODY | {"stream": True, "max_tokens": 10**9}
    with proxy.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    eventually(lambda: servers[1].left, "the server stops writing for nobody")


def test_nobody_hurts_it_from_outside(proxy: httpx.Client) -> None:
    """What `guard` puts around every server of the course is around the proxy, too."""
    assert proxy.get("/health", headers={"Host": "evil.example"}).status_code == 400
    assert proxy.get("/docs").status_code == 404  # loads foreign scripts
    assert proxy.post("/v1/completions", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413


def test_short_prompts_are_not_handed_over(servers: tuple[Upstream, Upstream]) -> None:
    for client in proxied([servers[0].url], [servers[1].url], min_prompt=10):
        for prompt, by in (("short", "nobody"), ([1] * 9, "nobody"), ([1] * 10, servers[0].url)):
            answer = client.post("/v1/completions", json=BODY | {"prompt": prompt})
            assert answer.headers[PREFILLED_BY] == by


def test_the_prefill_request_asks_for_one_token_whatever_the_client_said() -> None:
    asked = {"max_completion_tokens": 50, "min_tokens": 5, "n": 3, "stop": ["x"]}
    assert prefill_body(asked) == {
        "max_completion_tokens": 1,
        "max_tokens": 1,
        "n": 1,
        "stop": ["x"],
        "stream": False,
    }


def test_in_a_process_of_its_own(servers: tuple[Upstream, Upstream]) -> None:
    with pytest.raises(ValueError, match="a server of each kind"):
        start_proxy([], [servers[1].url], "m")
    with start_proxy([servers[0].url], [servers[1].url], "m") as proxy:
        answer = complete(proxy, "some prompt", 3)
        assert answer.text == "word word word " and answer.token_ids == [1, 2, 3]
        with pytest.raises(RequestRefused, match=r"status 400.*too cold"):
            complete(proxy, "some prompt", 3, temperature=-1)
        with pytest.raises(RequestRefused, match="ended within its answer"):
            complete(proxy, "break", 5)
    with pytest.raises(RequestRefused, match="does not answer to the end"):
        complete(proxy, "some prompt", 3)
