"""What learners' schedulers get wrong, and the words for it: exercise 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_06.bare_requests import draw_story
from utils.checks.lab_06.giving_way.preemption import make_room
from utils.checks.lab_06.importance import by_importance
from utils.checks.lab_06.scheduler_stories import play_beside, scheduler_output
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.request import Request, RequestStatus

RAISE = "`request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]`."
CHUNK = (
    "`next_chunk(request, budget, num_running_after)`. After a request in `running`, others "
    "still come; after one that is let in, nobody."
)
LIMITS = "Lower the budget with each request that gets tokens."
SEQS = "Look at `len(self.running)` before somebody is let in."
VICTIMS = (
    "`make_room` asks again after each victim, and returns them. `running` is in order of "
    "importance, and the last one gives way."
)
BOTH = "Go through both lists, and keep of both only those that are not `request.is_finished`."
STOP = "Stop at the first that cannot be let in: `break`. Go on after each one that fits."
FREE = "`self.kv_cache_manager.free(request)`."
CLAUSES = {
    "new": Clause("`MyScheduler(config, kv_cache_manager)` gives no scheduler."),
    "has_unfinished": Clause(
        "`has_unfinished_requests()` is {got}; expected {expected}.",
        "Somebody is unfinished as long as one of the two lists holds one.",
    ),
    "schedule": Clause(
        "`schedule` returned {got}; expected a SchedulerOutput.",
        "Keep the last line: `return scheduler_output(...)`.",
    ),
    "counts": Clause(
        "Somebody is scheduled with a number of tokens that is none: {got}. Leave out "
        "who gets none.",
        "Stop when the budget is used up.",
    ),
    "unknown": Clause(
        "Tokens for {got}: nobody of this name runs or waits.",
        "`num_scheduled_tokens[request.request_id] = ...`",
    ),
    "twice": Clause(
        "More tokens are scheduled than the request lacks: {got}. What is computed "
        "already would be computed again.",
        "`next_chunk` counts what is lacking.",
    ),
    "budget": Clause("{got} are scheduled; the budget is {expected}.", LIMITS),
    "seqs": Clause("{got} requests run at a time; `max_num_seqs` is {expected}.", SEQS),
    "preempted": Clause(
        "The wrong requests are preempted: {got}, expected {expected}. Those that "
        "are least important give way, one by one, and only if a running request "
        "finds no room.",
        VICTIMS,
    ),
    "served": Clause(
        "{got} lose their blocks, and get tokens in the same step. Who is preempted "
        "waits, at least until the next step.",
        "If `request in preempted`: stop. If somebody was preempted, nobody is let in.",
    ),
    "victims computed": Clause(
        "Who is preempted keeps `num_computed_tokens`. Its blocks are gone, and what they held.",
        "`victim.num_computed_tokens = 0`.",
    ),
    "victims blocks": Clause("Who is preempted keeps its blocks.", "`free(victim)`."),
    "victims place": Clause(
        "Who is preempted must be in `waiting` only.",
        "`make_room` moves it, in the two lists that you pass.",
    ),
    "stand still": Clause(
        "{got}: running, but without a token in this step.",
        "First the loop over `running`, then the one over `waiting`. Each "
        "request leaves one token of the budget for each running one after it.",
    ),
    "joined": Clause(
        "The wrong requests are let in: {got}, expected {expected}. In order of "
        "importance, as long as budget, `max_num_seqs` and blocks have room; and "
        "nobody in a step in which somebody lost its blocks.",
        STOP,
    ),
    "tokens": Clause("The numbers of tokens are wrong: {got}, expected {expected}.", CHUNK),
    "blocks": Clause(
        "The wrong numbers of blocks are held after `schedule`. Each request needs "
        "room for the tokens of this step, and no more.",
        "`allocate_slots(request, num_new_tokens)` for everybody who gets tokens.",
    ),
    "computed": Clause(
        "`num_computed_tokens` has changed in `schedule`. Nothing is computed yet.",
        "It moves on in `update_from_output`.",
    ),
    "place": Clause(
        "After `schedule`, a request is in the wrong list, or in both.",
        "Who is let in moves from `self.waiting` to `self.running`.",
    ),
    "status": Clause(
        "The status is wrong: {got}, expected {expected}.",
        "`request.status = RequestStatus.RUNNING` for whoever is let in.",
    ),
    "output": Clause(
        "`update_from_output` changes the step's plan. The engine still needs it.",
        "Change the requests only.",
    ),
    "finished place": Clause(
        "After `update_from_output`, a request is in the wrong list: {got}, "
        "expected {expected}. Who is finished leaves `running`, all others "
        "stay.",
        "Look at `request.is_finished`, for each of `sampled`.",
    ),
    "finished blocks": Clause(
        "After `update_from_output`, the wrong numbers of blocks are held: "
        "{got}, expected {expected}. Who is finished gives them back, all "
        "others keep theirs.",
        FREE,
    ),
    "progress": Clause(
        "`num_computed_tokens` is wrong after `update_from_output`: {got}, expected {expected}.",
        RAISE,
    ),
    "aborted status": Clause(
        "The status is wrong after `abort_requests`: {got}, expected "
        "{expected}. Those that are finished stay as they are.",
        "`request.status = RequestStatus.FINISHED_ABORTED`, unless `request.is_finished`.",
    ),
    "aborted place": Clause(
        "After `abort_requests`, a request is in the wrong list: {got}, expected {expected}.", BOTH
    ),
    "aborted blocks": Clause(
        "After `abort_requests`, the wrong numbers of blocks are held: {got}, expected {expected}.",
        FREE,
    ),
    "aborted": Clause("`abort_requests` changes `num_computed_tokens` of others."),
    "twin": Clause(
        "Two schedulers share something: what is done to one changes the other.",
        "Create lists in `__init__`, as `self....`, not in the class body.",
    ),
}


class RightScheduler:
    """A right answer in small parts. Each known mistake changes one of them."""

    def __init__(self, config: Any, kv_cache_manager: Any) -> None:
        self.config, self.kv_cache_manager = config, kv_cache_manager
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        self.running, self.waiting = by_importance(self.running), by_importance(self.waiting)
        self.budget = self.config.max_num_batched_tokens
        self.tokens: dict[str, int] = {}
        self.preempted: list[Request] = []
        self.serve_running()
        if self.may_join():
            self.serve_waiting()
        return scheduler_output(self.tokens, self.running, self.preempted, self.kv_cache_manager)

    def serve_running(self) -> None:
        index = 0
        while index < len(self.running):
            request = self.running[index]
            count = self.chunk(request, len(self.running) - index - 1)
            self.preempted += self.make_room(request, count)
            if request in self.preempted:
                break
            self.take(request, count)
            index += 1

    def make_room(self, request: Request, count: int, **switches: Any) -> list[Request]:
        lists = self.running, self.waiting
        return make_room(request, count, *lists, self.kv_cache_manager, **switches)

    def may_join(self) -> bool:
        return not self.preempted

    def serve_waiting(self) -> None:
        while self.waiting and self.budget > 0 and not self.is_full():
            request = self.waiting[0]
            count = self.chunk(request, 0)
            if not self.has_room(request, count):
                break
            self.waiting.remove(request)
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            self.take(request, count)

    def is_full(self) -> bool:
        return len(self.running) == self.config.max_num_seqs

    def chunk(self, request: Request, after: int) -> int:
        return min(request.num_tokens - request.num_computed_tokens, self.budget - after)

    def has_room(self, request: Request, count: int) -> bool:
        return self.kv_cache_manager.allocate_slots(request, count) is not None

    def take(self, request: Request, count: int) -> None:
        self.tokens[request.request_id] = count
        self.budget -= count

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        for request in self.running:
            name = request.request_id
            request.num_computed_tokens += output.num_scheduled_tokens.get(name, 0)
        for request in sampled:
            if request.is_finished:
                self.running.remove(request)
                self.kv_cache_manager.free(request)

    def abort_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                self.kv_cache_manager.free(request)
        self.running = [request for request in self.running if not request.is_finished]
        self.waiting = [request for request in self.waiting if not request.is_finished]


def but(**changes: Any) -> type[RightScheduler]:
    """The right scheduler with other methods."""
    return type("Changed", (RightScheduler,), {"__module__": __name__, **changes})


def _skipping(self: Any) -> None:
    for request in list(self.waiting):
        if self.budget > 0 and not self.is_full():
            line, self.waiting = self.waiting, [request]
            RightScheduler.serve_waiting(self)
            self.waiting = [r for r in line if r is not request or r in self.waiting]


def _greedy(self: Any) -> None:
    for request in list(self.running):
        count = min(request.num_tokens - request.num_computed_tokens, self.budget)
        if count and request in self.running:
            self.preempted += self.make_room(request, count)
            if request in self.running:
                self.take(request, count)


def _update_counting_new(self: Any, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
    RightScheduler.update_from_output(self, output, sampled)
    for request in sampled:
        request.num_computed_tokens += 1


def _update_keeping_blocks(self: Any, output: SchedulerOutput, sampled: Any) -> None:
    RightScheduler.update_from_output(self, output, [])
    self.running = [request for request in self.running if not request.is_finished]


def _abort(which: str, keep: str = "", mark_all: bool = False) -> Any:
    """`abort_requests` that leaves something out."""

    def abort_requests(self: Any, requests: Sequence[Request]) -> None:
        for request in requests:
            if mark_all or not request.is_finished:
                request.status = RequestStatus.FINISHED_ABORTED
                if which == "blocks":
                    self.kv_cache_manager.free(request)
        for name in ("running", "waiting"):
            if name != keep:
                setattr(self, name, [r for r in getattr(self, name) if not r.is_finished])

    return abort_requests


MISTAKES = (
    mistake(
        "The budget is not lowered by everybody who gets tokens.",
        LIMITS,
        but(take=lambda s, r, n: s.tokens.update({r.request_id: n})),
    ),
    mistake(
        "`max_num_seqs` is not kept: more requests run at a time.",
        SEQS,
        but(is_full=lambda s: False),
        but(is_full=lambda s: len(s.running) > s.config.max_num_seqs),
    ),
    mistake(
        "A long chunk leaves no token for the running requests that come after it: they stand "
        "still.",
        CHUNK,
        but(serve_running=_greedy),
    ),
    mistake(
        "Somebody is let in, in a step in which another one lost its blocks. It takes the room "
        "that the running ones need, and somebody would be preempted again.",
        "`if not preempted:` before the loop over `waiting`.",
        but(may_join=lambda s: True),
    ),
    mistake(
        "Somebody overtakes: who cannot be let in is skipped, and the next one is tried.",
        STOP,
        but(serve_waiting=_skipping),
    ),
    mistake(
        "The new token is counted as computed. It is only sampled; its keys and values come "
        "with the next step.",
        RAISE,
        but(update_from_output=_update_counting_new),
    ),
    mistake(
        "Who is finished keeps its blocks. They would be lost for good.",
        FREE,
        but(update_from_output=_update_keeping_blocks),
    ),
    mistake(
        "Who is aborted keeps its blocks. They would be lost for good.",
        FREE,
        but(abort_requests=_abort("none")),
    ),
    mistake(
        "Who is aborted while it waits stays in `waiting`.",
        BOTH,
        but(abort_requests=_abort("blocks", "waiting")),
    ),
    mistake(
        "Who was finished already is marked as aborted now. It must stay as it is.",
        "Skip what `request.is_finished`.",
        but(abort_requests=_abort("blocks", mark_all=True)),
    ),
)

SCHEDULER = Contract(
    inputs=draw_story,
    judge=InLockstep(play_beside(RightScheduler), RightScheduler),
    passed="Both limits are kept, nobody stands still, nobody overtakes, and everybody finishes. "
    "Equal to a right scheduler, step by step, in 130 random stories; no block is lost.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
    examples=130,
)
