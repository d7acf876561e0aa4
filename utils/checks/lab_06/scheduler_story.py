"""Stories of requests that come and go, told to a learner's scheduler and to the right one.

There is no model: tokens are made up. After each half of a step, both schedulers must agree in
everything that can be seen from outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.lab.story import Story, Told
from utils.checks.lab_06 import answers, pictures
from utils.checks.lab_06.bare import EOS, BareRequest, bare_request, name_of
from utils.checks.lab_06.memory import blocks_for, status_of
from utils.checks.lab_06.pictures import Mark
from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.request import Request

PARTS_TOLD = 16
DRAWN = 12  # requests in a picture


@dataclass(frozen=True)
class Limits:
    """A small machine."""

    max_num_seqs: int
    budget: int
    num_blocks: int
    block_size: int


def config_of(limits: Limits) -> EngineConfig:
    return EngineConfig(
        max_model_len=limits.num_blocks * limits.block_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.budget,
        num_gpu_blocks=limits.num_blocks,
        block_size=limits.block_size,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )


@dataclass(frozen=True)
class Arrival:
    """A request comes; then there are some steps; then some of all requests are aborted."""

    num_prompt: int
    num_answer: int
    priority: int = 0
    stops: bool = False  # its answer ends with EOS, not because it is long enough
    num_steps: int = 0
    aborted: tuple[int, ...] = ()
    time: float = 0.0


def draw_arrivals(c: Choices, kind: str, block_size: int) -> list[Arrival]:
    """In a crowd the last one is long and important, and pushes others out; "beside" another one
    that is in the middle of its prompt. A swarm are many small ones."""
    crowd, swarm, beside = kind in ("urgent", "beside"), kind == "swarm", kind == "beside"
    longest = 3000 if c.rarely(20) else block_size * (3 if c.rarely(2) else 7)
    arrivals: list[Arrival] = []

    def aborts(rare: int) -> tuple[int, ...]:
        one = lambda: c.integer(0, len(arrivals))  # noqa: E731
        return tuple(dict.fromkeys(c.some(one, 1, 3))) if c.rarely(rare) else ()

    def arrival() -> None:
        num_prompt = c.integer(1, 1 if swarm else 4)
        if not crowd and not swarm and c.rarely(3):
            num_prompt = c.integer(1, longest)
        num_answer = c.pick((1, 2)) if swarm else c.integer(1, 8) + 5 * crowd
        some_steps = 0 if crowd or (swarm and not c.rarely(6)) else c.integer(0, 2)
        priority = c.pick((0, 0, 0, 1, -1, -100))
        aborted = aborts(20 if crowd or swarm else 6)
        arrivals.append(Arrival(num_prompt, num_answer, priority, c.rarely(4), some_steps, aborted))

    c.some(arrival, 2 if crowd else 1, 5 if crowd else 40 if swarm else 8)
    if crowd:
        arrivals[-1] = replace(arrivals[-1], num_steps=c.integer(1, 2))
        if beside:
            arrivals.append(Arrival(c.integer(1, 4), 12, -200, num_steps=c.integer(0, 2)))
        num_blocks = c.integer(3, 7) * (12 // block_size if beside else 1)
        num_prompt = block_size * num_blocks + c.integer(0, block_size - 1)
        last = Arrival(num_prompt, 1, -150, num_steps=c.integer(1, 6), aborted=aborts(2))
        arrivals.append(last)
    times = [100 + 0.01 * i for i in range(len(arrivals))]
    times = c.shuffled(times) if c.rarely(6) else times
    arrivals = [replace(a, time=t) for a, t in zip(arrivals, times, strict=True)]
    if c.rarely(4):  # some come with another one, and are dropped at once: no order matters
        for i, (before, a) in enumerate(itertools.pairwise(arrivals), 1):
            if not before.num_steps and not before.aborted:
                arrivals[i] = replace(
                    a, time=before.time, num_steps=0, aborted=(i,), priority=before.priority
                )
    return arrivals


class SchedulerStory(Story):
    """The setting: the machine's limits. A step whose arguments are none is one of the engine's."""

    @classmethod
    def draw(cls, c: Choices) -> Told:
        """Room for all, or hardly for one; both limits tight; many small requests, or long ones."""
        kind = c.pick(("enough", "few", "enough", "few", "urgent", "beside", "swarm"))
        sizes = {"urgent": (8, 4, 16), "beside": (1, 2, 4)}
        block_size = c.pick(sizes.get(kind, (4, 4, 4, 1, 16)))
        max_num_seqs = c.integer(1, 40) if kind == "swarm" else c.integer(1, 5)
        more = c.integer(0, 6) if kind == "beside" else c.pick((8, c.integer(0, 12)))
        if kind == "urgent":
            more = block_size + c.integer(0, 2 * block_size)
        arrivals = draw_arrivals(c, kind, block_size)
        if kind in ("urgent", "beside"):
            max_num_seqs = max(max_num_seqs, len(arrivals))
        needs = [blocks_for(a.num_prompt + a.num_answer, block_size) for a in arrivals]
        spare = {"urgent": 0, "beside": c.integer(0, 4)}.get(kind, c.integer(0, 3))
        num_blocks = sum(needs) if kind in ("enough", "swarm") else max(needs) + spare
        if max(needs) > 100:
            more += 1500
        limits = Limits(max_num_seqs, max_num_seqs + more, num_blocks, block_size)
        return cls.told(limits, arrivals)

    @classmethod
    def told(cls, limits: Limits, arrivals: Sequence[Arrival]) -> Told:
        """The story of these arrivals: as steps, and in words."""
        steps: list[tuple[str, tuple[Any, ...]]] = []
        parts, count = [cls.tell(limits)], 0
        for number, a in enumerate(arrivals):
            name = name_of(number)
            steps += [("add", (name, a)), *(("step", ()) for _ in range(a.num_steps))]
            when = f" before step {count + 1}" if count else ""
            rank = f", priority {a.priority}" if a.priority else ""
            if number and a.time <= max(b.time for b in arrivals[:number]):
                rank += f", arrived at {a.time:g} s"
            ends = " with EOS" if a.stops else ""
            parts.append(
                f"{name} comes{when}: prompt {a.num_prompt}, answer {a.num_answer}{ends}{rank}"
            )
            count += a.num_steps
            if a.aborted:
                who = tuple(map(name_of, a.aborted))
                steps.append(("abort", who))
                parts.append(f"{' and '.join(who)} aborted before step {count + 1}")
        words = "; ".join(parts if len(parts) < PARTS_TOLD else [*parts[:3], "...", *parts[-11:]])
        return Told(limits, tuple(steps), words)

    @classmethod
    def tell(cls, setting: Limits) -> str:
        return (
            f"max_num_seqs {setting.max_num_seqs}, max_num_batched_tokens {setting.budget}, "
            f"{setting.num_blocks} blocks of {setting.block_size} tokens"
        )

    @classmethod
    def of(cls, answer: Any, limits: Limits, steps: Iterable[tuple[str, tuple[Any, ...]]]) -> Any:
        """The story as it goes with this scheduler, to look at."""
        story = cls(Stage(), limits)
        story.start(answer)
        for kind, arguments in steps:
            getattr(story, f"do_{kind}")(*arguments)
        return story

    def start(self, answer: Any) -> None:
        limits = self.setting
        self.requests: dict[str, BareRequest] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.chart: list[dict[str, Mark]] = []
        self.done: list[tuple[str, tuple[Any, ...]]] = []
        self.manager = KVCacheManager(limits.num_blocks, limits.block_size, enable_caching=False)
        self.stage.now("a new scheduler")
        self.scheduler = self._new(answer, self.manager)
        self._unfinished()
        twin = self._new(answer, KVCacheManager(4, 4, enable_caching=False))
        self.stage.call(twin, "add_request", bare_request("T", 1, max_tokens=1))
        self.see("twin", self.stage.call(self.scheduler, "has_unfinished_requests"), "asked")
        self.stage.see("twin", bool(self.stage.call(self.scheduler, "has_unfinished_requests")))

    def do_add(self, name: str, arrival: Arrival) -> None:
        self.done.append(("add", (name, arrival)))
        self.arrivals[name], self.requests[name] = (
            arrival,
            bare_request(
                name,
                arrival.num_prompt,
                arrival_time=arrival.time,
                max_tokens=arrival.num_answer + arrival.stops,
                priority=arrival.priority,
            ),
        )
        self.see("add", self.stage.call(self.scheduler, "add_request", self.requests[name]))

    def do_abort(self, *who: str) -> None:
        self.done.append(("abort", who))
        self.stage.now(f"abort {' and '.join(who)}")
        dropped = [self.requests[name] for name in who]
        self.see("abort", self.stage.call(self.scheduler, "abort_requests", dropped))
        for clause, what in (
            ("status", status_of),
            ("place", self._place),
            ("blocks", self._num_blocks),
            ("computed", lambda request: request.num_computed_tokens),
        ):
            for request in self.requests.values():
                self._see(f"aborted {clause}", f"{request.request_id}: {what(request)}")

    def do_step(self) -> None:
        """Schedule a step, compute it in thought, and book it."""
        if not self._unfinished():
            return
        self.done.append(("step", ()))
        number = len(self.chart) + 1
        self.stage.now(f"step {number}: schedule")
        self.alive = [r for r in self.requests.values() if not r.is_finished]
        before = {r.request_id: self._place(r) for r in self.alive}
        lacking = {r.request_id: r.lacking for r in self.alive}
        output = self.stage.call(self.scheduler, "schedule")
        if not isinstance(output, SchedulerOutput):
            self._see("schedule", output)
        self._see("schedule", "a SchedulerOutput")
        self._mark(output, before)
        self._see_plan(output, before, lacking)
        sampled = self._compute(output)
        self.stage.now(f"step {number}: update_from_output")
        plan = dict(output.num_scheduled_tokens), list(output.scheduled_requests)
        self.see("update", self.stage.call(self.scheduler, "update_from_output", output, sampled))
        self._see("output", plan == (output.num_scheduled_tokens, output.scheduled_requests))
        self._see("finished place", self._of(self.alive, self._place))
        self._see("finished blocks", self._of(self.alive, self._num_blocks))
        self._see("progress", self._of(self.alive, lambda request: request.num_computed_tokens))
        self._see("status", self._of(self.alive, status_of))

    def end(self) -> None:
        while self._unfinished():
            self.do_step()

    def _unfinished(self) -> bool:
        got = self.stage.call(self.scheduler, "has_unfinished_requests")
        self._see("has_unfinished", got if isinstance(got, Raised) else bool(got))
        return any(not request.is_finished for request in self.requests.values())

    def _new(self, answer: Any, manager: KVCacheManager) -> Any:
        config = config_of(self.setting)
        return self.see("new", self.stage.do(answer, config, manager), "a scheduler")

    def _see_plan(
        self, output: SchedulerOutput, before: dict[str, str], lacking: dict[str, int]
    ) -> None:
        """First what no plan may do, whatever it is for; then whether it is the right one."""
        tokens, victims, limits = (
            output.num_scheduled_tokens,
            output.preempted_req_ids,
            self.setting,
        )
        odd = {n: t for n, t in tokens.items() if not isinstance(t, Integral) or t < 1}
        self._see("counts", told(odd))
        self._see("unknown", told(name for name in tokens if name not in before))
        self._see("twice", told({n: t for n, t in tokens.items() if t > lacking[n]}))
        self._see("budget", max(sum(tokens.values()), limits.budget), "{} tokens".format)
        ran = [name for name, place in before.items() if place == "running"]
        joined = [name for name in tokens if name not in ran]
        num_seqs = len({*ran, *joined} - set(victims))
        self._see("seqs", max(num_seqs, limits.max_num_seqs), "{}".format)
        self._see("preempted", told(victims))
        self._see("served", told(name for name in victims if name in tokens))
        gone = [self.requests[name] for name in victims]
        self._see("victims computed", self._of(gone, lambda request: request.num_computed_tokens))
        self._see("victims blocks", self._of(gone, self._num_blocks))
        self._see("victims place", self._of(gone, self._place))
        self._see("stand still", told(n for n in ran if n not in tokens and n not in victims))
        self._see("joined", told(sorted(joined)))
        self._see("tokens", told(dict(sorted(tokens.items()))))
        self._see("blocks", self._of(self.alive, self._num_blocks))
        self._see("computed", self._of(self.alive, lambda request: request.num_computed_tokens))
        self._see("place", self._of(self.alive, self._place))
        self._see("status", self._of(self.alive, status_of))

    def _compute(self, output: SchedulerOutput) -> list[Request]:
        """New tokens for the requests that lack nothing any more; which these are."""
        sampled: list[Request] = []
        for name, num_scheduled in output.num_scheduled_tokens.items():
            request, arrival = self.requests[name], self.arrivals[name]
            if request.lacking == num_scheduled:
                last = len(request.output_token_ids) + 1 == arrival.num_answer
                request.append_token(EOS if arrival.stops and last else 100)
                sampled.append(request)
        return sampled

    def _of(self, requests: Sequence[Request], what: Callable[[Request], Any]) -> str:
        return told({request.request_id: what(request) for request in requests})

    def _place(self, request: Request) -> str:
        lists = ("running", "waiting")
        found = [n for n in lists for other in getattr(self.scheduler, n) if other is request]
        return " and ".join(found) or "gone"

    def _num_blocks(self, request: Request) -> int:
        return len(self.manager.get_blocks(request.request_id))

    def _see(self, clause: str, value: Any, show: Callable[[Any], str] = str) -> None:
        self.stage.see(clause, value, show, self._picture)

    def _mark(self, output: SchedulerOutput, before: dict[str, str]) -> None:
        """The step as cells of the picture."""
        marks = {name: Mark("waits") for name, place in before.items() if place == "waiting"}
        for name, count in output.num_scheduled_tokens.items():
            answered = name in self.requests and self.requests[name].output_token_ids
            kind = "prompt" if not answered else "answer" if count == 1 else "again"
            marks[name] = Mark(kind, count)
        self.chart.append(marks | {name: Mark("lost") for name in output.preempted_req_ids})

    def _picture(self, expected: Any, got: Any) -> tuple[Figure | None, str]:
        """The steps so far beside those of the right scheduler, where they differ."""
        right, count = self.of(answers.MyScheduler, self.setting, self.done).chart, len(self.chart)
        if right[:count] == self.chart or len(self.requests) > DRAWN:
            return None, ""
        figure = pictures.gantt(
            list(self.requests),
            {"expected": right[:count], "yours": self.chart},
            f"The first {count} steps" if count > 1 else "The first step",
        )
        return figure, "The steps so far, request by request: expected, and yours."


def told(found: Any) -> str:
    """Names, perhaps with a number each, in words."""
    parts = [f"{n}: {v}" for n, v in found.items()] if isinstance(found, dict) else list(found)
    return ", ".join(map(str, parts)) or "nobody"
