"""Small stories about requests that come and go, each told to the learner's scheduler.

Beside it runs a scheduler of plain numbers, `PlainScheduler`. After each half of a step, both must
agree in everything that can be seen from outside. The model is left out: tokens are made up.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from matplotlib.figure import Figure

from utils.checks.kit.runner import Mismatch, call, describe
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import WatchedManager, bare_request
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.plain_scheduler import Job, PlainScheduler, Plan
from utils.checks.lab_06.step_mistakes import Step, wrong_plan, wrong_update
from utils.engine.config.engine import EngineConfig
from utils.engine.core.scheduler import Scheduler
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.request import Request, RequestStatus

METHODS = ("schedule", "update_from_output", "abort_requests")
BLOCK_SIZE = 4
PATIENCE_S = 1  # of computing, not of waiting


def scheduler_output(
    num_scheduled_tokens: dict[str, int],
    running: Sequence[Request],
    preempted: Sequence[Request],
    kv_cache_manager: Any,
) -> SchedulerOutput:
    """A step in the form that the engine wants it in: with block tables, and counted."""
    requests = [r for r in running if r.request_id in num_scheduled_tokens]
    for request in requests:
        request.metrics.record_scheduled()
    for request in preempted:
        request.metrics.num_preemptions += 1
    return SchedulerOutput(
        requests, dict(num_scheduled_tokens),
        {r.request_id: kv_cache_manager.get_block_ids(r.request_id) for r in requests},
        kv_cache_manager.take_block_copies(),
        [request.request_id for request in preempted],
    )  # fmt: skip


@contextlib.contextmanager
def engine_methods_refuse() -> Iterator[None]:
    """While this is on, a learner's scheduler cannot let the engine's do the work."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Mismatch(
            "The engine's own scheduler does the work, by inheritance or through `super()`.",
            look=f"Write all three methods yourself: {', '.join(METHODS)}.",
        )

    with contextlib.ExitStack() as stack:
        for method in METHODS:
            stack.enter_context(patch.object(Scheduler, method, refuse))
        yield


class Story:
    """A learner's scheduler and one of plain numbers, moved in step."""

    def __init__(
        self, scheduler_class: Callable[..., Any], max_num_seqs: int = 4, budget: int = 8,
        num_blocks: int = 32,
    ) -> None:  # fmt: skip
        self.manager = WatchedManager(num_blocks, BLOCK_SIZE)
        config = EngineConfig(
            max_model_len=num_blocks * BLOCK_SIZE, dtype=torch.float32, device=torch.device("cpu"),
            max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, num_gpu_blocks=num_blocks,
            block_size=BLOCK_SIZE, enable_prefix_caching=False, scheduling_policy="priority",
        )  # fmt: skip
        self.plain = PlainScheduler(max_num_seqs, budget, num_blocks, BLOCK_SIZE)
        self.requests: dict[str, Request] = {}
        self.events: list[str] = []
        self.num_steps = 0
        self.expected: list[dict[str, Mark]] = []
        self.yours: list[dict[str, Mark]] = []
        self.scheduler = call(scheduler_class, config, self.manager, given=self.told)

    # --- what happens ----------------------------------------------------------------------------

    def add(self, name: str, num_prompt: int, num_answer: int, priority: int = 0) -> None:
        when = f", before step {self.num_steps + 1}" if self.num_steps else ""
        rank = f", priority {priority}" if priority else ""
        self.events.append(f"{name} comes{when}: prompt {num_prompt}, answer {num_answer}{rank}")
        job = self.plain.add(name, num_prompt, num_answer, priority)
        request = bare_request(name, num_prompt, num_answer, float(job.arrival), priority)
        self.requests[name] = request
        call(self.scheduler.add_request, request, given=self.told)

    def abort(self, *names: str) -> None:
        self.events.append(f"{' and '.join(names)}: aborted before step {self.num_steps + 1}")
        dropped = [self.requests[name] for name in names]
        before = [request.status for request in dropped]
        call(self.scheduler.abort_requests, list(dropped), given=self.told)
        for request, status in zip(dropped, before, strict=True):
            name = request.request_id
            if not self.plain.jobs[name].done:
                self.plain.drop(name)
                if request.status != RequestStatus.FINISHED_ABORTED:
                    raise self.wrong(
                        f"{name} is aborted, but its status is {request.status.name}.",
                        "`request.status = RequestStatus.FINISHED_ABORTED`.",
                    )
            elif request.status != status:
                raise self.wrong(
                    f"{name} was finished already, and is now marked as aborted.",
                    "Skip what `request.is_finished`.",
                )
        self._judge(wrong_update(self._step(Plan()), aborted=names))

    def step(self) -> None:
        """Schedule a step, compute it in thought, and book it."""
        self.num_steps += 1
        before = self._step(Plan())
        with self._watched():
            output = call(self.scheduler.schedule, given=self.told)
        step = before._replace(plan=self.plain.schedule())
        self.expected.append(self._marks(step, step.plan.tokens, step.plan.preempted))
        if not isinstance(output, SchedulerOutput):
            raise self.wrong(
                f"`schedule` returned {describe(output)}; expected a SchedulerOutput.",
                "Keep the last line: `return scheduler_output(...)`.",
            )
        self.yours.append(self._marks(step, output.num_scheduled_tokens, output.preempted_req_ids))
        self._judge(wrong_plan(step, output))
        sampled = []
        for request in output.scheduled_requests:
            end = request.num_computed_tokens + output.num_scheduled_tokens[request.request_id]
            if end == request.num_tokens:
                request.append_token(100 + request.num_tokens)
                sampled.append(request)
        self.plain.finish(step.plan)
        call(self.scheduler.update_from_output, output, list(sampled), given=self.told)
        self._judge(wrong_update(self._step(step.plan)))

    def run(self) -> None:
        """Step by step until all are finished."""
        while self.plain.running() or self.plain.waiting():
            if not call(self.scheduler.has_unfinished_requests, given=self.told):
                raise self.wrong("`has_unfinished_requests()` is False, but some are unfinished.")
            self.step()
        if call(self.scheduler.has_unfinished_requests, given=self.told):
            raise self.wrong(
                "All requests are finished, but `has_unfinished_requests()` is True.",
                "Who is finished leaves `running`, and never comes back to `waiting`.",
            )

    # --- judgement -------------------------------------------------------------------------------

    @property
    def told(self) -> str:
        plain = self.plain
        room = (
            f", {plain.num_blocks} blocks of {BLOCK_SIZE} tokens" if plain.num_blocks < 32 else ""
        )
        events = self.events if len(self.events) <= 12 else ["...", *self.events[-11:]]
        where = f"; now in step {self.num_steps}" if self.num_steps else ""
        return (
            f"max_num_seqs {plain.max_num_seqs}, max_num_batched_tokens "
            f"{plain.max_num_batched_tokens}{room}; {'; '.join(events)}{where}"
        )

    def wrong(self, says: str, look: str = "", expected: str = "", got: str = "") -> Mismatch:
        return Mismatch(
            says, input=self.told, expected=expected, got=got, look=look, figure=self._picture(),
            alt="The steps so far, request by request: expected, and yours.",
        )  # fmt: skip

    def _judge(self, verdict: dict[str, str]) -> None:
        if verdict:
            raise self.wrong(**verdict)

    def _picture(self) -> Figure | None:
        if not self.yours:
            return None
        return pictures.gantt(
            list(self.requests), {"expected": self.expected, "yours": self.yours},
            f"The first {len(self.yours)} steps" if len(self.yours) > 1 else "The first step",
        )  # fmt: skip

    def _step(self, plan: Plan) -> Step:
        plain = self.plain
        return Step(
            plan=plan, scheduler=self.scheduler, manager=self.manager, requests=self.requests,
            jobs=plain.jobs, budget=plain.max_num_batched_tokens, max_num_seqs=plain.max_num_seqs,
            running=[job.name for job in plain.running()],
            waiting=[job.name for job in plain.waiting()],
            lacking={name: job.lacking for name, job in plain.jobs.items()},
        )  # fmt: skip

    def _marks(
        self, step: Step, tokens: dict[str, int], preempted: Sequence[str]
    ) -> dict[str, Mark]:
        """The step as cells of the picture."""
        marks = {}
        for name, job in self.plain.jobs.items():
            if name in preempted:
                marks[name] = Mark("lost")
            elif name in tokens:
                marks[name] = Mark(_kind(job), tokens[name])
            elif name in step.waiting:
                marks[name] = Mark("waits")
        return marks

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While `schedule` runs: blocks are not kept by victims, and every loop ends."""
        holders = [name for name in self.requests if self.manager.num_blocks(name)]
        num_calls = 0

        def look() -> None:
            nonlocal num_calls
            num_calls += 1
            for name in holders:
                if self.requests[name] in self.scheduler.waiting and self.manager.num_blocks(name):
                    raise self.wrong(
                        f"{name} is preempted, but keeps its blocks.",
                        "Who is preempted gives its blocks back: `kv_cache_manager.free(victim)`.",
                    )
            if num_calls > 100:
                raise self.wrong(
                    "`schedule` asks for blocks again and again, and does not come to an end.",
                    "When `allocate_slots` returns None, either somebody gives way, or the loop "
                    "ends.",
                )

        self.manager.before_allocate = look
        try:
            with _patience(self.wrong):
                yield
        finally:
            self.manager.before_allocate = lambda: None


def _kind(job: Job) -> str:
    if job.answered and job.computed + 1 < job.num_prompt + job.answered:
        return "again"
    return "answer" if job.answered else "prompt"


@contextlib.contextmanager
def _patience(wrong: Callable[..., Mismatch]) -> Iterator[None]:
    """Break off a loop that never ends, where the system has a signal for it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "SIGVTALRM") or not in_main_thread:
        yield
        return

    def give_up(*_: Any) -> None:
        raise wrong(
            "`schedule` does not come to an end.",
            "A `while` loop over `waiting` must end when the first of them cannot be let in: "
            "`break`.",
        )

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# --- the stories, from the simplest on -----------------------------------------------------------


def _story_alone(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler)
    story.add("A", 3, 3)
    story.run()


def _story_two(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler)
    story.add("A", 3, 2)
    story.add("B", 2, 4)
    story.run()


def _story_long_prompt(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler)
    story.add("A", 20, 2)
    story.run()


def _story_full(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, max_num_seqs=2)
    for name, num_answer in (("A", 2), ("B", 4), ("C", 1), ("D", 2)):
        story.add(name, 2, num_answer)
    story.run()


def _story_newcomer(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler)
    story.add("A", 3, 6)
    story.step()
    story.add("B", 10, 2)
    story.add("C", 2, 2)
    story.run()


def _story_shortage(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, num_blocks=3)
    story.add("A", 4, 4)
    story.add("B", 4, 3)
    story.run()


def _story_newcomer_in_a_shortage(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, num_blocks=4)
    story.add("A", 4, 6)
    story.add("B", 4, 6)
    story.step()
    story.add("C", 1, 2)
    story.add("D", 1, 2)
    story.run()


def _story_no_room_to_join(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, num_blocks=4, budget=16)
    story.add("A", 7, 3)
    story.step()
    story.add("B", 9, 2)
    story.add("C", 2, 2)
    story.run()


def _story_long_again(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, num_blocks=8)
    for name in "ABC":
        story.add(name, 6, 9)
    story.run()


def _story_priority(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, max_num_seqs=1)
    for name, priority in (("A", 1), ("B", 2), ("C", 1), ("D", 0), ("E", 2)):
        story.add(name, 2, 1, priority)
    story.run()


def _story_priority_shortage(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, num_blocks=4)
    story.add("A", 4, 5, 2)
    story.add("B", 4, 5, 1)
    story.step()
    story.add("C", 9, 2, 0)
    story.run()


def _story_important_long_prompt(scheduler: Callable[..., Any]) -> None:
    """Without a token left for each, the others would stand still."""
    story = Story(scheduler)
    story.add("A", 2, 5, 1)
    story.add("B", 2, 5, 1)
    story.step()
    story.add("C", 20, 2, 0)
    story.run()


def _story_two_victims(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, budget=10, num_blocks=4)
    story.add("A", 2, 4, 1)
    story.add("B", 2, 4, 1)
    story.step()
    story.add("C", 14, 2, 0)
    story.run()


def _story_abort(scheduler: Callable[..., Any]) -> None:
    story = Story(scheduler, max_num_seqs=2)
    story.add("A", 2, 1)
    story.add("B", 6, 5)
    story.add("C", 3, 5)
    story.add("D", 3, 2)
    story.step()
    story.step()
    story.abort("B")
    story.step()
    story.abort("A", "D")
    story.run()


def random_story(scheduler: Callable[..., Any], seed: int) -> None:
    """Requests that come at random to a small machine; some are aborted."""
    dice = random.Random(seed)
    max_num_seqs = dice.randint(1, 5)
    story = Story(scheduler, max_num_seqs, dice.randint(max(2, max_num_seqs), 16),
                  dice.randint(4, 8))  # fmt: skip
    longest = story.plain.num_blocks * BLOCK_SIZE
    for number in range(8):
        num_prompt = dice.choice([dice.randint(1, 4), dice.randint(1, longest - 1)])
        num_answer = dice.randint(1, min(8, longest - num_prompt))
        priority = dice.choice([0, 1, -number, -number])
        story.add(chr(ord("A") + number), num_prompt, num_answer, priority)
        for _ in range(dice.randint(0, 2)):
            if story.plain.running() or story.plain.waiting():
                story.step()
        if dice.random() < 0.1:
            story.abort(dice.choice(list(story.requests)))
    story.run()


def _story_random(scheduler: Callable[..., Any]) -> None:
    for seed in range(60):
        random_story(scheduler, seed)


STORIES: tuple[Callable[[Callable[..., Any]], None], ...] = (
    _story_alone,
    _story_two,
    _story_long_prompt,
    _story_full,
    _story_newcomer,
    _story_shortage,
    _story_newcomer_in_a_shortage,
    _story_no_room_to_join,
    _story_long_again,
    _story_priority,
    _story_priority_shortage,
    _story_important_long_prompt,
    _story_two_victims,
    _story_abort,
    _story_random,
)
