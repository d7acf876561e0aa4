"""Let in, or "come back later"? A rule is judged by what becomes of those let in: exercise 5."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Raised, mistake
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first
from utils.checks.lab_14.simulated_server import Job, Load, Server, StepSeconds

VISITS = 3  # a request that is refused so often, with nobody else there, was told a wrong time


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
        return (
            f"steps of up to {story.max_num_batched_tokens} tokens, which take {steps.fixed:g} s "
            f"and {steps.per_token:g} s per token; ttft_limit {story.ttft_limit:g}; requests come "
            + ", ".join(f"after {a.gap:g} s ({a.num_tokens} tokens)" for a in story.arrivals)
        )

    def expect(self, story: Story) -> None:
        return None

    def fault(self, rule: Any, story: Story, _: None) -> Fault | None:
        as_at_first(rule)
        server = Server(story.max_num_batched_tokens, story.step_seconds)
        for number, arrival in enumerate(story.arrivals, 1):
            server.advance(server.now + arrival.gap)
            load = server.load()
            where = f"request {number}: {_told(load, arrival.num_tokens)}"
            got = attempt(rule, load, arrival.num_tokens, story.ttft_limit)
            fault = self._of_one(rule, story, server, arrival.num_tokens, got, where)
            if fault is not None:
                return fault
            if got == 0:
                server.admit(Job(number, server.now, arrival.num_tokens, arrival.answer))
        server.advance(math.inf)
        for job in sorted(server.done, key=lambda job: job.number):
            ttft = (job.first_token or 0.0) - job.came
            if ttft > story.ttft_limit * (1 + 1e-9):
                return Fault(
                    "promise",
                    f"request {job.number}",
                    story.ttft_limit,
                    ttft,
                    words=(f"at most {story.ttft_limit:g} s", f"{ttft:g} s"),
                )
        return None

    def _of_one(
        self, rule: Any, story: Story, server: Server, num_tokens: int, got: Any, where: str
    ) -> Fault | None:
        load, limit = server.load(), story.ttft_limit
        if isinstance(got, Raised):
            return Fault("raises", where, "seconds", got, got.says, got.look)
        number = isinstance(got, int | float) and not isinstance(got, bool)
        if not number or math.isnan(got) or got < 0:
            return Fault("seconds", where, "0 or more seconds", got)
        if alone(load, num_tokens) > limit and got < math.inf:
            return Fault("never", where, math.inf, got)
        if surely(load, num_tokens, spare=1) <= limit and got > 0:
            return Fault("shy", where, 0.0, got)
        most_steps = sum(load.waiting) + num_tokens
        most = load.seconds_left + limit + most_steps * load.step_seconds(server.budget)
        idle = Load((), 0, 0.0, load.max_num_batched_tokens, load.step_seconds)
        if surely(idle, num_tokens) > limit or got == 0:
            return None
        if got > most:
            return Fault("long", where, most, got, words=(f"at most {most:g} s", f"{got:g} s"))
        return self._comes_back(rule, story, server, num_tokens, got, where)

    def _comes_back(
        self, rule: Any, story: Story, server: Server, num_tokens: int, first: float, where: str
    ) -> Fault | None:
        quiet, seconds = server.with_short_answers(), [first]
        while len(seconds) <= VISITS:
            quiet.advance(quiet.now + seconds[-1])
            got = attempt(rule, quiet.load(), num_tokens, story.ttft_limit)
            if isinstance(got, Raised):
                return Fault(
                    "raises", f"{where}; it comes back", "seconds", got, got.says, got.look
                )
            if got == 0:
                return None
            seconds.append(got)
        told = ", ".join(f"{s:g}" for s in seconds[:VISITS])
        return Fault(
            "again", where, f"let in by visit {VISITS + 1}", f"refused again; told {told} s"
        )


def _told(load: Load, num_tokens: int) -> str:
    return (
        f"{num_tokens} tokens, waiting={load.waiting}, num_running={load.num_running}, "
        f"seconds_left={load.seconds_left:g}"
    )


def _rule(change: str) -> Any:
    """The plain rule, but for one thing."""

    def rule(load: Load, num_tokens: int, ttft_limit: float) -> float:
        if change == "everybody":
            return 0.0
        if alone(load, num_tokens) > ttft_limit and change != "never says never":
            return math.inf
        budget, own = load.max_num_batched_tokens, num_tokens
        room = budget - load.num_running - len(load.waiting)
        left, step = load.seconds_left, load.step_seconds(budget)
        if change == "answers are free":
            room = budget
        if change == "the running step":
            left = 0.0
        if change == "its own prompt":
            own = 0
        if room < 1:
            return ttft_limit
        num_steps: float = -(-(sum(load.waiting) + own) // room)
        if change == "fractions":
            num_steps = (sum(load.waiting) + own) / room
        if change == "requests":
            num_steps = len(load.waiting) + 1
        seconds = left + num_steps * step
        if change == "shy" and (load.waiting or load.num_running):
            return max(ttft_limit, 2.0**-20)
        if change == "half" and seconds > ttft_limit / 2:
            return ttft_limit
        if seconds <= ttft_limit:
            return 0.0
        if change == "a second":
            return 1.0
        if change == "in no time":
            return 1e-6 * ttft_limit
        return seconds - ttft_limit

    return rule


COUNT = (
    "How many steps until the last of its tokens, with those who wait before it? And how many "
    "tokens of a step are left to prompts?"
)

SECONDS_TO_WAIT = Contract(
    inputs=draw_story,
    judge=KeepsPromises(),
    passed="Your rule keeps its promise to all that it lets in, and turns nobody away for nothing.",
    clauses={
        "promise": Clause(
            "A request was let in, and its first token came too late: {got}, promised {expected}.",
            COUNT,
        ),
        "seconds": Clause(
            "That is no time to wait: {got}.", "0.0, a positive number, or `math.inf`."
        ),
        "never": Clause(
            "This prompt cannot be computed in time by an idle server. Who is told "
            "{got} will come again and again.",
            "`math.inf`.",
        ),
        "shy": Clause(
            "A request is turned away ({got} s) though there is more than enough time.",
            "In the worst case nobody ends; count its steps, with one to spare.",
        ),
        "long": Clause(
            "Who is refused is sent away for {got}; by then the server has long been idle.",
            "The waiting ones have their first token within `ttft_limit`.",
        ),
        "again": Clause(
            "Who comes back when told, with nobody else there, is refused again and again: {got}.",
            "By how much is the first token too late?",
        ),
    },
    mistakes=(
        mistake("Everybody is let in: soon everybody is late.", COUNT, _rule("everybody")),
        mistake(
            "Those who are being answered take a token of each step, and those who wait will. "
            "Less is left to prompts.",
            COUNT,
            _rule("answers are free"),
        ),
        mistake(
            "The running step must end before anything else begins.",
            "Add `seconds_left`.",
            _rule("the running step"),
        ),
        mistake(
            "The request's own prompt must be computed, too.",
            "Add its tokens to those that wait.",
            _rule("its own prompt"),
        ),
        mistake(
            "A part of a step takes a whole one: others may fill it up.",
            "Round the number of steps up.",
            _rule("fractions"),
        ),
        mistake(
            "Requests are counted, not their tokens: prompts differ.", COUNT, _rule("requests")
        ),
        mistake(
            "A prompt that an idle server cannot compute in time is let in, or told to come back.",
            "`math.inf`.",
            _rule("never says never"),
        ),
        mistake(
            "Only an idle server lets somebody in.",
            "There is room for as many as have their first token in time.",
            _rule("shy"),
            _rule("half"),
        ),
        mistake(
            "A second is nothing for one server, and for ever for another.",
            "By how much is the first token too late?",
            _rule("a second"),
        ),
        mistake(
            "Who is told to come back in no time comes a hundred times.",
            "By how much is the first token too late?",
            _rule("in no time"),
        ),
    ),
    examples=200,
)
