"""Wrong and right answers to lab 14, each as a learner might write it."""

from __future__ import annotations

import asyncio
import codecs
import json
import math
from collections import defaultdict

from tests.labs.bug_zoo.zoo import Zoo
from utils.serving.mailbox import EngineDeadError

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


# 1 EventReader


@right("event_reader")
class LetterByLetter:
    """Characters from an incremental decoder, lines as they end."""

    def __init__(self):
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        self.line, self.data, self.over = "", None, False

    @property
    def done(self):
        return self.over

    def feed(self, piece):
        events = []
        for letter in self.decoder.decode(piece):
            if letter != "\n":
                self.line += letter
                continue
            line, self.line = self.line.removesuffix("\r"), ""
            if not line:
                self.end(events)
            elif line[:5] == "data:":
                text = line[6:] if line[5:6] == " " else line[5:]
                self.data = text if self.data is None else f"{self.data}\n{text}"
        return events

    def end(self, events):
        if self.data == "[DONE]":
            self.over = True
        if self.data is not None and not self.over:
            events.append(self.data)
        self.data = None


@wrong("event_reader", "`feed` returns")
class BlanksEndAnEvent(LetterByLetter):
    def feed(self, piece):
        events = []
        for letter in self.decoder.decode(piece):
            if letter == "\n" and not self.line.strip():
                self.line = ""
            events += super().feed(letter.encode())
        return events


@wrong("event_reader", "`feed` returns")
class EndsOfLinesOfAnyKind(LetterByLetter):
    def feed(self, piece):
        return super().feed(piece.replace(b"\r", b"\n"))


@wrong("event_reader", "`feed` returns")
class EmptyTextsAreNone(LetterByLetter):
    def end(self, events):
        self.data = self.data or None
        super().end(events)


@wrong("event_reader", "`done` is")
class DoneAnywhere(LetterByLetter):
    def end(self, events):
        if self.data and "[DONE]" in self.data:
            self.data = "[DONE]"
        super().end(events)


@wrong("event_reader", "returned before has changed")
class OneListForAll(LetterByLetter):
    def __init__(self):
        super().__init__()
        self.given = []

    def feed(self, piece):
        self.given[:] = super().feed(piece)
        return self.given


# 2 Histogram


@right("histogram")
class CountsUp:
    """Cumulative counters; the sum by itself."""

    def __init__(self, bounds):
        self.at_most = dict.fromkeys([*bounds, math.inf], 0)
        self.total = 0.0

    sum = property(lambda self: self.total)
    count = property(lambda self: self.at_most[math.inf])

    def observe(self, value):
        self.total += value
        for bound in self.at_most:
            self.at_most[bound] += value <= bound

    def buckets(self):
        return dict(self.at_most)

    def quantile(self, q, earlier=None):
        new = {b: n - (earlier or {}).get(b, 0) for b, n in self.at_most.items()}
        if not new[math.inf]:
            return math.nan
        rank = q * new[math.inf]
        bounds = list(new)
        i = next(i for i, b in enumerate(bounds) if new[b] >= rank)
        if i == len(bounds) - 1:
            return bounds[-2]
        lower, below = (bounds[i - 1], new[bounds[i - 1]]) if i else (0.0, 0)
        return lower + (rank - below) / (new[bounds[i]] - below) * (bounds[i] - lower)


@wrong("histogram", "The quantile is")
class FirstBucketFromItsBound(CountsUp):
    def quantile(self, q, earlier=None):
        first = next(iter(self.at_most))
        return max(first, super().quantile(q, earlier))


@wrong("histogram", "The quantile is")
class RoundsTheRank(CountsUp):
    def quantile(self, q, earlier=None):
        new = self.count - (earlier or {}).get(math.inf, 0)
        return super().quantile(math.ceil(q * new) / new, earlier) if new else math.nan


# 3 slo_report


def is_kept(attempt, due, ttft, tpot):
    if attempt.status != 200 or not attempt.finished:
        return False
    first, *_, last = attempt.token_times * 2
    return first <= due + ttft and last - first <= tpot * max(attempt.num_tokens - 1, 0)


@right("slo_report")
def with_a_defaultdict(attempts, begin, end, ttft, tpot):
    people = defaultdict(list)
    for attempt in attempts:
        people[attempt.request_id].append(attempt)
    dues = {name: min(a.due for a in tries) for name, tries in people.items()}
    counted = [name for name, due in dues.items() if begin <= due < end]
    kept = [n for n in counted if any(is_kept(a, dues[n], ttft, tpot) for a in people[n])]
    attainment = len(kept) / len(counted) if counted else float("nan")
    return attainment, len(kept) / (end - begin)


@wrong("slo_report", "changes in place")
def by_pieces(attempts, begin, end, ttft, tpot):
    attempts = [a for a in attempts]  # a piece is taken for a token
    for attempt in attempts:
        object.__setattr__(attempt, "num_tokens", len(attempt.token_times))
    return with_a_defaultdict(attempts, begin, end, ttft, tpot)


@wrong("slo_report", "Attainment and goodput are wrong")
def per_second_of_the_test(attempts, begin, end, ttft, tpot):
    attainment, goodput = with_a_defaultdict(attempts, begin, end, ttft, tpot)
    return attainment, goodput * (end - begin) / end


@wrong("slo_report", "Attainment and goodput are wrong")
def each_ones_own_due(attempts, begin, end, ttft, tpot):
    attempts = [*attempts]
    kept = {a.request_id for a in attempts if is_kept(a, a.due, ttft, tpot)}
    dues = {
        a.request_id: min(b.due for b in attempts if b.request_id == a.request_id) for a in attempts
    }
    counted = [name for name, due in dues.items() if begin <= due < end]
    both = [name for name in counted if name in kept]
    return len(both) / len(counted) if counted else math.nan, len(both) / (end - begin)


# 4 AsyncLLM


class Box:
    def __init__(self):
        self.news, self.came = None, asyncio.Event()

    def put(self, news):
        self.news = news
        self.came.set()

    async def take(self):
        await self.came.wait()
        self.came.clear()
        if isinstance(self.news, Exception):
            raise self.news
        return self.news


@right("async_llm")
class WithAnEvent:
    """A list of wishes and an event that wakes the loop."""

    def __init__(self, engine):
        self.engine = engine
        self.wishes, self.something = [], asyncio.Event()
        self.boxes, self.readers, self.over = {}, [], None

    def wish(self, what, *args):
        self.wishes.append((what, args))
        self.something.set()

    async def run(self):
        try:
            while True:
                self.fulfil()
                if self.engine.has_unfinished_requests():
                    await self.one_step()
                else:
                    self.something.clear()
                    await self.something.wait()
        finally:
            self.over = EngineDeadError("over")
            for box in self.readers:
                box.put(self.over)

    def fulfil(self):
        while self.wishes:
            what, args = self.wishes.pop(0)
            what(*args)

    async def one_step(self):
        try:
            outputs = await self.engine.step()
        except Exception as error:
            boxes, self.boxes = self.boxes, {}
            for box in boxes.values():
                box.put(error)
            return
        for output in outputs:
            box = self.boxes[output.request_id]
            if output.finished:
                self.boxes.pop(output.request_id)
            box.put(output)

    def enter(self, box, request_id, prompt, params):
        try:
            self.engine.add_request(request_id, prompt, params)
        except Exception as error:
            box.put(error)
        else:
            self.boxes[request_id] = box

    def leave(self, box, request_id):
        if self.boxes.get(request_id) is box:
            self.engine.abort_request(request_id)
            self.boxes.pop(request_id)

    async def generate(self, request_id, prompt, params):
        if self.over:
            raise self.over
        box = Box()
        self.readers.append(box)
        self.wish(self.enter, box, request_id, prompt, params)
        try:
            finished = False
            while not finished:
                output = await box.take()
                finished = output.finished
                yield output
        finally:
            self.readers = [other for other in self.readers if other is not box]
            self.wish(self.leave, box, request_id)


@wrong("async_llm", "The engine holds the requests")
class OneWishAStep(WithAnEvent):
    def fulfil(self):
        if self.wishes:
            what, args = self.wishes.pop(0)
            what(*args)


@wrong("async_llm", "has come to an end, or not: runs")
class CannotBeStopped(WithAnEvent):
    """It swallows what should end it, also when the check tidies up."""

    async def one_step(self):
        try:
            await super().one_step()
        except BaseException as error:
            for box in self.boxes.values():
                box.put(RuntimeError(str(error)))


@wrong("async_llm", "touched while a step runs")
class LeavesAtOnce(WithAnEvent):
    def wish(self, what, *args):
        if what == self.leave:
            what(*args)
        else:
            super().wish(what, *args)


@wrong("async_llm", "A client has got")
class AFailedStepTellsAllReaders(WithAnEvent):
    async def one_step(self):
        try:
            await super().one_step()
        finally:
            if not self.boxes:
                for box in self.readers:
                    if not box.came.is_set():
                        box.put(RuntimeError("The step failed."))


@wrong("async_llm", "EngineDeadError")
class SilentAtTheEnd(WithAnEvent):
    async def run(self):
        while True:
            self.fulfil()
            if self.engine.has_unfinished_requests():
                await self.one_step()
            else:
                self.something.clear()
                await self.something.wait()


# 5 seconds_to_wait


def worst_case(load, num_tokens, spare=0):
    """Step by step, each full, with one more who is answered for each who waits."""
    budget = load.max_num_batched_tokens
    room = budget - load.num_running - len(load.waiting) - spare
    seconds, left = load.seconds_left, sum(load.waiting) + num_tokens
    while left > 0 and room > 0:
        left, seconds = left - room, seconds + load.step_seconds(budget)
    return seconds if room > 0 else math.inf


def impossible(load, num_tokens, limit):
    seconds, budget = 0.0, load.max_num_batched_tokens
    while num_tokens > 0:
        seconds += load.step_seconds(min(budget, num_tokens))
        num_tokens -= budget
    return seconds > limit


@right("seconds_to_wait")
def step_by_step(load, num_tokens, ttft_limit):
    if impossible(load, num_tokens, ttft_limit):
        return math.inf
    seconds = worst_case(load, num_tokens)
    if seconds == math.inf:
        return load.seconds_left + ttft_limit
    return seconds - ttft_limit if seconds > ttft_limit else 0.0


@wrong("seconds_to_wait", "came too late")
def those_who_wait_are_never_answered(load, num_tokens, ttft_limit):
    if impossible(load, num_tokens, ttft_limit):
        return math.inf
    budget = load.max_num_batched_tokens
    steps = math.ceil((sum(load.waiting) + num_tokens) / max(1, budget - load.num_running))
    return max(0.0, load.seconds_left + steps * load.step_seconds(budget) - ttft_limit)


@wrong("seconds_to_wait", "came too late")
def there_is_always_room_for_one(load, num_tokens, ttft_limit):
    if impossible(load, num_tokens, ttft_limit):
        return math.inf
    room = max(1, load.max_num_batched_tokens - load.num_running - len(load.waiting))
    steps = math.ceil((sum(load.waiting) + num_tokens) / room)
    seconds = load.seconds_left + steps * load.step_seconds(load.max_num_batched_tokens)
    return max(0.0, seconds - ttft_limit)


@wrong("seconds_to_wait", "turned away")
def only_the_idle_server_is_sure(load, num_tokens, ttft_limit):
    if impossible(load, num_tokens, ttft_limit):
        return math.inf
    busy = bool(load.waiting or load.num_running or load.seconds_left)
    return load.step_seconds(load.max_num_batched_tokens) if busy else 0.0


@wrong("seconds_to_wait", "by an idle server")
def never_is_a_long_time(load, num_tokens, ttft_limit):
    return min(1e9, step_by_step(load, num_tokens, ttft_limit))


# 6 engine


async def events_by_hand(outputs):
    shown = ""
    try:
        async for output in outputs:
            text = output.outputs[0].text
            if text != shown:
                more, shown = text[len(shown) :], text
                yield b"data: " + json.dumps({"text": more}).encode() + b"\n\n"
    except GeneratorExit:
        raise
    except Exception as error:
        yield b"data: " + json.dumps({"error": {"message": str(error)}}).encode() + b"\n\n"
    finally:
        await outputs.aclose()
    yield b"data: [DONE]\n\n"


async def no_end(outputs):
    async for event in events_by_hand(outputs):
        if event != b"data: [DONE]\n\n":
            yield event


def with_parts(name, *arguments):
    def parts():
        """What `check.engine` is called with."""

    parts.__name__, parts.arguments = name, arguments
    return parts


right("engine")(with_parts("all_otherwise", WithAnEvent, events_by_hand, LetterByLetter))
wrong("engine", "stream has no end")(with_parts("no_done", WithAnEvent, no_end, LetterByLetter))
wrong("engine", "Exercise 4 is not right yet")(
    with_parts("leaves_at_once", LeavesAtOnce, events_by_hand, LetterByLetter)
)
