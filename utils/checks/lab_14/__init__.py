"""The checks of lab 14: what is drawn, and what is right.

Oracles: the one right answer in lockstep (`tests/` holds it against other clients, Prometheus and
counting by hand), a pretended engine, a simulated server; at last the engine behind a real one.
"""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace as Said
from typing import Any

from utils.checks.kit.contracts import (
    Choices,
    Fault,
    Given,
    InLockstep,
    Once,
    Raised,
    Returns,
    Stage,
)
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.lab.story import Story
from utils.checks.kit.patience import patience_of
from utils.checks.kit.runner import Passed
from utils.checks.lab_14 import admissions, answers, clients, real_server
from utils.checks.lab_14.kinds import Attempt
from utils.checks.lab_14.one_loop import OneLoop, outputs_of

LAB = Lab(__file__)
DONE = "[DONE]"

# Exercise 1: server-sent events in pieces

# Some hold characters at which `str.splitlines` cuts, or that `str.strip` takes away.
PLAIN = ("a", "", "é", "{}", "🙂", " b ", '"q"', "data: c", ":", "[DONE]?", " [DONE]", "[DONE] ")
TEXTS = (*PLAIN, "\u2028\x85x", "\t\x0cy\u3000", "x\r", "y\rz", DONE, "long " * 300)
FIELDS = ("event: error", "id: 7", "database: 1", "Data: x", " data: x", "retry: 10", "data")
NOISE = (": a comment", *FIELDS, ":", "\ufeffdata: x", " ", "\t", "\r")
ENDS = ("\n", "\n", "\r\n")


@dataclass(frozen=True)
class Streams:
    """The pieces of each stream, and in which order they come."""

    pieces: tuple[tuple[bytes, ...], ...]
    order: tuple[int, ...]  # the stream's number

    def __str__(self) -> str:
        told = ["the stream " + shortened(b"".join(pieces)) for pieces in self.pieces]
        return " and, to another reader, ".join(told)


def shortened(data: bytes) -> str:
    return repr(data) if len(data) < 120 else f"{data[:60]!r}... ({len(data)} bytes)"


def draw_streams(c: Choices) -> Streams:
    def line() -> str:
        if c.rarely(4):
            return c.pick(NOISE) + c.pick(ENDS)
        return "data:" + c.pick((" ", "")) + c.pick(TEXTS) + c.pick(ENDS)

    def event() -> str:
        if c.rarely(8):
            return f"data: {DONE}{c.pick(ENDS)}{c.pick(ENDS)}"
        return "".join(c.some(line, 0, 3)) + c.pick(ENDS)

    def stream() -> tuple[bytes, ...]:
        text = "".join(c.some(event, 0, 6))
        cut = len(text) - c.pick((0, 0, 1, 3))  # the stream may break off
        data = text[: max(0, cut)].encode()
        kind = c.pick(("whole", "some", "some", "bytes"))
        if kind == "bytes" and len(data) < 300:
            return tuple(data[i : i + 1] for i in range(len(data)))
        places = [] if kind == "whole" else c.some(lambda: c.integer(0, len(data)), 0, 8)
        ends = [0, *sorted(places), len(data)]
        return tuple(data[i:j] for i, j in pairwise(ends))

    pieces = c.some(stream, 0, 2 if c.rarely(3) else 1) or [(b"",)]
    order = [number for number, of in enumerate(pieces) for _ in of]
    return Streams(tuple(pieces), tuple(c.shuffled(order) if len(pieces) > 1 else order))


def play_streams(stage: Stage, reader_class: Any, streams: Streams) -> None:
    """Each stream in one piece first: what is wrong then has nothing to do with pieces."""
    for pieces in streams.pieces:
        reader, right = new_reader(stage, reader_class), answers.EventReader()
        stage.now("in one piece")
        feed(stage, reader, right, b"".join(pieces), "whole: ")
    readers = [(new_reader(stage, reader_class), answers.EventReader()) for _ in streams.pieces]
    left = [list(pieces) for pieces in streams.pieces]
    stage.now("in pieces")
    given: list[tuple[list[str], list[str]]] = []
    for number in streams.order:
        piece, (reader, right) = left[number].pop(0), readers[number]
        stage.step(shortened(piece) + f" of stream {number + 1}" * (len(left) > 1))
        is_whole = len(streams.pieces[number]) == 1
        got, want = feed(stage, reader, right, piece, "shared" if is_whole else "pieces: ")
        stage.expect("given before", [texts for texts, _ in given], [texts for _, texts in given])
        for texts in (want, got):
            texts.append("added by the caller")
        given.append((want, got))


def new_reader(stage: Stage, reader_class: Any) -> Any:
    reader = stage.do(reader_class)
    stage.see("new", reader if isinstance(reader, Raised) else "a reader")
    return reader


def feed(
    stage: Stage, reader: Any, right: answers.EventReader, piece: bytes, how: str
) -> tuple[list[str], list[str]]:
    """Feed a piece to both, and say what kind of fault there is: what came, what is right."""
    was_done, want = right.done, right.feed(piece)
    got = stage.call(reader, "feed", piece)
    if isinstance(got, Raised) or not isinstance(got, list):
        stage.expect("list", want, got)
    if not all(isinstance(text, str) for text in got):
        stage.blame("texts", want, got)
    if right.done and (was_done or got[: len(want)] == want):
        stage.expect("after the end", want, got)
    if how == "whole: " and right.done and len(got) < len(want):
        stage.expect("before the end", want, got)
    if how == "shared":  # the same piece was read right by another reader
        stage.expect(how, want, got)
    if how == "pieces: " and len(got) > len(want):
        stage.expect("too early", want, got)
    number = "text" if len(got) == len(want) else "events"
    stage.expect(how + number, want, got)
    stage.expect("done", right.done, stage.read(reader, "done"))
    return got, want


event_reader = LAB.check(
    answers.EventReader, draw_streams, InLockstep(play_streams, answers.EventReader)
)

# Exercise 2: a histogram

MANY = 400  # values
ROOM = 1000  # bytes that so many values may cost: counters grow, too


class HistogramStory(Story):
    """Two histograms with the same bounds."""

    kinds = (*9 * ("observe",), *3 * ("quantile",), *3 * ("mark",), *3 * ("since",), "many")
    most = 24

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[float, ...]:
        scale = c.pick((1.0, 1.0, 0.001, 1e6))
        numbers = sorted({c.integer(1, 40) for _ in range(c.integer(1, 6))})
        return tuple(scale * number for number in numbers)

    @classmethod
    def tell(cls, setting: tuple[float, ...]) -> str:
        return f"two histograms with bounds {list(setting)}"

    @staticmethod
    def draw_observe(c: Choices, setting: tuple[float, ...]) -> tuple[Any, ...]:
        def value() -> float:
            if c.rarely(4):
                return c.pick((0.0, setting[-1] * 1000, setting[0] / 1000))
            # Often a bound itself: there `at most` and `less than` differ.
            return c.pick(setting) if c.rarely(2) else setting[0] * c.integer(0, 100) / 8

        return c.integer(0, 1), tuple(c.some(value, 1, 9))

    @staticmethod
    def draw_quantile(c: Choices, setting: tuple[float, ...]) -> tuple[int, float]:
        return c.integer(0, 1), c.pick((0.5, 1.0, 0.25, 0.75, 0.9, 0.99, 0.001))

    draw_since = draw_quantile

    @staticmethod
    def draw_mark(c: Choices, setting: tuple[float, ...]) -> tuple[int]:
        return (c.integer(0, 1),)

    draw_many = draw_mark

    def start(self, histogram_class: Any) -> None:
        bounds = list(self.setting)
        given = tuple(bounds) if len(bounds) % 2 else bounds
        self.both = [self.stage.do(histogram_class, given) for _ in range(2)]
        for histogram in self.both:
            self.see("new", histogram, "a histogram")
        self.marks: list[Any] = [None, None]
        self.look("buckets")
        bounds[:] = [7 * bound for bound in bounds]  # it belongs to the caller
        self.look("bounds")

    def look(self, clause: str = "buckets") -> None:
        for histogram in self.both:
            buckets, again = (self.stage.call(histogram, "buckets") for _ in range(2))
            is_same = isinstance(buckets, Mapping) and buckets is again
            self.see("own", buckets, "the same dictionary" if is_same else "two dictionaries")
            if not isinstance(buckets, Raised | Mapping):
                self.stage.blame("dict", "a dictionary", buckets)
            if isinstance(buckets, Mapping):
                buckets = [list(pair) for pair in buckets.items()]  # with their order
            self.stage.see(clause, buckets)
            self.stage.see("count", self.stage.read(histogram, "count"))
            self.stage.see("sum", self.stage.read(histogram, "sum"))

    def do_observe(self, which: int, values: tuple[float, ...]) -> None:
        told = ", ".join(f"{value:g}" for value in values)
        self.stage.step(f"histogram {which + 1}: observe {told}")
        for value in values:
            self.stage.see("observe", self.stage.call(self.both[which], "observe", value))
        self.look()

    def do_many(self, which: int) -> None:
        self.stage.step(f"histogram {which + 1}: observe {MANY} values")
        histogram, before = self.both[which], weight(self.both[which])

        def observe_all() -> None:
            for number in range(MANY):
                histogram.observe(self.setting[-1] * number / MANY)

        self.see("observe", self.stage.do(observe_all))
        kept = weight(histogram) > before + ROOM
        self.stage.see("memory", "the values are kept" if kept else "no value is kept")
        self.look()

    def do_mark(self, which: int) -> None:
        self.stage.step(f"histogram {which + 1}: `earlier = buckets()`")
        self.marks[which] = self.stage.call(self.both[which], "buckets")

    def do_quantile(self, which: int, q: float) -> None:
        self.stage.step(f"histogram {which + 1}: quantile({q:g})")
        self.stage.see("quantile", self.stage.call(self.both[which], "quantile", q))

    def do_since(self, which: int, q: float) -> None:
        mark = self.marks[which]
        self.stage.step(f"histogram {which + 1}: quantile({q:g}, earlier={mark})")
        earlier = None if mark is None else dict(mark)
        got = self.stage.call(self.both[which], "quantile", q, earlier=earlier)
        self.stage.see("quantile" if earlier is None else "since", got)


def weight(value: Any) -> int:
    """Bytes of what an object keeps; 0 if it can't be found."""
    try:
        return len(pickle.dumps(value.__reduce_ex__(4)[2:]))
    except Exception:
        return 0


histogram = LAB.check(
    answers.Histogram, HistogramStory.draw, HistogramStory.judge(answers.Histogram)
)

# Exercise 3: attainment and goodput

FAILED = (503, 500, 429, 404, 204, 302)


def draw_attempts(c: Choices) -> Given:
    """All times are multiples of 1/8, so that what is just in time is so exactly."""
    names = iter([form.format(n) for n in range(25) for form in ("r{}", "R{}", "r{} ", " r{}")])
    scale = c.pick((1, 1, 1000))

    def eighths(low: int, high: int) -> float:
        return scale * c.integer(low, high) / 8

    def attempt(name: str, due: float) -> Attempt:
        sent = due + (eighths(0, 16) if c.rarely(3) else 0)
        kind = c.pick(("done", "done", "done", "done", "unfinished", "silent", "broken", "refused"))
        if kind == "refused":
            return Attempt(name, due, sent, c.pick(FAILED))
        pieces = c.integer(1, 5)
        times = [sent + eighths(0, 16)]
        for _ in range(pieces - 1):
            times.append(times[-1] + eighths(0, 8))
        num_tokens = 1 + c.pick([n for n in (0, 1, 2, 4, 8) if n >= pieces - 1])
        status = c.pick(FAILED) if kind == "broken" else 200
        if kind == "silent":
            times, num_tokens = [], 0
        finished = kind == "done" or (kind == "broken" and c.rarely(2))
        return Attempt(name, due, sent, status, tuple(times), num_tokens, finished)

    def request() -> list[Attempt]:
        made = [attempt(next(names), eighths(0, 160))]
        while len(made) < 4 and c.rarely(2):
            made.append(attempt(made[0].request_id, made[-1].sent + eighths(0, c.pick((2, 16)))))
        return made

    attempts = [one for made in c.some(request, 0, 12) for one in made]
    end_at = c.pick(attempts).due if attempts and c.rarely(2) else 0.0
    if c.rarely(2):
        attempts = c.shuffled(attempts)
    if c.rarely(4):
        attempts = Once(attempts)
    begin = eighths(0, 80) if c.rarely(2) else 0.0
    end = end_at if end_at > begin else begin + eighths(1, 160)
    return Given(
        attempts, begin, end, eighths(1, 16), eighths(0, 3) if c.rarely(2) else eighths(0, 8)
    )


def tell_attempts(given: Given) -> str:
    attempts, begin, end, ttft, tpot = given.args
    kind = " (an iterator, which can be read only once)" if isinstance(attempts, Once) else ""
    lines = [f"begin={begin:g}, end={end:g}, ttft={ttft:g}, tpot={tpot:g}, attempts{kind}:"]
    return "\n    ".join(lines + ([repr(one) for one in attempts] or ["none"]))


def wrong_report(expected: tuple[float, float], got: Any, given: Given) -> Fault | None:
    """Which of the two numbers is wrong says what was counted wrongly."""
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", expected, got)
    if not all(isinstance(number, int | float) for number in got):
        return Fault("form", "", expected, got)
    attained, goodput = (
        math.isclose(came, want, rel_tol=1e-6) or (math.isnan(came) and math.isnan(want))
        for came, want in zip(got, expected, strict=True)
    )
    if attained and goodput:
        return None
    if isinstance(given.args[0], Once):
        clause = "once"
    elif math.isnan(expected[0]):
        clause = "no requests"
    elif goodput or math.isnan(got[0]):
        clause = "counted"
    elif attained:
        clause = "seconds"
    else:
        clause = "kept" if got[1] < expected[1] else "broken"
    words = [f"attainment {a:.4g}, goodput {g:.4g} per second" for a, g in (expected, got)]
    return Fault(clause, "", expected, got, words=(words[0], words[1]))


slo_report = LAB.check(
    answers.slo_report,
    draw_attempts,
    Returns(answers.slo_report, wrong=wrong_report),
    tell=tell_attempts,
)

# Exercises 4 and 5

async_llm = LAB.check(
    answers.AsyncLLM, clients.draw_story, InLockstep(clients.play, answers.AsyncLLM), examples=300
)
seconds_to_wait = LAB.check(
    answers.seconds_to_wait, admissions.draw_story, admissions.KeepsPromises(), examples=200
)

# Exercise 6: events are written

PARTS = ("a", "", "é", "\n\n", '"', "🙂", "\r\n", "\u2028", "data: [DONE]", "{", "long " * 200)


@dataclass(frozen=True)
class Growth:
    """What comes, how it ends, and after how many events the client leaves."""

    parts: tuple[str, ...]
    error: Exception | None
    leaves_after: int | None
    cancelled: bool

    def __str__(self) -> str:
        told = f"the answer grows by {', '.join(repr(part[:20]) for part in self.parts)}"
        if self.error is not None:
            told += f", then `outputs` raises {self.error!r}"
        if self.leaves_after is not None:
            how = "its task is cancelled" if self.cancelled else "`write_events` is closed"
            told += f"; the client leaves after {self.leaves_after} events ({how})"
        return told


def draw_growth(c: Choices) -> Growth:
    parts = tuple(c.some(lambda: c.pick(PARTS), 1, 7))
    kind = c.pick((RuntimeError, ValueError, LookupError))
    error = kind(c.pick(("no memory", 'a "quoted" é', ""))) if c.rarely(3) else None
    leaves = c.integer(0, 5) if c.rarely(2) else None
    return Growth(parts, error, leaves, c.rarely(2))


class Outputs:
    """An async iterator with `aclose`, as `generate` gives one."""

    def __init__(self, story: Growth) -> None:
        self.story, self.asked, self.text = story, 0, ""
        self.closed = self.closed_at_once = False
        self.events: list[tuple[Any, int]] = []  # and the outputs asked for before

    def __aiter__(self) -> Outputs:
        return self

    async def __anext__(self) -> Any:
        if self.story.cancelled and len(self.events) == self.story.leaves_after:
            await asyncio.get_running_loop().create_future()  # nothing more comes
        if self.asked == len(self.story.parts):
            if self.story.error is not None:
                raise self.story.error
            raise StopAsyncIteration
        self.text += self.story.parts[self.asked]
        self.asked += 1
        finished = self.asked == len(self.story.parts) and self.story.error is None
        choices = [Said(text=self.text), Said(text="another choice")]
        return Said(outputs=choices, finished=finished)

    async def aclose(self) -> None:
        self.closed = True


def play_events(stage: Stage, write_events: Any, story: Growth) -> None:
    loop, outputs = OneLoop(), Outputs(story)
    closes = None if story.cancelled else story.leaves_after

    async def client() -> None:
        try:
            async with aclosing(outputs_of(write_events, outputs)) as events:
                if closes == 0:
                    await asyncio.sleep(0)
                async for data in events:
                    outputs.events.append((understood(data), outputs.asked))
                    if len(outputs.events) == closes:
                        break
        finally:  # not by a task that may never run
            outputs.closed_at_once = outputs.closed

    try:
        with patience_of(6):
            task = loop.start(client())
            stage.see("asleep", stage.do(loop.settle))
            if waits := not task.done():
                task.cancel()
                stage.do(loop.settle)
            stage.see("cancelled", "goes on" if waits and not task.cancelled() else "ends")
            failed = task.done() and not task.cancelled() and task.exception()
            stage.see("raises", attempt(task.result) if failed else "nothing")
            stage.see("events", [event for event, _ in outputs.events])
            stage.see("promptly", [asked for _, asked in outputs.events])
            left = waits or len(outputs.events) == closes
            is_open = left and not outputs.closed_at_once
            stage.see("closed", f"`outputs` is {'open' if is_open else 'closed'}")
    finally:
        attempt(loop.close)


def understood(data: Any) -> Any:
    """One event, as a client understands it."""
    if not isinstance(data, bytes):
        return f"a {type(data).__name__}"
    reader = answers.EventReader()
    try:
        found = reader.feed(data)
        event = DONE if reader.done and not found else json.loads(*found)
        return event if isinstance(event, dict) or reader.done else repr(data[:60])
    except (ValueError, TypeError):
        return repr(data[:60])


write_events = LAB.check(
    answers.write_events, draw_growth, InLockstep(play_events, answers.write_events), examples=100
)

# Exercise 7


@LAB.exercise
def engine(*parts: Any) -> Passed:
    """An `AsyncLLM`, `write_events` and an `EventReader`: each by itself first, then over HTTP."""
    llm_class, writer, reader_class = parts
    speaks_first(event_reader, reader_class)
    speaks_first(async_llm, llm_class)
    speaks_first(write_events, writer)
    return real_server.serve(llm_class, writer, reader_class)
