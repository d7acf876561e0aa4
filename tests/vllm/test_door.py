"""The door in front of vLLM, and what vLLM's own key leaves open (notebook 18)."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from utils.vllm.scripts.door import OPEN, build_app

KEY = {"Authorization": "Bearer open-sesame"}
PATHS = ["/v1/models", "/v1/completions", "/v1/chat/completions", "/invocations", "/metrics"]


def guarded_server() -> FastAPI:
    """A server that answers on `PATHS`, behind vLLM's middleware for keys."""
    middleware = pytest.importorskip("vllm.entrypoints.serve.middleware.authenticate")
    app = FastAPI()

    async def echo(request: Request) -> StreamingResponse:
        body = await request.body()
        return StreamingResponse(iter([b"heard: ", body]), media_type="text/event-stream")

    for path in [*PATHS, "/health"]:
        app.add_api_route(path, echo, methods=["GET", "POST"])
    app.add_middleware(middleware.AuthenticationMiddleware, tokens=["open-sesame"])
    return app


@pytest.mark.parametrize("path", PATHS)
def test_vllms_key_guards_some_paths_only(path: str) -> None:
    answer = TestClient(guarded_server()).post(path, content=b"hello")
    assert answer.status_code == (401 if path.startswith("/v1") else 200)


def test_the_door_is_open_for_clients_with_a_key_and_for_nobody_else() -> None:
    transport = httpx.ASGITransport(app=guarded_server())
    with TestClient(build_app(httpx.AsyncClient(transport=transport, base_url="http://v"))) as door:
        for path, method in OPEN.items():
            stranger = door.request(method, path, content=b"hello")
            client = door.request(method, path, content=b"hello", headers=KEY)
            assert stranger.status_code == (200 if path == "/health" else 401)
            assert (client.status_code, client.content) == (200, b"heard: hello")
            assert client.headers["content-type"].startswith("text/event-stream")
        for path in ("/invocations", "/metrics", "/openapi.json", "/v1/../invocations"):
            assert door.post(path, content=b"hello", headers=KEY).status_code == 404
