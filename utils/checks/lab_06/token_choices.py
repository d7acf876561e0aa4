"""What lab 06 says of the choice of a step's tokens, with whole prompts: exercise 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import Bare, ask, draw_bare, name_of
from utils.engine.request import Request, RequestStatus


@dataclass(frozen=True)
class Situation:
    """A step that is to be planned. The names go on from the running to the waiting ones."""

    running: tuple[Bare, ...]
    waiting: tuple[Bare, ...]
    max_num_seqs: int
    budget: int

    @property
    def lacking(self) -> dict[str, int]:
        return {name_of(i): r.lacking for i, r in enumerate((*self.running, *self.waiting))}

    @property
    def names(self) -> tuple[list[str], list[str]]:
        names = list(self.lacking)
        return names[: len(self.running)], names[len(self.running) :]

    def __str__(self) -> str:
        def line(names: Sequence[str], requests: Sequence[Bare]) -> str:
            pairs = list(zip(names, requests, strict=True))
            each = [f"{n} ({r.lacking} of {r.num_tokens} to compute)" for n, r in pairs]
            return ", ".join(each[:8] + ["..."] * (len(each) > 8)) or "nobody"

        running, waiting = self.names
        return (
            f"running: {line(running, self.running)}; waiting: {line(waiting, self.waiting)}; "
            f"max_num_seqs {self.max_num_seqs}, max_num_batched_tokens {self.budget}"
        )

    def arguments(self) -> tuple[list[Request], list[Request], int, int]:
        running, waiting = self.names
        return (
            [r.made(n, RequestStatus.RUNNING) for n, r in zip(running, self.running, strict=True)],
            [
                r.made(n, RequestStatus.PREEMPTED if r.num_answer else RequestStatus.WAITING)
                for n, r in zip(waiting, self.waiting, strict=True)
            ],
            self.max_num_seqs,
            self.budget,
        )


def draw(c: Choices) -> Situation:
    """Limits that fit exactly, or by one not; long lines; requests that lack a part only."""
    many = c.rarely(15)
    running = c.some(lambda: draw_bare(c, 12 if many else 3000, True), 0, 100 if many else 4)
    waiting = c.some(lambda: draw_bare(c, 12 if many else 3000), 0, 100 if many else 6)
    fitting = c.integer(0, len(waiting))
    needed = sum(r.lacking for r in (*running, *waiting[:fitting]))
    least = sum(r.lacking for r in running)
    budget = max(1, least, needed + c.pick((0, 0, -1, 1, c.size(0, 4000))))
    seqs = c.pick((fitting, len(waiting), c.integer(0, len(waiting) + 2), 300))
    return Situation(tuple(running), tuple(waiting), max(1, len(running) + seqs), budget)


def chosen(case: Situation) -> dict[str, int]:
    """By definition: of all beginnings of the waiting line, the longest that keeps both limits."""
    running, waiting = case.names
    plans = [running + waiting[:count] for count in range(len(waiting) + 1)]
    right = [
        plan
        for plan in plans
        if len(plan) <= case.max_num_seqs
        and sum(map(case.lacking.__getitem__, plan)) <= case.budget
    ]
    return {name: case.lacking[name] for name in max(right, key=len)}


def play(stage: Stage, function: Any, case: Situation) -> None:
    ask(stage, function, case.arguments, partial(_judge, stage, case))


def _judge(stage: Stage, case: Situation, got: Any) -> Any:
    want, lacking = chosen(case), case.lacking
    running, waiting = case.names

    def blame(clause: str, expected: Any, came: Any) -> None:
        stage.blame(clause, expected, came, picture=lambda *_: _picture(case, want, got))

    if not isinstance(got, Mapping) or not all(name in lacking for name in got):
        stage.blame("dict", want, got)
    if odd := {n: count for n, count in got.items() if not isinstance(count, Integral)}:
        stage.blame("whole numbers", {name: lacking[name] for name in odd}, odd)
    if zero := [name for name, count in got.items() if count == 0]:
        blame("zero", f"without {zero[0]}", dict(got))
    for name, count in got.items():
        if count != lacking[name]:
            blame("lacking", f"{name}: {lacking[name]} tokens", f"{name}: {count} tokens")
    served = [name for name in waiting if name in got]
    if any(name not in got for name in running):
        blame("before" if served else "running", want, dict(got))
    if len(got) > case.max_num_seqs:
        blame("seqs", f"at most {case.max_num_seqs} requests", f"{len(got)} requests")
    if sum(got.values()) > case.budget:
        blame("budget", f"at most {case.budget} tokens", f"{sum(got.values())} tokens")
    if served != waiting[: len(served)]:
        blame("overtakes", waiting[: len(served)], served)
    if dict(got) != want:
        blame("left out", want, dict(got))
    return dict(got)


def _picture(case: Situation, want: dict[str, int], got: Mapping[str, Any]) -> tuple[Figure, str]:
    yours = {name: count for name, count in got.items() if isinstance(count, int)}
    return pictures.budget(
        [("expected", want), ("yours", yours)],
        case.names[0],
        case.budget,
        "Whose tokens are in the step",
        want,
    ), "The tokens of the step, expected and yours, against the budget."


def _passed(answer: Any) -> Passed:
    decodes = Bare(3, 1, 3), Bare(6, 1, 6)
    shown = Situation(decodes, (Bare(3, 0, 0), Bare(3, 0, 0), Bare(2, 0, 0)), 4, 10)
    return Passed(
        "Right in 150 situations: decodes first, then prompts in the order of arrival, within both "
        "limits.",
        pictures.budget(
            [("yours", answer(*shown.arguments()))],
            shown.names[0],
            shown.budget,
            "Decodes and prompts share one step",
        ),
        "The tokens of one step, request by request, against the budget.",
    )


def _lacking(request: Request) -> int:
    return request.num_tokens - request.num_computed_tokens


def choose(
    running: Sequence[Request],
    waiting: Sequence[Request],
    max_num_seqs: int,
    budget: int,
    *,
    spend: int = 1,
    counted: bool = True,
    skip: bool = False,
    waits: bool = True,
    amount: Callable[[Request], int] = _lacking,
    first: bool = True,
    order: Callable[[Sequence[Request]], Sequence[Request]] = list,
    fits: Callable[[int, int], bool] = int.__le__,
) -> dict[str, int]:
    """A right choice, with a switch for each known mistake."""
    chosen: dict[str, int] = {}

    def serve(request: Request) -> None:
        nonlocal budget
        chosen[request.request_id] = amount(request)
        budget -= amount(request) * (1 if request.status != RequestStatus.RUNNING else spend)

    for request in running if first else ():
        serve(request)
    num_seqs = len(running) if counted else 0
    for request in order(waiting) if waits else ():
        if num_seqs >= max_num_seqs or not fits(_lacking(request), budget):
            if skip:
                continue
            break
        serve(request)
        num_seqs += 1
    for request in () if first else running:
        if _lacking(request) <= budget:
            serve(request)
    return chosen


def _but(**switches: Any) -> Callable[..., dict[str, int]]:
    return partial(choose, **switches)


def _without_limit(which: int) -> Callable[..., dict[str, int]]:
    def answer(running: Any, waiting: Any, *limits: int) -> dict[str, int]:
        return choose(running, waiting, *(10**9 if i == which else n for i, n in enumerate(limits)))

    return answer


LIMITS = "Lower the budget with each request that you take, the running ones included."
ONE_BY_ONE = "Leave the loop at the first that does not fit: `break`, not `continue`."
CHOOSE_TOKENS = Contract(
    inputs=draw,
    judge=InLockstep(play, choose),
    passed=_passed,
    clauses={
        "dict": Clause(
            "Your function returned {got}; expected a dict from request id to a number of tokens.",
            "`num_scheduled_tokens[request.request_id] = ...`",
        ),
        "whole numbers": Clause("A number of tokens is an int."),
        "zero": Clause(
            "A request is in the dict with 0 tokens. Leave it out: it has no part in the step."
        ),
        "lacking": Clause(
            "Expected {expected}, not {got}: a request gets all that it lacks, or "
            "waits. Parts come in exercise 3.",
            "`request.num_tokens - request.num_computed_tokens`.",
        ),
        "before": Clause(
            "A waiting request is served before one that is running and gets nothing. "
            "Who waits must not hold up those that run.",
            "Two loops: first over `running`, then over `waiting`.",
        ),
        "running": Clause(
            "A request that is running gets no token in this step.", "Loop over `running`."
        ),
        "seqs": Clause(
            "{got} would run at a time; `max_num_seqs` allows {expected}.",
            "Those that run already count: `len(running)` plus those that you let in.",
        ),
        "budget": Clause("{got} are in the step; the budget allows {expected}.", LIMITS),
        "overtakes": Clause(
            "Somebody overtakes: of the waiting ones you take {got}, but "
            "{expected} came first. Otherwise a long prompt may wait for ever.",
            ONE_BY_ONE,
        ),
        "left out": Clause(
            "A request is left out, though both limits have room for it.",
            "Exactly full is not too full: `<=`. And go on after the first that fits.",
        ),
        "changes": Clause(
            "Your function changes the lists or the requests that it is given. Here "
            "you only choose; whoever called moves the requests.",
            "Go through `waiting` with a `for` loop in place of `waiting.pop(0)`.",
        ),
    },
    mistakes=(
        mistake(
            "The tokens of the running requests do not lower your budget. They are part of the "
            "step.",
            LIMITS,
            _but(spend=0),
        ),
        mistake(
            "The budget is ignored: more tokens are in the step than `max_num_batched_tokens`.",
            LIMITS,
            _without_limit(1),
        ),
        mistake(
            "`max_num_seqs` is ignored.",
            "Count those that run: the entries of your dict.",
            _without_limit(0),
        ),
        mistake(
            "Only newcomers are counted. Those that run already count for `max_num_seqs`, too.",
            "`len(running)` plus those that you let in.",
            _but(counted=False),
        ),
        mistake(
            "Somebody overtakes: who does not fit is skipped, and the next one is tried. A "
            "long prompt may wait for ever.",
            ONE_BY_ONE,
            _but(skip=True),
        ),
        mistake(
            "Somebody overtakes: the shortest is served first, not the first in the list.",
            "Keep the order of `waiting`.",
            _but(order=lambda w: sorted(w, key=_lacking)),
        ),
        mistake(
            "A request is counted with its whole text, although a part of it is computed.",
            "`request.num_tokens - request.num_computed_tokens`.",
            _but(amount=lambda r: r.num_tokens),
        ),
        mistake(
            "A request is left out that fills the step exactly. Exactly full is not too full.",
            "`<=`, not `<`.",
            _but(fits=int.__lt__),
        ),
        mistake(
            "The waiting ones are served before those that run. Who waits must not hold up "
            "those that run.",
            "Two loops: first over `running`, then over `waiting`.",
            _but(first=False),
        ),
    ),
)
