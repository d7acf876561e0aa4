"""Stories of requests that come and go, told to the learner's scheduler and to a right one.

The model is left out: tokens are made up. After each half of a step, both must agree in everything
that can be seen from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure

from utils.checks.kit.contracts import Raised, Stage
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import EOS, Arrival, Story, bare_request, name_of
from utils.checks.lab_06.pictures import Mark
from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.request import Request


def scheduler_output(
    num_scheduled_tokens: dict[str, int],
    running: Sequence[Request],
    preempted: Sequence[Request],
    kv_cache_manager: Any,
) -> SchedulerOutput:
    """A step in the form that the engine wants it in: with block tables, and counted."""
    requests = [r for r in running if r.request_id in num_scheduled_tokens]
    for request in requests:
        request.scheduled_ts = request.scheduled_ts or perf_counter()
    for request in preempted:
        request.num_preemptions += 1
    preempted_req_ids = [request.request_id for request in preempted]
    output = SchedulerOutput.of(
        requests, num_scheduled_tokens, kv_cache_manager, preempted_req_ids=preempted_req_ids
    )
    output.num_scheduled_tokens = dict(num_scheduled_tokens)  # also of who is in no list
    return output


def play_beside(right: Any) -> Callable[[Stage, Any, Story], None]:
    """A play whose pictures show this right scheduler, too."""
    return lambda stage, answer, story: Teller(stage, answer, story, right).tell()


class Teller:
    """Tells a story, and shows the stage what can be seen of it."""

    def __init__(self, stage: Stage, answer: Any, story: Story, right: Any = None) -> None:
        self.stage, self.story, self.answer, self.right = stage, story, answer, right
        self.requests: dict[str, Request] = {}
        self.alive: list[Request] = []
        self.arrivals: dict[str, Arrival] = {}
        self.chart: list[dict[str, Mark]] = []
        self.manager = KVCacheManager(story.num_blocks, story.block_size, enable_caching=False)
        stage.now("a new scheduler")
        self.scheduler = self._new(self.manager)

    def tell(self) -> None:
        story = self.story
        twin = self._twin() if story.has_twin else None
        for number, arrival in enumerate(story.arrivals):
            self._add(number, arrival)
            for _ in range(arrival.num_steps):
                if self._unfinished():
                    self._step()
            if arrival.aborted:
                self._abort([self.requests[name_of(i)] for i in arrival.aborted])
        while self._unfinished():
            self._step()
        if twin is not None:
            self.stage.now("the second scheduler, which has one request: schedule()")
            output = self.stage.call(twin, "schedule")
            got = getattr(output, "num_scheduled_tokens", output)
            self._see("twin", dict(got) if isinstance(got, dict) else got)

    def _new(self, manager: KVCacheManager) -> Any:
        story = self.story
        config = EngineConfig(
            max_model_len=story.num_blocks * story.block_size,
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_num_seqs=story.max_num_seqs,
            max_num_batched_tokens=story.budget,
            num_gpu_blocks=story.num_blocks,
            block_size=story.block_size,
            enable_prefix_caching=False,
            scheduling_policy="priority",
        )
        made = self.stage.do(self.answer, config, manager)
        self._see("new", made if isinstance(made, Raised) else "a scheduler")
        return made

    def _twin(self) -> Any:
        twin = self._new(KVCacheManager(4, 4, enable_caching=False))
        self.stage.call(twin, "add_request", bare_request("twin", 1, max_tokens=1))
        return twin

    def _add(self, number: int, arrival: Arrival) -> None:
        request = bare_request(
            name_of(number),
            arrival.num_prompt,
            arrival=self.story.times[number],
            max_tokens=arrival.num_answer + 1 if arrival.stops else arrival.num_answer,
            priority=arrival.priority,
        )
        self.requests[request.request_id] = request
        self.arrivals[request.request_id] = arrival
        got = self.stage.call(self.scheduler, "add_request", request)
        self._see("add", got if isinstance(got, Raised) else "no error")

    def _unfinished(self) -> bool:
        got = self.stage.call(self.scheduler, "has_unfinished_requests")
        self._see("has_unfinished", got if isinstance(got, Raised) else bool(got))
        return any(not request.is_finished for request in self.requests.values())

    def _abort(self, dropped: list[Request]) -> None:
        self.stage.now(f"abort {' and '.join(request.request_id for request in dropped)}")
        got = self.stage.call(self.scheduler, "abort_requests", dropped)
        self._see("abort", got if isinstance(got, Raised) else "no error")
        everybody = list(self.requests.values())
        self._see("aborted status", self._of(everybody, _status))
        self._see("aborted place", self._of(everybody, self._place))
        self._see("aborted blocks", self._of(everybody, self._num_blocks))
        self._see("aborted", self._of(everybody, lambda request: request.num_computed_tokens))

    def _step(self) -> None:
        """Schedule a step, compute it in thought, and book it."""
        number = len(self.chart) + 1
        self.stage.now(f"step {number}: schedule")
        self.alive = [r for r in self.requests.values() if not r.is_finished]
        before = {r.request_id: self._place(r) for r in self.alive}
        lacking = {r.request_id: r.num_tokens - r.num_computed_tokens for r in self.alive}
        output = self.stage.call(self.scheduler, "schedule")
        if not isinstance(output, SchedulerOutput):
            self._see("schedule", output)
        self._see("schedule", "a SchedulerOutput")
        self._mark(output, before)
        self._see_plan(output, before, lacking)
        sampled = self._compute(output)
        self.stage.now(f"step {number}: update_from_output")
        plan = dict(output.num_scheduled_tokens), list(output.scheduled_requests)
        got = self.stage.call(self.scheduler, "update_from_output", output, sampled)
        self._see("update", got if isinstance(got, Raised) else "no error")
        self._see("output", plan == (output.num_scheduled_tokens, output.scheduled_requests))
        self._see("finished place", self._of(self.alive, self._place))
        self._see("finished blocks", self._of(self.alive, self._num_blocks))
        self._see("progress", self._of(self.alive, lambda request: request.num_computed_tokens))
        self._see("status", self._of(self.alive, _status))

    def _see_plan(
        self, output: SchedulerOutput, before: dict[str, str], lacking: dict[str, int]
    ) -> None:
        """First what no plan may do, whatever it is for; then whether it is the right one."""
        tokens, victims, story = output.num_scheduled_tokens, output.preempted_req_ids, self.story
        odd = {n: t for n, t in tokens.items() if not isinstance(t, int) or t < 1}
        self._see("counts", _told(odd))
        self._see("unknown", _told(name for name in tokens if name not in before))
        self._see("twice", _told({n: t for n, t in tokens.items() if t > lacking[n]}))
        total = sum(tokens.values())
        self._see("budget", max(total, story.budget), lambda n: f"{n} tokens")
        ran = [name for name, place in before.items() if place == "running"]
        joined = [name for name in tokens if name not in ran]
        num_seqs = len({*ran, *joined} - set(victims))
        self._see("seqs", max(num_seqs, story.max_num_seqs), lambda n: f"{n}")
        self._see("preempted", _told(victims))
        self._see("served", _told(name for name in victims if name in tokens))
        gone = [self.requests[name] for name in victims]
        self._see("victims computed", self._of(gone, lambda request: request.num_computed_tokens))
        self._see("victims blocks", self._of(gone, self._num_blocks))
        self._see("victims place", self._of(gone, self._place))
        self._see("stand still", _told(n for n in ran if n not in tokens and n not in victims))
        self._see("joined", _told(sorted(joined)))
        self._see("tokens", _told(dict(sorted(tokens.items()))))
        self._see("blocks", self._of(self.alive, self._num_blocks))
        self._see("computed", self._of(self.alive, lambda request: request.num_computed_tokens))
        self._see("place", self._of(self.alive, self._place))
        self._see("status", self._of(self.alive, _status))

    def _compute(self, output: SchedulerOutput) -> list[Request]:
        """New tokens for those that are up to date; who gained one."""
        sampled = []
        for name, num_scheduled in output.num_scheduled_tokens.items():
            request, arrival = self.requests[name], self.arrivals[name]
            if request.num_computed_tokens + num_scheduled == request.num_tokens:
                last = len(request.output_token_ids) + 1 == arrival.num_answer
                request.append_token(EOS if arrival.stops and last else 100)
                sampled.append(request)
        return sampled

    def _of(self, requests: Sequence[Request], what: Callable[[Request], Any]) -> str:
        return _told({request.request_id: what(request) for request in requests})

    def _place(self, request: Request) -> str:
        found = [
            name
            for name in ("running", "waiting")
            for other in getattr(self.scheduler, name)
            if other is request
        ]
        return " and ".join(found) or "gone"

    def _num_blocks(self, request: Request) -> int:
        return len(self.manager.req_to_blocks.get(request.request_id, ()))

    def _see(self, clause: str, value: Any, show: Callable[[Any], str] = str) -> None:
        self.stage.see(clause, value, show, self._picture)

    def _mark(self, output: SchedulerOutput, before: dict[str, str]) -> None:
        """The step as cells of the picture."""
        marks = {name: Mark("waits") for name, place in before.items() if place == "waiting"}
        for name, count in output.num_scheduled_tokens.items():
            answered = name in self.requests and self.requests[name].output_token_ids
            kind = "prompt" if not answered else "answer" if count == 1 else "again"
            marks[name] = Mark(kind, count)
        marks |= {name: Mark("lost") for name in output.preempted_req_ids}
        self.chart.append(marks)

    def _picture(self, expected: Any, got: Any) -> tuple[Figure | None, str]:
        """The steps so far, beside those of a right scheduler."""
        right = Teller(Stage(), self.right, self.story)
        right.tell()
        count = len(self.chart)
        if not count or len(self.requests) > 12:
            return None, ""
        figure = pictures.gantt(
            list(self.requests),
            {"expected": right.chart[:count], "yours": self.chart},
            f"The first {count} steps" if count > 1 else "The first step",
        )
        return figure, "The steps so far, request by request: expected, and yours."


def _told(names: Any) -> str:
    """Names, perhaps with a number each, in words."""
    parts = [f"{n}: {v}" for n, v in names.items()] if isinstance(names, dict) else list(names)
    return ", ".join(map(str, parts)) or "nobody"


def _status(request: Request) -> str:
    return str(getattr(request.status, "name", request.status))
