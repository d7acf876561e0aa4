"""A right loop, loops that are nearly right, and words for what is wrong: exercise 4."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_14.loop_play import draw_story, play
from utils.serving.mailbox import EngineDeadError


class Mailbox:
    """Holds the newest output for one client, or the error that came in its place."""

    def __init__(self) -> None:
        self.news: Any = None
        self.filled = asyncio.Event()

    def put(self, news: Any) -> None:
        self.news = news
        self.filled.set()

    async def take(self) -> Any:
        await self.filled.wait()
        self.filled.clear()
        if isinstance(self.news, Exception):
            raise self.news
        return self.news


class RightLoop:
    """The mail is a list of wishes; each is kept between two steps."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.dead = engine, False
        self.wishes: list[tuple[Any, ...]] = []
        self.wished = asyncio.Event()
        self.owners: dict[str, Mailbox] = {}  # of the requests in the engine
        self.callers: list[Mailbox] = []

    async def run(self) -> None:
        try:
            while True:
                self.grant()
                if self.engine.has_unfinished_requests():
                    await self.step()
                else:
                    await self.idle()
        finally:
            self.dead = True
            self.last_words()

    async def idle(self) -> None:
        await self.wished.wait()

    def last_words(self) -> None:
        for mailbox in self.callers:
            mailbox.put(EngineDeadError("The server has stopped."))

    async def step(self) -> None:
        try:
            outputs = await self.engine.step()
        except Exception as error:
            self.fail(error)
            return
        for output in outputs:
            self.deliver(output)

    def deliver(self, output: Any) -> None:
        mailbox = self.owners[output.request_id]
        if output.finished:
            del self.owners[output.request_id]
        mailbox.put(output)

    def fail(self, error: Exception) -> None:
        for mailbox in self.owners.values():
            mailbox.put(error)
        self.owners.clear()

    def grant(self) -> None:
        self.wished.clear()
        wishes, self.wishes = self.wishes, []
        for wish, *args in wishes:
            wish(*args)

    def wish(self, *wish: Any) -> None:
        self.wishes.append(wish)
        self.wished.set()

    def add(self, mailbox: Mailbox, request_id: str, prompt: Any, params: Any) -> None:
        try:
            self.engine.add_request(request_id, prompt, params)
        except Exception as error:
            self.refuse(mailbox, error)
        else:
            self.owners[request_id] = mailbox

    def refuse(self, mailbox: Mailbox, error: Exception) -> None:
        mailbox.put(error)

    def drop(self, mailbox: Mailbox, request_id: str) -> None:
        if self.owners.get(request_id) is mailbox:
            del self.owners[request_id]
            self.engine.abort_request(request_id)

    def left(self, mailbox: Mailbox, request_id: str) -> None:
        self.wish(self.drop, mailbox, request_id)

    async def generate(self, request_id: str, prompt: Any, params: Any) -> AsyncIterator[Any]:
        if self.dead:
            raise EngineDeadError("The server has stopped.")
        mailbox = Mailbox()
        self.callers.append(mailbox)
        self.wish(self.add, mailbox, request_id, prompt, params)
        try:
            while True:
                output = await mailbox.take()
                yield output
                if output.finished:
                    return
        finally:
            self.callers.remove(mailbox)
            self.left(mailbox, request_id)


class _NeverAborts(RightLoop):
    def left(self, mailbox: Mailbox, request_id: str) -> None:
        if self.owners.get(request_id) is mailbox:
            self.owners[request_id] = Mailbox()


class _AbortsAtOnce(RightLoop):
    def left(self, mailbox: Mailbox, request_id: str) -> None:
        self.drop(mailbox, request_id)


class _AbortsById(RightLoop):
    """Takes the work of somebody else along."""

    def drop(self, mailbox: Mailbox, request_id: str) -> None:
        self.owners.pop(request_id, None)
        self.engine.abort_request(request_id)


class _Spins(RightLoop):
    async def idle(self) -> None:
        await asyncio.sleep(0)


class _Polls(RightLoop):
    async def idle(self) -> None:
        await asyncio.sleep(0.01)


class _DiesOfAStep(RightLoop):
    def fail(self, error: Exception) -> None:
        super().fail(error)
        raise error


class _FailsEverybody(RightLoop):
    def fail(self, error: Exception) -> None:
        for mailbox in self.callers:
            mailbox.put(error)
        self.owners.clear()


class _FailsNobody(RightLoop):
    def fail(self, error: Exception) -> None:
        return


class _DiesOfARefusal(RightLoop):
    def refuse(self, mailbox: Mailbox, error: Exception) -> None:
        raise error


class _LeavesThemWaiting(RightLoop):
    def last_words(self) -> None:
        return


class _Immortal(RightLoop):
    """Who comes after the end waits for ever."""

    def last_words(self) -> None:
        super().last_words()
        self.dead = False


class _OneAfterTheOther(RightLoop):
    """The next request is added when the engine is empty."""

    def grant(self) -> None:
        now: list[tuple[Any, ...]] = []
        later: list[tuple[Any, ...]] = []
        for wish in self.wishes:
            busy = self.engine.held or any(other[0] == self.add for other in now)
            (later if wish[0] == self.add and busy else now).append(wish)
        self.wishes = now
        super().grant()
        self.wishes = later


ASYNC_LLM = Contract(
    inputs=draw_story,
    judge=InLockstep(play, RightLoop),
    passed="Right in random stories of clients who come, read, pause and leave, of ids that are in "
    "use, and of steps that fail.",
    clauses={
        "new": Clause("`AsyncLLM(engine)` cannot be made."),
        "run": Clause(
            "`run` has come to an end, or not: {got}; expected: {expected}.",
            "It ends when it is cancelled, and else never: an error of `add_request` or "
            "`step` belongs to clients.",
        ),
        "touched": Clause(
            "The engine may not be used so: {got}.",
            "Only `run` uses the engine, between two steps, while it is not "
            "cancelled; and it steps only if there is something to do.",
        ),
        "asleep": Clause(
            "When everybody waits, your loop is {got}; expected {expected}.",
            "Wait for an `asyncio.Event` or `asyncio.Queue`, which a client fills.",
        ),
        "read": Clause(
            "A client has got: {got}; expected: {expected}.",
            "Whose output or error is it? A mailbox belongs to one client, not to an id.",
        ),
        "held": Clause(
            "The engine holds the requests {got}; expected {expected}.",
            "Before each step, and before sleep, do all that clients wanted meanwhile, "
            "in its order.",
        ),
        "stepping": Clause(
            "There is {got} running; expected: {expected}.",
            "As long as the engine has unfinished requests, step.",
        ),
    },
    mistakes=(
        mistake(
            "Who leaves does not take the work along: the engine goes on for nobody.",
            "`finally` in `generate`: whether it is closed, cancelled or at its end.",
            _NeverAborts,
        ),
        mistake(
            "The engine is touched while a step runs. Its batch holds the blocks that are to "
            "be freed.",
            "Leave a wish for `run`, which keeps it between two steps.",
            _AbortsAtOnce,
        ),
        mistake(
            "Somebody leaves, or is refused, and the request of *another* client with the same "
            "id is aborted.",
            "Abort only if the id's mailbox is this client's.",
            _AbortsById,
        ),
        mistake(
            "With nothing to do the loop goes round and round, and a core is busy for nobody.",
            "Wait for something that a client sets.",
            _Spins,
        ),
        mistake(
            "With nothing to do the loop wakes up again and again to look around.",
            "Wait for something that a client sets.",
            _Polls,
        ),
        mistake(
            "When a step fails, the loop ends, and with it the server.",
            "Tell those whose requests were in it, and go on.",
            _DiesOfAStep,
        ),
        mistake(
            "When a step fails, all clients get the error, also those whose request was not in "
            "the engine: one waits for the next step, one has not read its last output.",
            "Fail those whose request is in the engine.",
            _FailsEverybody,
        ),
        mistake(
            "When a step fails, its clients wait for ever.",
            "The engine has dropped their requests: raise the error in their `generate`.",
            _FailsNobody,
        ),
        mistake(
            "A request that the engine refuses ends the loop.",
            "The error belongs to the client who came with it.",
            _DiesOfARefusal,
        ),
        mistake(
            "When `run` ends, those who are reading wait for ever.",
            "`finally` in `run`: put an `EngineDeadError` into each mailbox.",
            _LeavesThemWaiting,
        ),
        mistake(
            "Who comes when `run` has ended waits for ever.",
            "Remember the end, and raise at the beginning of `generate`.",
            _Immortal,
        ),
        mistake(
            "One request after the other: the engine could move all of them in one step.",
            "Add each as soon as no step runs.",
            _OneAfterTheOther,
        ),
    ),
    examples=300,
)
