"""The learner's loop, writer and reader around the course's engine, over HTTP: exercise 7."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request

from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_14.picture import plot_run
from utils.engine import LLM, LLMEngine, SamplingParams
from utils.serving.http.tools import EventStream

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
NUM_TOKENS, LONG, LEAVES_AFTER = 16, 300, 4
PATIENCE_S = 60.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)


class StepsInAThread:
    """The engine, as exercise 4 describes it: `step` is awaited, and nothing may come between."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.steps_now = False
        self.num_tokens: dict[str, int] = {}
        self.in_use: list[tuple[float, int]] = []  # when a step ends, and blocks in use then

    def add_request(self, request_id: str, prompt: str, params: SamplingParams) -> None:
        self._alone("add_request")
        self.engine.add_request(request_id, prompt, params)

    def abort_request(self, request_id: str) -> None:
        self._alone("abort_request")
        self.engine.abort_request(request_id)
        self._note()

    def has_unfinished_requests(self) -> bool:
        return self.engine.has_unfinished_requests()

    async def step(self) -> list[Any]:
        self._alone("step")
        self.steps_now = True
        try:
            outputs = await asyncio.to_thread(self.engine.step)
        finally:
            self.steps_now = False
        self._note()
        for output in outputs:
            self.num_tokens[output.request_id] = len(output.outputs[0].token_ids)
        return outputs

    def _note(self) -> None:
        pool = self.engine.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - pool.get_num_free_blocks()
        self.in_use.append((time.monotonic(), used))

    def _alone(self, what: str) -> None:
        if self.steps_now:
            raise Mismatch(
                f"`{what}` is called while the real engine is in a step.",
                look="Only `run` uses the engine, between two steps.",
            )


@dataclass
class Reader:
    """What a client has read, and when."""

    reader: Any
    events: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.get("text", "") for event in self.events)


def serve(llm_class: Any, write_events: Any, reader_class: Any) -> Passed:
    """Start a server around the learner's parts, and let clients come; one of them leaves."""
    llm = LLM("bundled", max_model_len=512)
    expected = [o.outputs[0].text for o in llm.generate(list(PROMPTS), GREEDY, use_tqdm=False)]
    engine = StepsInAThread(llm.new_engine())
    told: list[Any] = []

    def work() -> None:
        try:
            told.append(asyncio.run(_scene(llm_class, write_events, reader_class, engine)))
        except BaseException as error:
            told.append(error)

    def result() -> Any:
        if isinstance(told[0], BaseException):
            raise told[0]
        return told[0]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not told or isinstance(told[0], TimeoutError):
        raise Mismatch(
            "Some client never gets to the end of its answer, so your server never comes to rest.",
            look="Is there a mailbox that someone waits for, and that nobody fills?",
        )
    clients = call(result, given="five clients over HTTP")
    judge(clients, expected, engine)
    figure, alt = plot_run({name: c.times for name, c in clients.items()}, engine.in_use)
    return Passed(
        f"Your server works. Over HTTP, {len(expected)} clients read at the same time exactly what "
        "`llm.generate` gives. One was refused and heard why. One asked for "
        f"{LONG} tokens and left after {LEAVES_AFTER} events: the engine computed only "
        f"{engine.num_tokens['leaves']} for it, and no block is in use any more.",
        figure,
        alt,
    )


def judge(clients: dict[str, Reader], expected: list[str], engine: StepsInAThread) -> None:
    """Raise `Mismatch` about what the clients have read, or what is left in the engine."""
    for client in clients.values():
        if odd := [event for event in client.events if not isinstance(event, dict)]:
            raise Mismatch(
                "An event isn't a JSON object.", expected='{"text": ...}', got=f"{odd[0]!r}"
            )
    for number, text in enumerate(expected):
        client = clients[f"r{number}"]
        if client.text != text or not client.reader.done:
            raise Mismatch(
                "A client that stayed hasn't read what `llm.generate` gives.",
                input=f"the prompt {PROMPTS[number]!r}",
                expected=repr(text),
                got=repr(client.text) + ("" if client.reader.done else ", and no `[DONE]`"),
                look="The text of an output is the answer so far, and an event holds what is new.",
            )
    refused = clients["too long"].events
    if len(refused) != 1 or "error" not in refused[0]:
        raise Mismatch(
            "A client whose prompt the engine refuses must read one event, with the error.",
            expected="one event with the error",
            got=repr(refused),
            look="`generate` raises what `add_request` raised; `write_events` makes it an event.",
        )
    if len(clients["leaves"].events) < LEAVES_AFTER:
        raise Mismatch(
            "A client that wanted a long answer has read too few events.",
            expected=f"{LEAVES_AFTER} events",
            got=repr(clients["leaves"].events),
        )
    computed, blocks = engine.num_tokens["leaves"], engine.engine.kv_cache_manager.usage
    if computed >= LONG or blocks or engine.has_unfinished_requests():
        raise Mismatch(
            "A client has left, but the engine went on for it.",
            input=f"a client asks for {LONG} tokens, and leaves after {LEAVES_AFTER} events",
            expected="few tokens computed, and no block in use",
            got=f"{computed} tokens computed",
            look="`write_events` closes `outputs`; `generate`, closed, asks for the abort.",
        )


async def _scene(
    llm_class: Any, write_events: Any, reader_class: Any, engine: StepsInAThread
) -> dict[str, Reader]:
    many = llm_class(engine)
    running = asyncio.create_task(many.run())
    app = FastAPI()

    @app.post("/generate")
    async def generate(http: Request) -> EventStream:
        body = await http.json()
        params = SamplingParams(temperature=0.0, max_tokens=body["max_tokens"])
        events = write_events(many.generate(body["id"], body["prompt"], params))
        return EventStream(events, closing=events)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(PATIENCE_S - 10):
                clients = await _clients(listening.getsockname()[1], reader_class)
                await _quiet(engine, running)
            return clients
        finally:
            server.should_exit = True
            running.cancel()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(serving, running, return_exceptions=True), 5)


async def _clients(port: int, reader_class: Any) -> dict[str, Reader]:
    wishes = {f"r{number}": (prompt, NUM_TOKENS) for number, prompt in enumerate(PROMPTS)}
    wishes |= {"leaves": ("Once there was a king who", LONG), "too long": ("again " * 600, 1)}
    clients = {name: Reader(reader_class()) for name in wishes}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:

        async def read(name: str, prompt: str, max_tokens: int) -> None:
            client = clients[name]
            body = {"id": name, "prompt": prompt, "max_tokens": max_tokens}
            async with (
                http.stream("POST", "/generate", json=body) as response,
                aclosing(_raw(response)) as pieces,
            ):
                async for piece in pieces:
                    for text in client.reader.feed(piece):
                        client.events.append(json.loads(text))
                        client.times.append(time.monotonic())
                    if name == "leaves" and len(client.events) >= LEAVES_AFTER:
                        return

        await asyncio.gather(*(read(name, *wish) for name, wish in wishes.items()))
    return clients


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
