"""Server-sent events, written from the outputs of `generate`: exercise 6, before any server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.patience import patience_of
from utils.checks.lab_14.event_streams import DONE, PlainReader
from utils.checks.lab_14.one_loop import OneLoop

PARTS = ("a", "", "é", "\n\n", '"', "🙂", "\r\n", "\u2028", "data: [DONE]", "{", "long " * 200)


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Output:
    outputs: list[Answer]
    finished: bool


@dataclass(frozen=True)
class Story:
    """What comes, how it ends, and after how many events the client leaves."""

    parts: tuple[str, ...]
    error: str | None
    leaves_after: int | None
    cancelled: bool

    def __str__(self) -> str:
        end = "" if self.error is None else f", then RuntimeError({self.error!r})"
        leaves = (
            ""
            if self.leaves_after is None
            else (
                f"; the client leaves after {self.leaves_after} events "
                f"({'cancelled' if self.cancelled else 'closed'})"
            )
        )
        return f"the answer grows by {', '.join(repr(p[:20]) for p in self.parts)}{end}{leaves}"


def draw_story(c: Choices) -> Story:
    parts = tuple(c.some(lambda: c.pick(PARTS), 1, 7))
    error = c.pick(("no memory", 'a "quoted" é', "")) if c.rarely(3) else None
    leaves = c.integer(0, 5) if c.rarely(2) else None
    return Story(parts, error, leaves, c.rarely(2))


class Outputs:
    """An async iterator with `aclose`, as `generate` gives one."""

    def __init__(self, story: Story, waits_after: int | None) -> None:
        self.story, self.asked, self.text = story, 0, ""
        self.waits_after = waits_after  # events, then nothing more comes
        self.closed = False
        self.log: list[Any] = []

    def __aiter__(self) -> Outputs:
        return self

    async def __anext__(self) -> Output:
        if len(self.log) == self.waits_after:
            await asyncio.get_running_loop().create_future()
        if self.asked == len(self.story.parts):
            if self.story.error is not None:
                raise RuntimeError(self.story.error)
            raise StopAsyncIteration
        self.text += self.story.parts[self.asked]
        self.asked += 1
        return Output(
            [Answer(self.text), Answer("another choice")], self.asked == len(self.story.parts)
        )

    async def aclose(self) -> None:
        self.closed = True


def play(stage: Stage, write_events: Any, story: Story) -> None:
    loop = OneLoop()
    outputs = Outputs(story, story.leaves_after if story.cancelled else None)

    async def client() -> None:
        events = write_events(outputs)
        if story.leaves_after == 0 and not story.cancelled:
            await asyncio.sleep(0)
        async with aclosing(events):
            async for data in events:
                outputs.log.append((outputs.asked, _read(data)))
                if not story.cancelled and len(outputs.log) == story.leaves_after:
                    break
        outputs.log.append(("closed", outputs.closed or story.leaves_after is None))

    try:
        with patience_of(6):
            task = loop.start(client())
            stage.see("asleep", stage.do(loop.settle))
            if waits := not task.done():
                task.cancel()
                stage.do(loop.settle)
            error = None if task.cancelled() or not task.done() else task.exception()
            stage.see("raises", attempt(task.result) if error is not None else "nothing")
            events = [e for e in outputs.log if e[0] != "closed"]
            stage.see("events", [read for _, read in events])
            stage.see("promptly", [asked for asked, _ in events])
            left = waits or (story.leaves_after is not None and len(events) == story.leaves_after)
            stage.see(
                "closed",
                "`outputs` is closed" if outputs.closed or not left else "`outputs` is open",
            )
    finally:
        attempt(loop.close)


def _read(data: Any) -> Any:
    """One event, as a client understands it."""
    if not isinstance(data, bytes):
        return f"a {type(data).__name__}"
    reader = PlainReader()
    found = reader.feed(data)
    if reader.done:
        return DONE if not found else f"{found} and {DONE}"
    try:
        [text] = found
        return json.loads(text)
    except ValueError:
        return repr(data[:60])


def event(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _writer(change: str = "") -> Any:
    """A right answer, but for one thing."""

    async def write_events(outputs: Any) -> AsyncIterator[bytes]:
        sent = ""
        try:
            kept = []
            async for output in outputs:
                text = output.outputs[0].text
                new = text if change == "whole" else text[len(sent) :]
                if (text != sent or change == "empty") and change != "late":
                    yield event({"text": new})
                elif change == "late":
                    kept.append(event({"text": new}))
                sent = text
            for data in kept:
                yield data
        except Exception as error:
            if change == "raises":
                raise
            if change != "silent":
                yield event({"error": {"message": str(error)}})
            if change == "no end after an error":
                return
        finally:
            if change != "open":
                await outputs.aclose()
        if change != "no end":
            yield f"data: {DONE}\n\n".encode()

    return write_events


right_writer = _writer()
ENDS = "`data: [DONE]` is the last event, also behind an error."

WRITE_EVENTS = Contract(
    inputs=draw_story,
    judge=InLockstep(play, right_writer),
    passed="Right.",
    clauses={
        "events": Clause(
            "`write_events` gives the events {got}; expected {expected}.",
            'Bytes: `data: `, JSON of `{"text": ...}`, two line ends. Then [DONE].',
        ),
        "promptly": Clause(
            "The events do not come when they should: the outputs that had been "
            "asked for before each are {got}; expected {expected}.",
            "`yield` each event before you ask for the next output.",
        ),
        "closed": Clause(
            "The client has left, and {got}: the engine goes on for nobody.",
            "`async with aclosing(outputs)`, or `finally: await outputs.aclose()`.",
        ),
        "asleep": Clause("`write_events` is {got}.", "`async for output in outputs`."),
    },
    mistakes=(
        mistake(
            "Each event holds the whole answer so far. The client joins them.",
            "Only what is behind the text that was sent.",
            _writer("whole"),
        ),
        mistake(
            "An output that brings no new text makes an event without text.",
            "Nothing new, no event.",
            _writer("empty"),
        ),
        mistake(
            "All events come at the end: nobody sees a word before the last one is there.",
            "`yield` each event before you ask for the next output.",
            _writer("late"),
        ),
        mistake(
            "An error must travel as an event: the status 200 was sent long ago.",
            '`{"error": {"message": str(error)}}`.',
            _writer("raises"),
            _writer("silent"),
        ),
        mistake(
            "The stream has no end: a client cannot tell it from a broken connection.",
            ENDS,
            _writer("no end"),
            _writer("no end after an error"),
        ),
        mistake(
            "The client has left, and `outputs` stays open: the engine goes on for nobody.",
            "`async with aclosing(outputs)`, or `finally: await outputs.aclose()`.",
            _writer("open"),
        ),
    ),
    examples=100,
)
