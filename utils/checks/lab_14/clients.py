"""Clients, a pretended engine, and the learner's loop between them: exercise 4.

The engine's step ends when the play says so. After each event everybody goes on until all wait.
Then it is seen who is in the engine, whether a step runs, and what each client has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.lab.story import Told
from utils.checks.kit.patience import patience_of
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_14.one_loop import OneLoop, outputs_of
from utils.serving.mailbox import EngineDeadError

Step = tuple[Any, ...]
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
NOBODY = 7  # a mask that leaves out all
CROWD, MOST_KEPT = 15, 3  # clients one after the other; what may be kept of them
CROWD_IDS = {f"crowd {number:02}" for number in range(CROWD)}
FAILURES = (RuntimeError, ValueError, MemoryError)  # what a step may raise
OUR_ERRORS = ("Request id", "params", "out of memory")  # how their texts begin
DOES = {  # a client, and what that is called
    "cancel": "leaves (its task is cancelled)",
    "close": "will leave at its next output (`aclose`)",
    "pause": "reads one more output, then pauses",
    "resume": "goes on reading",
}
HOW = {"slow": ", reads one output, then pauses", "late": ", and doesn't read yet"}
# An answer is finished, but not read yet, and a step fails that has nothing to do with it.
UNREAD: tuple[Step, ...] = (
    *(("come", "d", 2, "slow"), ("step", 0), ("step", 0)),
    *(("come", "e", 2, ""), ("fail", 0)),
)
WAITS, LEFT, GOES_ON = "waits for more", "has left", "goes on although it was cancelled"


@dataclass(frozen=True)
class Output:
    """A request's answer so far: letters, counted on from the prompt's number."""

    request_id: str
    text: str
    finished: bool


@dataclass(frozen=True)
class Said:
    """What is compared, and words that say more."""

    value: Any
    words: str = field(compare=False)

    def __str__(self) -> str:
        return self.words


class PretendedEngine:
    """Notes a call that is not allowed. A step ends when the play says so."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}  # [prompt, max_tokens, tokens so far]
        self.stepping: asyncio.Future[list[Output]] | None = None
        self.over = False  # the server has stopped; the thread may be in a step still
        self.misused: tuple[str, str] | None = None  # first: the clause, and what was called

    def _touch(self, what: str) -> None:
        clause = "after the end" if self.over else "during a step" if self.stepping else ""
        if what == "step" and not self.held:
            clause = clause or "empty step"
        if clause and self.misused is None:
            self.misused = clause, f"`{what}`"

    def add_request(self, request_id: str, prompt: int, params: int) -> None:
        self._touch("add_request")
        if request_id in self.held:
            raise ValueError(f"Request id {request_id!r} is in use")
        if params < 1:
            raise TypeError("params must be at least 1")
        self.held[request_id] = [prompt, params, 0]

    def abort_request(self, request_id: str) -> None:
        self._touch("abort_request")
        self.held.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.held)

    async def step(self) -> list[Output]:
        self._touch("step")
        self.stepping = asyncio.get_running_loop().create_future()
        return await self.stepping

    def end_step(self, mask: int) -> None:
        """Each request gets a token, but those of the clients that `mask` leaves out."""
        outputs = []
        for request_id, held in list(self.held.items()):
            prompt, most, _ = held
            if mask >> prompt % 3 & 1:
                continue
            held[2] += 1
            text = "".join(ALPHABET[(prompt + i) % 26] for i in range(held[2]))
            outputs.append(Output(request_id, text, held[2] == most))
            if outputs[-1].finished:
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

    def __init__(self, number: int, loop: OneLoop, llm: Any, request_id: str, tokens: int) -> None:
        self.number, self.request_id = number, request_id
        self.read: list[str] = []
        self.late = self.slow = False  # has not begun to read; has let outputs wait
        self.closes = self.cancelled = False
        self.sure: int | None = None  # so much had been read when it was slow
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.task = loop.start(self.run(llm, tokens))

    async def run(self, llm: Any, tokens: int) -> None:
        outputs = outputs_of(llm.generate, self.request_id, self.number, tokens)
        async with aclosing(outputs):
            if self.late:
                await self.go_on.wait()
            async for output in outputs:
                if not isinstance(output, Output):
                    raise Mismatch(
                        f"`generate` yields a {type(output).__name__}, not an engine's output.",
                        look="Yield the outputs as the engine gave them, and raise the errors.",
                    )
                self.read.append(output.text + "." * output.finished)
                await self.go_on.wait()
                if self.closes:
                    return

    @property
    def gone(self) -> bool:
        return self.task.done()

    def pause(self, late: bool = False) -> None:
        self.go_on.clear()
        self.late, self.slow = late, True

    def resume(self) -> None:
        if not self.go_on.is_set():
            self.sure = len(self.read)
            self.go_on.set()

    def cancel(self) -> None:
        self.task.cancel()
        self.cancelled = True

    def close(self) -> None:
        self.closes = True
        self.go_on.set()

    def end(self) -> tuple[str, Any]:
        """The kind of end, and the end in words or as `Raised`."""
        if not self.task.done():
            self.sure = None
            return "", WAITS
        if self.task.cancelled():
            return "", LEFT
        error = self.task.exception()
        if error is None or (self.closes and "GeneratorExit" not in str(error)):
            last = "has come to the end"
            return "", LEFT if self.closes else GOES_ON if self.cancelled else last
        if isinstance(error, EngineDeadError):
            return "dead", "gets an EngineDeadError"
        if str(error).startswith(OUR_ERRORS):
            return "error", f"gets a {type(error).__name__}: {error}"
        return "", attempt(self.task.result)  # an error of the learner's code, or an empty stub


def draw_story(c: Choices) -> Told:
    """What happens around a loop, whose `run` begins at once or a little later."""

    def part() -> list[Step]:
        if c.rarely(20):
            return [*UNREAD]
        kind = c.pick(("step", "come", "step", "come", *3 * ("client",), "fail", "step"))
        if kind == "come":
            tokens = c.pick((2, 1, 3, 5, 2, 0)[: 5 + c.rarely(3)])
            how = c.pick(("", "", "", "slow", "late"))
            return [(kind, c.pick(("a", "b", "A", "a", "b ")), tokens, how)]
        if kind == "client":
            return [(kind, c.integer(0, 3), c.pick((*DOES, "pause", "resume")))]
        count = c.pick((1, 1, 2, 3)) if kind == "step" else 1
        return count * [(kind, c.pick((0, 0, 0, 1, 2, NOBODY)))]

    steps = [step for steps in c.some(part, 1, 16) for step in steps]
    start = c.integer(0, 2) if c.rarely(3) else 0
    steps.insert(min(start, len(steps)), ("start",))
    if start == 0 and c.rarely(10):
        steps.insert(1, ("crowd",))
    steps.append(("all_resume",))
    if c.rarely(2):
        steps += [("stop",), *c.some(lambda: ("come", "d", 2, ""), 0, 1)]
    return Told(None, tuple((kind, tuple(args)) for kind, *args in steps), "a pretended engine")


def play(stage: Stage, llm_class: Any, story: Told) -> None:
    """Tell a story to the learner's class."""
    loop, engine = OneLoop(), PretendedEngine()
    try:
        with patience_of(6):
            _Scene(stage, loop, engine, llm_class).tell(story)
    finally:
        engine.over = True
        attempt(loop.close)


def num_kept(llm: Any) -> int:
    """How many items there are in an object's lists, dictionaries and so on."""
    values = getattr(llm, "__dict__", {}).values()
    return sum(len(value) for value in values if isinstance(value, Sized))


class _Scene:
    def __init__(self, stage: Stage, loop: OneLoop, engine: PretendedEngine, cls: Any) -> None:
        self.stage, self.loop, self.engine, self.cls = stage, loop, engine, cls
        self.clients: list[Client] = []
        self.running: asyncio.Task[Any] | None = None
        self.stopped = self.step_ended = False
        # Who left at the output of the last step, just before the next one began, or just after:
        # both are right.
        self.on_the_way: set[int] = set()

    def tell(self, story: Told) -> None:
        async def make() -> Any:
            return self.cls(self.engine)

        making = self.loop.start(make())
        self.stage.do(self.loop.settle)
        self.llm: Any = attempt(making.result) if making.done() else None
        self.stage.see("new", self.llm if isinstance(self.llm, Raised) else "an engine for many")
        for kind, args in story.steps:
            told = getattr(self, f"_{kind}")(*args)
            if told:
                self.stage.step(told)
                self.look()

    def look(self) -> None:
        """Let everybody go on, and see what has become of it."""
        stage, engine = self.stage, self.engine
        present = [client for client in self.clients if not client.gone]
        verdict = stage.do(self.loop.settle)
        if self.step_ended:
            self.on_the_way = {c.number for c in present if c.gone and c.closes}
            self.step_ended = False
            if engine.stepping is not None and engine.held.keys() <= self.held(on_the_way=True):
                engine.end_step(NOBODY)
                attempt(self.loop.settle)
                self.on_the_way = set()
        stage.see("run", self.state_of_run(verdict))
        if engine.misused is not None:
            stage.blame(engine.misused[0], "no such call", engine.misused[1])
        stage.see("asleep", verdict)
        for client in self.clients:
            self.look_at(client)
        if not self.stopped:
            of_clients = {client.request_id for client in self.clients}
            other = sorted(engine.held.keys() - of_clients - CROWD_IDS)
            if other:
                stage.blame("ids", f"an id of {sorted(of_clients)}", other)
            stage.see("left behind", sorted(self.held(gone=True)))
            stage.see("held", sorted(self.held(gone=False)))
            stage.see("stepping", "a step runs" if engine.stepping else "no step runs")

    def state_of_run(self, verdict: Any) -> Any:
        if isinstance(verdict, Raised) or self.running is None or not self.running.done():
            return verdict if isinstance(verdict, Raised) else "goes on"
        ended = None if self.running.cancelled() else attempt(self.running.result)
        return ended if isinstance(ended, Raised) and not self.stopped else "has ended"

    def look_at(self, client: Client) -> None:
        """What a client has read, and how it ended: each kind of fault by a clause of its own."""
        kind, end = client.end()
        if isinstance(end, Raised):
            self.stage.see("dead", end, str)
        # An error may have come before news that were not read.
        read = None if end == LEFT else client.read[: client.sure if kind else None]
        listed = ", ".join(map(repr, read)) if read else "nothing"
        words = f"Client {client.number} has read {listed}, and {end}"
        for clause in ("dead", "error"):
            self.stage.see(clause, Said(end if kind == clause else None, words), str)
        self.stage.see("cancelled", Said(end == GOES_ON, words), str)
        self.stage.see("slow" if client.slow else "outputs", Said((read, end), words), str)

    def held(self, gone: bool = False, on_the_way: bool = False) -> set[str]:
        """The requests in the engine whose clients are there, have gone, or are on the way out."""
        found = set()
        for request_id, (number, *_) in self.engine.held.items():
            leaves = number in self.on_the_way
            left = number >= len(self.clients) or self.clients[number].gone  # all of a crowd have
            if leaves if on_the_way else not leaves and left == gone:
                found.add(request_id)
        return found

    def _start(self) -> str:
        run = self.stage.call(self.llm, "run")
        if not asyncio.iscoroutine(run):
            self.stage.blame("coroutine", "a coroutine", run)
        self.running = self.loop.start(run)
        return "`run` begins"

    def _crowd(self) -> str:
        """The steps of some fail, some read to the end, some leave: are all of them forgotten?"""
        self.stage.step(f"{CROWD} clients come, one after the other, and all are gone again")
        before = num_kept(self.llm)
        for number, name in enumerate(sorted(CROWD_IDS)):
            fails, leaves = number < CROWD / 3, number >= CROWD * 2 / 3
            client = Client(100 + number, self.loop, self.llm, name, 3 if leaves else 2)
            attempt(self.loop.settle)
            self._step(0)
            attempt(self.loop.settle)
            if leaves:
                client.cancel()
                attempt(self.loop.settle)
            self._fail(0) if fails else self._step(0)
            attempt(self.loop.settle)
        self.step_ended = False
        self.look()
        more = num_kept(self.llm) - before
        self.stage.see("forgets", "more than before" if more > MOST_KEPT else "as much as before")
        return ""

    def _come(self, request_id: str, tokens: int, how: str) -> str:
        client = Client(len(self.clients), self.loop, self.llm, request_id, tokens)
        self.clients.append(client)
        told = f"client {client.number} comes with id {request_id!r} and params={tokens}"
        if how:
            client.pause(late=how == "late")
        return told + HOW.get(how, "")

    def _client(self, number: int, does: str) -> str:
        present = [client for client in self.clients if not client.gone]
        if not present:
            return ""
        client = present[number % len(present)]
        if client.closes and does == "pause":
            return ""
        getattr(client, does)()
        return f"client {client.number} {DOES[does]}"

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

    def _fail(self, mask: int) -> str:
        if self.engine.stepping is None:
            return ""
        kind = FAILURES[mask % len(FAILURES)]
        self.engine.fail_step(kind("out of memory"))
        self.step_ended = True
        return f"the step raises {kind.__name__}"

    def _stop(self) -> str:
        if self.running is None:
            return ""
        self.stopped = self.engine.over = True
        self.running.cancel()
        return "`run` is cancelled"
