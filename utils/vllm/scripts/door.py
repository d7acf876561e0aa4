"""A door in front of vLLM. It passes on what clients need, and nothing else.

python door.py --backend http://127.0.0.1:8000 --port 9000
"""

import argparse
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

OPEN = {"/health": "GET", "/v1/models": "GET"}
OPEN |= {"/v1/completions": "POST", "/v1/chat/completions": "POST"}
KEPT = ("authorization", "content-type")  # headers; vLLM still checks the key


def build_app(backend: httpx.AsyncClient) -> FastAPI:
    """A proxy that knows the paths of `OPEN`. FastAPI answers every other path with 404."""
    app = FastAPI(openapi_url=None)

    async def pass_on(request: Request) -> StreamingResponse:
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        asked = backend.build_request(
            request.method, request.url.path, headers=headers, content=await request.body()
        )
        answer = await backend.send(asked, stream=True)
        kind = answer.headers.get("content-type")
        return StreamingResponse(pieces(answer), answer.status_code, media_type=kind)

    for path, method in OPEN.items():
        app.add_api_route(path, pass_on, methods=[method])
    return app


async def pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """What vLLM sends, as it comes."""
    try:
        async for piece in answer.aiter_bytes():
            yield piece
    finally:
        await answer.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    args = parser.parse_args()
    client = httpx.AsyncClient(base_url=args.backend, timeout=None, trust_env=False)
    uvicorn.run(build_app(client), host=args.host, port=args.port, log_level="warning")
