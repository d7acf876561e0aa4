"""An OpenAI-compatible HTTP server on the course's engine.

A client's body comes in, is checked, and becomes requests of the engine; their answers go back,
whole or as they grow. Paths and fields are those of OpenAI's API, and of vLLM's server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from utils.engine import LLMEngine
from utils.engine.input_processor import check_salt
from utils.engine.output_processor import RequestState
from utils.processes.server import HOST
from utils.serving.answers import Formatter
from utils.serving.async_engine import AsyncLLM
from utils.serving.http.errors import add_error_handlers
from utils.serving.http.guard import guard
from utils.serving.http.tools import ErrorResponse, EventStream, while_connected
from utils.serving.metrics import ServerMetrics
from utils.serving.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest

MAX_BODY_BYTES = 1 << 20  # a million characters: far more than any prompt that fits
MAX_QUEUED = 256
NUM_COMPILERS = 2  # threads for requests with a schema; it may have to be compiled
RENDERED_PARAMS = (
    "max_tokens",
    "min_tokens",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
)

# What /openapi.json says of errors, instead of the framework's 422, and of streams.
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request's fault; the message says why."},
    "5XX": {"model": ErrorResponse, "description": "The server's; 503 if it is full."},
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An answer, or events with its pieces.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def build_app(
    llm_engine: LLMEngine,
    model_name: str,
    max_num_queued_reqs: int | None = MAX_QUEUED,
    max_body_bytes: int = MAX_BODY_BYTES,
    enable_scale_out: bool = False,
    host: str = HOST,
) -> FastAPI:
    """The server, as an application that uvicorn can run.

    Args:
        llm_engine: nobody else may use it from now on.
        model_name: what clients call the model.
        max_num_queued_reqs: the most requests at a time; more get status 503. None: no limit.
        max_body_bytes: the largest body of a request; larger ones get status 413.
        enable_scale_out: also say how a request is tokenized, without answering it. A router needs
            that to compare a prompt with the blocks that an engine has.
        host: the address that it listens on.
    """
    metrics = ServerMetrics(model_name)
    engine = AsyncLLM(llm_engine, metrics, max_num_queued_reqs)
    inputs, max_model_len = llm_engine.inputs, llm_engine.config.max_model_len

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.shutdown()

    # FastAPI's pages /docs and /redoc load scripts from elsewhere. /openapi.json is ours.
    app = FastAPI(title="From KV Cache to vLLM", lifespan=lifespan, docs_url=None, redoc_url=None)
    guard(app, max_body_bytes, host)
    app.state.engine = engine
    add_error_handlers(app)

    @app.get("/health", response_class=Response, responses=ERRORS)
    async def health() -> Response:
        engine.check_health()
        return Response()

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        # This runs in the thread of the event loop, whose time it is.
        metrics.observe_http_cpu(time.thread_time())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {
            "id": model_name,
            "object": "model",
            "created": started,
            "owned_by": "course",
            "max_model_len": max_model_len,
        }
        return {"object": "list", "data": [card]}

    @app.post("/v1/completions", responses=ERRORS | EVENTS)
    async def completions(body: CompletionRequest, http: Request) -> Any:
        return await answer(body, http, inputs.from_prompts, body.prompts)

    @app.post("/v1/chat/completions", responses=ERRORS | EVENTS)
    async def chat_completions(body: ChatCompletionRequest, http: Request) -> Any:
        return await answer(body, http, inputs.from_conversations, body.conversations)

    if enable_scale_out:

        @app.post("/v1/completions/render", responses=ERRORS)
        async def render_completion(body: CompletionRequest, http: Request) -> list[dict[str, Any]]:
            return rendered(body, await prepare(body, http, inputs.from_prompts, body.prompts))

        @app.post("/v1/chat/completions/render", responses=ERRORS)
        async def render_chat_completion(
            body: ChatCompletionRequest, http: Request
        ) -> dict[str, Any]:
            made = await prepare(body, http, inputs.from_conversations, body.conversations)
            return rendered(body, made)[0]

    async def prepare(
        body: GenerationRequest, http: Request, make: Any, prompts: Callable[[], list[Any]]
    ) -> list[RequestState]:
        """Checked requests for the engine, which have not been queued."""
        if body.model not in (None, model_name):
            raise HTTPException(
                404, f"The model {body.model!r} does not exist. This server has {model_name!r}."
            )
        with bad_request(), engine.room_for(len(given := prompts())):
            # Tokenizing a long prompt takes a while, and others want to be heard meanwhile.
            params = body.to_sampling_params()
            # Nor shall they wait for those whose schemas are compiled.
            pool = None if params.structured_outputs is None else compilers
            made = loop().run_in_executor(pool, make, given, params)
            requests = await while_connected(http, made)
            check_room(requests, body, max_model_len)
            check_salt("", body.cache_salt)
        return requests

    async def answer(
        body: GenerationRequest, http: Request, make: Any, prompts: Callable[[], list[Any]]
    ) -> Any:
        requests = await prepare(body, http, make, prompts)
        for member in (member.request for state in requests for member in state.family):
            member.priority, member.cache_salt = body.priority, body.cache_salt
        with bad_request():
            answers = engine.generate(requests)
        formatter = Formatter(body, model_name, inputs.tokenizer)
        if body.stream:
            return EventStream(formatter.pieces(answers), closing=answers)
        async with aclosing(answers):
            return await while_connected(http, formatter.whole(answers))

    started, loop = int(time.time()), asyncio.get_running_loop
    compilers = ThreadPoolExecutor(NUM_COMPILERS)
    return app


def rendered(body: GenerationRequest, requests: list[RequestState]) -> list[dict[str, Any]]:
    """What a request is for the engine, in the words of vLLM's `GenerateRequest`."""
    params = body.model_dump(include=set(RENDERED_PARAMS), exclude_none=True)
    return [
        {
            "request_id": f"render-{request.request_id}",
            "token_ids": request.prompt_token_ids,
            "sampling_params": params,
            "model": body.model,
            "stream": body.stream,
            "cache_salt": body.cache_salt,
            "priority": body.priority,
        }
        for request in requests
    ]


def check_room(requests: list[RequestState], body: GenerationRequest, max_model_len: int) -> None:
    """Refuse an answer that is longer than what is left. (The engine alone would cut it short.)"""
    longest = max(len(request.prompt_token_ids) for request in requests)
    if body.max_tokens is not None and longest + body.max_tokens > max_model_len:
        raise ValueError(
            # Clients know this error by vLLM's words.
            f"This model's maximum context length is {max_model_len} tokens. The prompt has "
            f"{longest} tokens and max_tokens is {body.max_tokens}. Ask for less."
        )


@contextmanager
def bad_request() -> Iterator[None]:
    """What the engine's own checks refuse is the client's mistake."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
