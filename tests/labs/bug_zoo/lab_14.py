"""Right answers to lab 14, each as a learner might write it, and wrong ones that are no edits."""

from __future__ import annotations

import asyncio
import codecs
import json
import math
from collections import defaultdict

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_14 import answers
from utils.checks.lab_14.kinds import Mailbox
from utils.serving.mailbox import EngineDeadError

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


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
        box = Mailbox()
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


@right("seconds_to_wait")
def step_by_step(load, num_tokens, ttft_limit):
    budget, step_seconds = load.max_num_batched_tokens, load.step_seconds
    starts = range(0, num_tokens, budget)
    if sum(step_seconds(min(budget, num_tokens - start)) for start in starts) > ttft_limit:
        return math.inf
    room = budget - load.num_running - len(load.waiting)
    seconds, left = load.seconds_left, sum(load.waiting) + num_tokens
    while left > 0:
        if room < 1:
            return load.seconds_left + ttft_limit
        left, seconds = left - room, seconds + step_seconds(budget)
    return seconds - ttft_limit if seconds > ttft_limit else 0.0


@right("write_events")
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


def with_parts(name, *arguments):
    def parts():
        """What `check.engine` is called with."""

    parts.__name__, parts.arguments = name, arguments
    return parts


NeverAborts = edited(answers.AsyncLLM, ["self.engine.abort_request(request_id) => pass"])
right("engine")(with_parts("all_otherwise", WithAnEvent, events_by_hand, LetterByLetter))
wrong("engine", "Exercise 4 is not right yet")(
    with_parts("steps_for_nobody", NeverAborts, events_by_hand, LetterByLetter)
)
wrong("engine", "Exercise 6 is not right yet")(
    with_parts("no_outputs", WithAnEvent, print, LetterByLetter)
)
