"""The learner's loop, writer and reader around the course's engine, over HTTP: exercise 6."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request

from utils.checks.kit.runner import Mismatch
from utils.engine import LLM, LLMEngine, SamplingParams
from utils.serving.http.tools import EventStream

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
NUM_TOKENS, LONG, LEAVES_AFTER = 16, 300, 4
PATIENCE_S = 60.0


class StepsInAThread:
    """The engine, as exercise 4 describes it: `step` is awaited, and nothing may come between."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.steps_now = False
        self.num_tokens: dict[str, int] = {}

    def add_request(self, request_id: str, prompt: str, params: SamplingParams) -> None:
        self._alone("add_request")
        self.engine.add_request(request_id, prompt, params)

    def abort_request(self, request_id: str) -> None:
        self._alone("abort_request")
        self.engine.abort_request(request_id)

    def has_unfinished_requests(self) -> bool:
        return self.engine.has_unfinished_requests()

    async def step(self) -> list[Any]:
        self._alone("step")
        self.steps_now = True
        try:
            outputs = await asyncio.to_thread(self.engine.step)
        finally:
            self.steps_now = False
        for output in outputs:
            self.num_tokens[output.request_id] = len(output.outputs[0].token_ids)
        return outputs

    def _alone(self, what: str) -> None:
        if self.steps_now:
            raise Mismatch(
                f"`{what}` is called while the real engine is in a step.",
                look="Only `run` uses the engine, between two steps.",
            )


def serve(llm_class: Any, write_events: Any, reader_class: Any) -> str:
    """Start a server around the learner's parts, and let clients come; one of them leaves."""
    llm = LLM("bundled", max_model_len=512)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    expected = [o.outputs[0].text for o in llm.generate(list(PROMPTS), params, use_tqdm=False)]
    engine = StepsInAThread(llm.new_engine())
    told: list[Any] = []

    def work() -> None:
        try:
            told.append(asyncio.run(_scene(llm_class, write_events, reader_class, engine)))
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not told or isinstance(told[0], TimeoutError):
        raise Mismatch(
            "Your server does not come to an end.",
            look="Does somebody wait for a mailbox that nobody fills?",
        )
    if isinstance(told[0], Mismatch):
        raise told[0]
    if isinstance(told[0], BaseException):
        error = told[0]
        raise Mismatch(f"Behind the real server your code raised {type(error).__name__}: {error}")
    return judge(told[0], expected, engine)


def judge(answers: dict[str, Any], expected: list[str], engine: StepsInAThread) -> str:
    """What the clients have read, and what is left in the engine."""
    for got, _ in answers.values():
        if odd := [piece for piece in got if not isinstance(piece, dict)]:
            raise Mismatch(
                "An event's JSON is no object.",
                expected='{"text": ...}',
                got=repr(odd[0]),
                look="`[DONE]` alone is no JSON.",
            )
    for number, text in enumerate(expected):
        got, done = answers[f"r{number}"]
        if "".join(p.get("text", "") for p in got) != text or not done:
            raise Mismatch(
                "A client that stayed has not read what `llm.generate` gives.",
                input=repr(PROMPTS[number]),
                expected=repr(text),
                got=repr("".join(p.get("text", "") for p in got)) + ("" if done else ", no [DONE]"),
                look="`text` is the answer so far: an event holds what is new.",
            )
    errors = [piece["error"]["message"] for piece in answers["too long"][0] if "error" in piece]
    if len(errors) != 1 or len(answers["too long"][0]) != 1:
        raise Mismatch(
            "A client whose prompt the engine refuses must read one event, with the error.",
            expected="one error event",
            got=repr(answers["too long"][0]),
            look="`generate` raises what `add_request` raised; `write_events` makes it an event.",
        )
    computed = engine.num_tokens["leaves"]
    usage = engine.engine.kv_cache_manager.usage
    if computed >= LONG or usage or engine.has_unfinished_requests():
        raise Mismatch(
            "Who left has not taken the work along.",
            input=f"a client asks for {LONG} tokens, and leaves after {LEAVES_AFTER} events",
            expected="few tokens computed, no block in use",
            got=f"{computed} tokens computed",
            look="`write_events` closes `outputs`; `generate`, closed, asks for the abort.",
        )
    return (
        f"Over HTTP {len(expected)} clients read, at the same time, exactly what `llm.generate` "
        f"gives. One was refused and heard why. Who asked for {LONG} tokens and left early took "
        "the work along, and no block is in use."
    )


async def _scene(
    llm_class: Any, write_events: Any, reader_class: Any, engine: StepsInAThread
) -> dict[str, Any]:
    many = llm_class(engine)
    running = asyncio.create_task(many.run())
    app = FastAPI()

    @app.post("/generate")
    async def generate(http: Request) -> EventStream:
        body = await http.json()
        params = SamplingParams(temperature=0.0, max_tokens=body["max_tokens"])
        outputs = many.generate(body["id"], body["prompt"], params)
        events = write_events(outputs)
        return EventStream(events, closing=events)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            async with asyncio.timeout(PATIENCE_S - 10):
                answers = await _clients(url, reader_class)
                await _quiet(engine, running)
            return answers
        finally:
            server.should_exit = True
            running.cancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(serving, running, return_exceptions=True), 5)


async def _clients(url: str, reader_class: Any) -> dict[str, Any]:
    wishes = {f"r{number}": (prompt, NUM_TOKENS) for number, prompt in enumerate(PROMPTS)}
    wishes |= {"leaves": ("Tell me a long story.", LONG), "too long": ("again " * 600, 1)}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:

        async def client(name: str, prompt: str, max_tokens: int) -> Any:
            reader, read = reader_class(), []
            body = {"id": name, "prompt": prompt, "max_tokens": max_tokens}
            async with (
                http.stream("POST", "/generate", json=body) as response,
                aclosing(_raw(response)) as pieces,
            ):
                async for piece in pieces:
                    read += [json.loads(text) for text in reader.feed(piece)]
                    if name == "leaves" and len(read) >= LEAVES_AFTER:
                        break
            return read, reader.done

        answers = await asyncio.gather(*(client(n, *wish) for n, wish in wishes.items()))
    return dict(zip(wishes, answers, strict=True))


async def _raw(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The bytes of a response, cut where no event ends."""
    async for piece in response.aiter_raw():
        for start in range(0, len(piece), 7):
            yield piece[start : start + 7]


async def _quiet(engine: StepsInAThread, running: asyncio.Task[Any]) -> None:
    """Wait until the engine has nothing to do, or has long worked for nobody."""
    for _ in range(500):
        idle = not engine.has_unfinished_requests() and not engine.steps_now
        if running.done() or (idle and not engine.engine.kv_cache_manager.usage):
            return
        await asyncio.sleep(0.02)
