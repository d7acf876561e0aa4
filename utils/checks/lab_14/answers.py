"""One right answer for each exercise of lab 14, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import asyncio
import json
import math
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from utils.checks.lab_14.kinds import Attempt, Load, Mailbox
from utils.serving.mailbox import EngineDeadError


class EventReader:
    def __init__(self) -> None:
        self.rest, self.done = b"", False
        self.texts: list[str] = []  # of the event that has begun

    def feed(self, piece: bytes) -> list[str]:
        events: list[str] = []
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode()
            if text.startswith("data:"):
                self.texts.append(text.removeprefix("data:").removeprefix(" "))
            elif text == "" and self.texts:
                event, self.texts = "\n".join(self.texts), []
                self.done = self.done or event == "[DONE]"
                if not self.done:
                    events.append(event)
        return events


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = [*bounds, math.inf]
        self.apart = [0] * len(self.bounds)  # not cumulative: one counter per value
        self.sum, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        self.apart[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.count += 1

    def buckets(self) -> dict[float, int]:
        total, buckets = 0, {}
        for bound, number in zip(self.bounds, self.apart, strict=True):
            total += number
            buckets[bound] = total
        return buckets

    def quantile(self, q: float, earlier: dict[float, int] | None = None) -> float:
        earlier = earlier or {}
        counts = {bound: n - earlier.get(bound, 0) for bound, n in self.buckets().items()}
        rank = q * counts[math.inf]
        lower, below = 0.0, 0
        for bound, n in counts.items():
            if n >= rank > 0:
                if bound == math.inf:
                    return lower
                return lower + (bound - lower) * (rank - below) / (n - below)
            lower, below = bound, n
        return math.nan


def slo_report(
    attempts: Iterable[Attempt], begin: float, end: float, ttft: float, tpot: float
) -> tuple[float, float]:
    requests: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        requests.setdefault(attempt.request_id, []).append(attempt)
    num_requests = num_kept = 0
    for tries in requests.values():
        due = min(attempt.due for attempt in tries)
        if not begin <= due < end:
            continue
        num_requests += 1
        for attempt in tries:
            if attempt.status == 200 and attempt.finished:
                first, last = attempt.token_times[0], attempt.token_times[-1]
                per_token = (last - first) / max(1, attempt.num_tokens - 1)
                if first - due <= ttft and per_token <= tpot:
                    num_kept += 1
                    break
    attainment = num_kept / num_requests if num_requests else math.nan
    return attainment, num_kept / (end - begin)


class AsyncLLM:
    def __init__(self, engine: Any) -> None:
        self.engine, self.dead = engine, False
        self.wishes: asyncio.Queue[Any] = asyncio.Queue()
        self.owners: dict[str, Mailbox] = {}  # of the requests in the engine
        self.callers: set[Mailbox] = set()  # of all who read

    async def run(self) -> None:
        try:
            while True:
                while not self.wishes.empty() or not self.engine.has_unfinished_requests():
                    wish, *args = await self.wishes.get()
                    wish(*args)
                try:
                    outputs = await self.engine.step()
                except Exception as error:
                    for mailbox in self.owners.values():
                        mailbox.put(error)
                    self.owners.clear()
                    continue
                for output in outputs:
                    self.owners[output.request_id].put(output)
                    if output.finished:
                        del self.owners[output.request_id]
        finally:
            self.dead = True
            for mailbox in self.callers:
                mailbox.put(EngineDeadError("The server has stopped."))

    def _add(self, mailbox: Mailbox, request_id: str, prompt: Any, params: Any) -> None:
        try:
            self.engine.add_request(request_id, prompt, params)
            self.owners[request_id] = mailbox
        except Exception as error:
            mailbox.put(error)

    def _drop(self, mailbox: Mailbox, request_id: str) -> None:
        if self.owners.get(request_id) is mailbox:  # else it is done, or somebody else's
            del self.owners[request_id]
            self.engine.abort_request(request_id)

    async def generate(self, request_id: str, prompt: Any, params: Any) -> AsyncIterator[Any]:
        if self.dead:
            raise EngineDeadError("The server has stopped.")
        mailbox = Mailbox()
        self.callers.add(mailbox)
        self.wishes.put_nowait((self._add, mailbox, request_id, prompt, params))
        try:
            while True:
                output = await mailbox.take()
                yield output
                if output.finished:
                    return
        finally:
            self.callers.remove(mailbox)
            self.wishes.put_nowait((self._drop, mailbox, request_id))


def seconds_to_wait(load: Load, num_tokens: int, ttft_limit: float) -> float:
    budget = load.max_num_batched_tokens
    full, rest = divmod(num_tokens, budget)
    alone = full * load.step_seconds(budget) + (load.step_seconds(rest) if rest else 0.0)
    if alone > ttft_limit:
        return math.inf
    room = budget - load.num_running - len(load.waiting)  # for prompts, in the worst case
    if room < 1:
        return ttft_limit  # by then those who wait have their first token
    num_steps = math.ceil((sum(load.waiting) + num_tokens) / room)
    seconds = load.seconds_left + num_steps * load.step_seconds(budget)
    return max(0.0, seconds - ttft_limit)


async def write_events(outputs: Any) -> AsyncIterator[bytes]:

    def event(data: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(data)}\n\n".encode()

    sent = ""
    async with aclosing(outputs):
        try:
            async for output in outputs:
                text = output.outputs[0].text
                if len(text) > len(sent):
                    yield event({"text": text[len(sent) :]})
                    sent = text
        except Exception as error:
            yield event({"error": {"message": str(error)}})
        yield b"data: [DONE]\n\n"
