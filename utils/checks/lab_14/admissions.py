"""Let in, or "come back later"? A rule is judged by what becomes of the requests: exercise 5."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first
from utils.checks.lab_14.kinds import Load
from utils.checks.lab_14.simulated_server import Job, Server, StepSeconds

RETURNS = 3  # so often a request may come back before it is let in, with nobody else there


@dataclass(frozen=True)
class Arrival:
    gap: float  # seconds after the one before
    num_tokens: int  # of the prompt
    answer: int  # tokens of the answer, which the rule does not know


@dataclass(frozen=True)
class Story:
    """Who comes when to a server with these steps, and what was promised."""

    max_num_batched_tokens: int
    step_seconds: StepSeconds
    ttft_limit: float
    arrivals: tuple[Arrival, ...]


def draw_story(c: Choices) -> Story:
    """All times are sums of powers of two, so that nothing is lost in rounding."""
    budget = c.pick((8, 8, 16, 64, 2048))
    scale = c.pick((1.0, 1.0, 2.0**-10, 64.0))
    steps = StepSeconds(scale * c.pick((1, 1, 4)), scale * c.pick((0, 1, 2)) / 64)
    limit = steps(budget) * c.pick((3, 2, 1, 4, 8, 12)) + scale * c.pick((0, 0, 1, 3)) / 4

    crowded = c.rarely(3)  # so many that a step has no room for prompts

    def arrival() -> Arrival:
        if crowded and not c.rarely(4):
            return Arrival(steps(1) * c.pick((0, 0, 1)), c.pick((1, 3)), 30)
        gap = 0.0 if c.rarely(3) else steps(budget) * c.pick((1, 2, 1, 4, 20)) / 4
        tokens = c.pick(
            (budget, 1, budget // 2, budget + 1, 2 * budget, 3, budget - 1, 5 * budget, 14 * budget)
        )
        return Arrival(gap, tokens, c.pick((1, 1, 4, 30, 30)))

    return Story(budget, steps, limit, tuple(c.some(arrival, 0, 24)))


def surely(load: Load, num_tokens: int, spare: int = 0) -> float:
    """Seconds by which the first token is there for certain: nobody who is being answered ends,
    who waits is answered as well, and each step is full, whoever comes later."""
    room = load.max_num_batched_tokens - load.num_running - len(load.waiting) - spare
    if room < 1:
        return math.inf
    num_steps = -(-(sum(load.waiting) + num_tokens) // room) + spare
    return load.seconds_left + num_steps * load.step_seconds(load.max_num_batched_tokens)


def alone(load: Load, num_tokens: int) -> float:
    """Seconds to the first token in an idle server."""
    full, rest = divmod(num_tokens, load.max_num_batched_tokens)
    seconds = full * load.step_seconds(load.max_num_batched_tokens)
    return seconds + (load.step_seconds(rest) if rest else 0.0)


class KeepsPromises:
    """Judges a rule by what becomes of the requests in a story."""

    def tell(self, story: Story) -> str:
        steps = story.step_seconds
        each = f" and {steps.per_token:g} s more for each token" if steps.per_token else ""
        return (
            f"a step has up to {story.max_num_batched_tokens} tokens, and takes {steps.fixed:g} s"
            f"{each}; ttft_limit is {story.ttft_limit:g}; requests (and their tokens) come "
            + ", ".join(f"after {a.gap:g} s ({a.num_tokens})" for a in story.arrivals)
        )

    def expect(self, story: Story) -> None:
        return None

    def fault(self, rule: Any, story: Story, _: None) -> Fault | None:
        as_at_first(rule)
        server = Server(story.max_num_batched_tokens, story.step_seconds)
        visits = {}
        for number, arrival in enumerate(story.arrivals, 1):
            server.advance(server.now + arrival.gap)
            visit = _Visit(rule, server, number, arrival.num_tokens, story.ttft_limit)
            visits[number] = visit
            got = visit.ask(server)
            fault = visit.fault_of(got)
            if fault is not None:
                return fault
            if got == 0:
                server.admit(Job(number, server.now, arrival.num_tokens, arrival.answer))
        server.advance(math.inf)
        for job in sorted(server.done, key=lambda job: job.number):
            ttft = (job.first_token or 0.0) - job.came
            if ttft > story.ttft_limit * (1 + 1e-9):
                words = f"at most {story.ttft_limit:g} s", f"{ttft:g} s"
                return Fault("promise", visits[job.number].where, words=words, got=ttft)
        return None


class _Visit:
    """A request that comes to the server, and is let in or not."""

    def __init__(self, rule: Any, server: Server, number: int, num_tokens: int, limit: float):
        self.rule, self.server, self.num_tokens, self.limit = rule, server, num_tokens, limit
        self.load = load = server.load()
        self.where = (
            f"request {number}: num_tokens={num_tokens}, waiting={load.waiting}, "
            f"num_running={load.num_running}, seconds_left={load.seconds_left:g}"
        )

    def ask(self, server: Server) -> Any:
        return attempt(self.rule, server.load(), self.num_tokens, self.limit)

    def blame(self, clause: str, expected: str, got: Any) -> Fault:
        words = None if isinstance(got, Raised) else (expected, _seconds(got))
        says, look = (got.says, got.look) if isinstance(got, Raised) else ("", "")
        return Fault(clause, self.where, expected, got, says, look, words)

    def fault_of(self, got: Any) -> Fault | None:
        """What is wrong with what this request is told; its own TTFT is seen later."""
        load, tokens, limit = self.load, self.num_tokens, self.limit
        if isinstance(got, Raised):
            return self.blame("raises", "seconds", got)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        if not number or math.isnan(got) or got < 0:
            return self.blame("seconds", "0 or more seconds", got)
        idle = Load((), 0, 0.0, load.max_num_batched_tokens, load.step_seconds)
        if alone(load, tokens) > limit and got < math.inf:
            return self.blame("never", "math.inf", got)
        if surely(load, tokens, spare=1) <= limit and got > 0:
            return self.blame("shy", "0 s", got)
        if surely(idle, tokens) > limit or got == 0:
            return None
        if got == math.inf:
            return self.blame("not never", "0 s, or a time after which to come back", got)
        num_steps = sum(load.waiting) + tokens
        most = load.seconds_left + limit + num_steps * load.step_seconds(self.server.budget)
        if got > most:
            return self.blame("long", f"at most {most:g} s", got)
        return self.comes_back(got)

    def comes_back(self, seconds: float) -> Fault | None:
        """The request returns when it was told to; meanwhile nobody else comes."""
        quiet, told = self.server.with_short_answers(), [seconds]
        for _ in range(RETURNS):
            quiet.advance(quiet.now + told[-1])
            got = self.ask(quiet)
            if isinstance(got, Raised):
                return self.blame("raises", "seconds", got)
            if got == 0:
                return None
            told.append(got)
        times = ", then ".join(f"{s:g} s" for s in told)
        words = f"let in at the {RETURNS}rd return", f"told to wait {times}"
        return Fault("again", self.where, words=words, got=tuple(told))


def _seconds(got: Any) -> str:
    is_number = isinstance(got, int | float) and not isinstance(got, bool)
    return f"{got:g} s" if is_number and math.isfinite(got) else repr(got)
