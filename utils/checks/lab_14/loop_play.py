"""Clients, a pretended engine, and the learner's loop between them: exercise 4.

The engine's step ends when the play says so. After each event everybody goes on until all wait.
Then it is seen who is in the engine, whether a step runs, and what each client has read.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.patience import patience_of
from utils.checks.lab_14.one_loop import OneLoop
from utils.serving.mailbox import EngineDeadError

Step = tuple[Any, ...]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NOBODY = 7  # a mask that leaves out all


@dataclass(frozen=True)
class Params:
    """As many tokens as the answer shall have."""

    max_tokens: int


@dataclass(frozen=True)
class Output:
    """A request's answer so far: letters, counted on from the prompt's number."""

    request_id: str
    text: str
    finished: bool


@dataclass(frozen=True)
class Story:
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "clients of a pretended engine"


class PretendedEngine:
    """Refuses to be touched while it steps. A step ends when the play says so."""

    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {}  # [prompt, params, tokens so far]
        self.stepping: asyncio.Future[list[Output]] | None = None
        self.over = False  # the server has stopped; the thread may be in a step still
        self.faults: list[str] = []

    def _touch(self, what: str) -> None:
        if self.over:
            self.faults.append(f"`{what}` after `run` had ended")
        elif self.stepping is not None:
            self.faults.append(f"`{what}` while a step runs")

    def add_request(self, request_id: str, prompt: str, params: Params) -> None:
        self._touch("add_request")
        if request_id in self.held:
            raise ValueError(f"Request id {request_id!r} is in use.")
        if params.max_tokens < 1:
            raise TypeError("max_tokens must be at least 1.")
        self.held[request_id] = [prompt, params, 0]

    def abort_request(self, request_id: str) -> None:
        self._touch("abort_request")
        self.held.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.held)

    async def step(self) -> list[Output]:
        self._touch("step")
        if not self.held:
            self.faults.append("`step` though the engine holds no request")
        self.stepping = asyncio.get_running_loop().create_future()
        return await self.stepping

    def end_step(self, mask: int) -> None:
        """Each request gets a token, but those of the clients that `mask` leaves out."""
        outputs = []
        for request_id, held in list(self.held.items()):
            prompt, params, _ = held
            if mask >> prompt % 3 & 1:
                continue
            held[2] += 1
            text = "".join(ALPHABET[(prompt + i) % 26] for i in range(held[2]))
            finished = held[2] == params.max_tokens
            outputs.append(Output(request_id, text, finished))
            if finished:
                del self.held[request_id]
        self._end().set_result(outputs)

    def fail_step(self, error: Exception) -> None:
        self.held.clear()
        self._end().set_exception(error)

    def _end(self) -> asyncio.Future[Any]:
        assert self.stepping is not None
        ended, self.stepping = self.stepping, None
        return ended


class Client:
    """Reads one answer, unless it leaves."""

    def __init__(
        self, number: int, loop: OneLoop, llm: Any, request_id: str, tokens: int, late: bool
    ) -> None:
        self.number, self.loop, self.request_id = number, loop, request_id
        self.read: list[str] = []
        self.end = "reads"
        self.leaving, self.late = False, late
        self.sure: int | None = None  # so much had been read when it was slow
        self.go_on = asyncio.Event()
        if not late:
            self.go_on.set()
        self.task = loop.start(self.run(llm, tokens))

    async def run(self, llm: Any, tokens: int) -> None:
        outputs = llm.generate(self.request_id, self.number, Params(tokens))
        async with aclosing(outputs):
            if self.late:  # has called `generate`, and does not read yet
                await self.go_on.wait()
            async for output in outputs:
                self.read.append(output.text + "." * output.finished)
                await self.go_on.wait()
                if self.leaving:
                    return

    def pause(self) -> None:
        self.go_on.clear()

    def resume(self) -> None:
        if not self.go_on.is_set():
            self.sure = len(self.read)
            self.go_on.set()

    def state(self) -> Any:
        """What was read, and how it ended. An error may have come before unread news."""
        if not self.task.done():
            self.sure = None
            return self.read, "reads"
        if self.task.cancelled() or self.leaving:
            return "left"
        error = self.task.exception()
        if error is None:
            return self.read, "the end"
        if isinstance(error, NotImplementedError):
            return attempt(self.task.result)
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, EngineDeadError):
            told = "EngineDeadError"
        return self.read[: self.sure], told


def draw_story(c: Choices) -> Story:
    def part() -> list[Step]:
        kind = c.pick(("step", "come", "step", "come", "leave", "pause", "resume", "fail", "step"))
        if kind == "come":
            tokens = c.pick((2, 1, 3, 5, 2, 0)[: 5 + c.rarely(3)])
            how = c.pick(("", "", "", "slow", "late"))
            return [(kind, c.pick(("a", "b", "c", "a")), tokens, how)]
        if kind in ("leave", "pause", "resume"):
            return [(kind, c.integer(0, 3), c.rarely(2))]
        count = c.pick((1, 1, 2, 3)) if kind == "step" else 1
        return count * [(kind, c.pick((0, 0, 0, 1, 2, 7)))]

    steps = [step for steps in c.some(part, 1, 16) for step in steps]
    start = c.integer(0, 2) if c.rarely(3) else 0
    steps.insert(min(start, len(steps)), ("start", 0))
    steps.append(("all_resume",))
    if c.rarely(2):
        steps += [("stop", 0), *c.some(lambda: ("come", "d", 2, ""), 0, 1)]
    return Story(tuple(steps))


def play(stage: Stage, llm_class: Any, story: Story) -> None:
    loop, engine = OneLoop(), PretendedEngine()
    try:
        with patience_of(6):
            _Scene(stage, loop, engine, llm_class).tell(story)
    finally:
        engine.over = True
        attempt(loop.close)


class _Scene:
    def __init__(self, stage: Stage, loop: OneLoop, engine: Any, llm_class: Any) -> None:
        self.stage, self.loop, self.engine = stage, loop, engine
        self.llm_class = llm_class
        self.clients: list[Client] = []
        self.running: asyncio.Task[Any] | None = None
        self.stopped = self.step_ended = False
        # Who left at the output of the last step, just before the next one began, or just after:
        # both are right.
        self.on_the_way: set[int] = set()

    def tell(self, story: Story) -> None:
        async def make() -> Any:
            return self.llm_class(self.engine)

        making = self.loop.start(make())
        self.stage.do(self.loop.settle)
        self.llm: Any = attempt(making.result) if making.done() else None
        self.stage.see("new", self.llm if isinstance(self.llm, Raised) else "an engine for many")
        for kind, *args in story.steps:
            told = getattr(self, f"_{kind}")(*args)
            if told:
                self.stage.step(told)
                self.look()

    def look(self) -> None:
        """Let everybody go on, and see what has become of it."""
        stage, engine = self.stage, self.engine
        present = [client for client in self.clients if not client.task.done()]
        verdict = stage.do(self.loop.settle)
        if self.step_ended:
            self.on_the_way = {c.number for c in present if c.task.done() and c.leaving}
            self.step_ended = False
            if engine.stepping is not None and not self.held():
                engine.end_step(NOBODY)
                attempt(self.loop.settle)
                self.on_the_way = set()
        if not isinstance(verdict, Raised) and self.running is not None and self.running.done():
            cancelled = self.running.cancelled()
            ended = "ended" if cancelled else attempt(self.running.result)
            stage.see("run", ended if isinstance(ended, Raised) and not self.stopped else "ended")
        else:
            stage.see("run", verdict if isinstance(verdict, Raised) else "runs")
        stage.see("touched", "; ".join(engine.faults[:1]) or "nothing")
        stage.see("asleep", verdict)
        for client in self.clients:
            stage.see("read", client.state(), _told)
        if not self.stopped:
            stage.see("held", self.held())
            stage.see("stepping", "a step" if engine.stepping else "no step")

    def held(self) -> list[str]:
        """The requests in the engine whose clients are there."""
        held = self.engine.held.items()
        return [request_id for request_id, job in held if job[0] not in self.on_the_way]

    def _start(self, _: int) -> str:
        self.running = self.loop.start(self.llm.run())
        return "`run` begins"

    def _come(self, request_id: str, tokens: int, how: str) -> str:
        number = len(self.clients)
        client = Client(number, self.loop, self.llm, request_id, tokens, how == "late")
        self.clients.append(client)
        told = f"client {number} comes with id {request_id!r} and max_tokens={tokens}"
        if how == "slow":
            client.pause()
            told += ", reads one output, then pauses"
        return told + ", and does not read yet" * (how == "late")

    def _leave(self, number: int, closes: bool) -> str:
        client = self._present(number)
        if client is None:
            return ""
        if closes:
            client.leaving = True
            client.go_on.set()
            return f"client {client.number} will leave at its next output (`aclose`)"
        client.task.cancel()
        client.leaving = True
        return f"client {client.number} leaves (its task is cancelled)"

    def _pause(self, number: int, _: bool) -> str:
        client = self._present(number)
        if client is None or client.leaving:
            return ""
        client.pause()
        return f"client {client.number} reads one more output, then pauses"

    def _resume(self, number: int, _: bool) -> str:
        client = self._present(number)
        if client is None:
            return ""
        client.resume()
        return f"client {client.number} goes on reading"

    def _all_resume(self) -> str:
        for client in self.clients:
            client.resume()
        return "all go on reading"

    def _step(self, mask: int) -> str:
        if self.engine.stepping is None:
            return ""
        self.engine.end_step(mask)
        self.step_ended = True
        return "the step ends"

    def _fail(self, _: int) -> str:
        if self.engine.stepping is None:
            return ""
        self.engine.fail_step(RuntimeError("out of memory"))
        self.step_ended = True
        return "the step raises RuntimeError"

    def _stop(self, _: int) -> str:
        if self.running is None:
            return ""
        self.stopped = self.engine.over = True
        self.running.cancel()
        return "`run` is cancelled"

    def _present(self, number: int) -> Client | None:
        present = [client for client in self.clients if not client.task.done()]
        return present[number % len(present)] if present else None


def _told(state: Any) -> str:
    if not isinstance(state, tuple):
        return str(state)
    read, end = state
    return f"{', '.join(map(repr, read)) or 'nothing'}, then {end}"
