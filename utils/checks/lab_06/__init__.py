"""The checks of lab 06: what is drawn, and what is right.

Oracles: counting request by request, ranges, exact fractions, the right scheduler in lockstep, and
at last the engine with its own scheduler.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from fractions import Fraction
from numbers import Real
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.guards import held_output, methods_refuse
from utils.checks.kit.lab.engine import not_the_engines
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_06 import answers, learners_engine, memory, pictures, policies, steps
from utils.checks.lab_06.bare import BareRequest, bare_request, name_of, names
from utils.checks.lab_06.given import LARGE, Costs
from utils.checks.lab_06.scheduler_story import SchedulerStory
from utils.engine.core.sched.scheduler import Scheduler

LAB = Lab(__file__)
TOLD = 8  # requests in a sentence


# Exercises 1 to 3: static batches, and the tokens of a step

batch_waste = LAB.check(
    answers.batch_waste,
    steps.draw_batches,
    Returns(steps.waste, wrong=steps.wrong_waste),
    passed=steps.praise_waste,
)
choose_tokens = LAB.check(
    answers.choose_tokens,
    steps.draw_step,
    Returns(steps.longest_beginning, wrong=steps.wrong_step),
    tell=steps.tell_step,
    passed=steps.praise_step,
    seconds=2.0,  # of a fault that only many requests show, the smallest input takes long to find
)
next_chunk = LAB.check(
    answers.next_chunk,
    steps.draw_chunk,
    Returns(steps.in_reach, wrong=steps.wrong_chunk),
    tell=steps.tell_chunk,
    passed=steps.praise_chunk,
)

# Exercise 4: who gives way

make_room = LAB.check(
    answers.make_room, memory.draw_shortage, InLockstep(memory.play_shortage, answers.make_room)
)

# Exercise 5: an order of importance

PRIORITIES = (0, 0, 1, -1, 2, -2, 10, 1000, -1000, 10**12, -(10**12))
STATUSES = ("WAITING", "RUNNING", "PREEMPTED")


def draw_line(c: Choices) -> Given:
    """Equal priorities, huge ones; arrivals within a microsecond, or at the same time; names and
    statuses that say nothing."""
    start, tick = c.pick((0.0, 0.0, 86_400.0)), c.pick((1.0, 1.0, 1e-6, 0.125, 1e5))
    same, many = c.rarely(8), c.rarely(10)

    def member() -> tuple[int, float, str]:
        return c.pick(PRIORITIES), tick * c.integer(0, 5 if same else 9), c.pick(STATUSES)

    members = [] if c.rarely(20) else c.some(member, 1, 80 if many else 6)
    places = c.shuffled(range(len(members)))
    line = []
    for number, (place, (priority, arrival, status)) in enumerate(
        zip(places, members, strict=True)
    ):
        time = start + arrival + (0 if same else 10 * tick * place)  # times of their own
        request = bare_request(name_of(number), 3, priority=priority, arrival_time=time)
        request.status = answers.RequestStatus[status]
        line.append(request)
    return Given(line)


def rank(request: BareRequest) -> tuple[int, float]:
    return request.priority, request.arrival_time


def picked_one_by_one(requests: Sequence[BareRequest]) -> list[BareRequest]:
    """Again and again: of those with the lowest number, the one that came first."""
    rest, line = list(requests), []
    while rest:
        lowest = min(request.priority for request in rest)
        line.append(min((r for r in rest if r.priority == lowest), key=lambda r: r.arrival_time))
        rest.remove(line[-1])
    return line


def wrong_line(want: list[BareRequest], got: Any, given: Given) -> Fault | None:
    if not isinstance(got, list):
        return Fault("list", "", names(want), got)
    mine, theirs = names(want), names(got)
    if sorted(mine) != sorted(theirs):
        return Fault("all", "", sorted(mine), sorted(theirs))
    words = " ".join(mine[: 2 * TOLD]), " ".join(theirs[: 2 * TOLD])
    if [r.priority for r in got] != [r.priority for r in want]:
        return Fault("order", "", mine, theirs, words=words)
    if [rank(r) for r in got] != [rank(r) for r in want]:
        return Fault("ties", "", mine, theirs, words=words)
    return None


def tell_line(given: Given) -> str:
    each = [
        f"{r.request_id}: priority {r.priority}, arrived at {r.arrival_time!r} s, {r.status.name}"
        for r in given.args[0]
    ]
    return "; ".join(each[: 2 * TOLD] + ["..."] * (len(each) > 2 * TOLD)) or "no requests"


by_importance = LAB.check(
    answers.by_importance,
    draw_line,
    Returns(picked_one_by_one, own=True, wrong=wrong_line),
    tell=tell_line,
)

# Exercise 6: the scheduler

METHODS = ("schedule", "update_from_output", "abort_requests")
# Earlier exercises, by the name that the scheduler calls them by.
PARTS = {"by_importance": by_importance, "next_chunk": next_chunk, "make_room": make_room}
SCHEDULER = LAB.check(
    answers.MyScheduler,
    SchedulerStory.draw,
    SchedulerStory.judge(answers.MyScheduler),
    examples=200,
).contract


def judged_scheduler(scheduler_class: Any) -> Any:
    """Random stories. If they fail because of an earlier exercise, its own check speaks."""
    if not isinstance(scheduler_class, type):
        raise Mismatch("Expected the class itself: pass `MyScheduler`.")
    refuse = methods_refuse(
        Scheduler,
        METHODS,
        "The engine's own scheduler does the work, by inheritance or through `super()`.",
        f"Write all three methods yourself: {', '.join(METHODS)}.",
    )
    try:
        with refuse:
            return SCHEDULER.check(scheduler_class)
    except Mismatch as wrong:
        raise faulty_part(scheduler_class) or wrong from None


@LAB.exercise
def scheduler(scheduler_class: Any) -> Any:
    """Check `schedule`, `update_from_output` and `abort_requests`."""
    return judged_scheduler(scheduler_class)


def faulty_part(scheduler_class: type) -> Mismatch | None:
    """What the check of an earlier exercise says of the part that this class uses."""
    for name, check in PARTS.items():
        for part in parts_called(scheduler_class, name):
            try:
                check.contract.check(part)
            except Mismatch as wrong:
                exercise = check.title.partition(":")[0]
                wrong.headline = (
                    f"Your scheduler calls `{name}`, which is not right yet ({exercise}). "
                    f"{wrong.headline}"
                )
                return wrong
    return None


def parts_called(scheduler_class: type, name: str) -> set[Callable[..., Any]]:
    """The functions of this name that the class's methods find."""
    bodies = (value for owner in scheduler_class.__mro__ for value in vars(owner).values())
    methods = (value for value in bodies if isinstance(value, types.FunctionType))
    found = {m.__globals__.get(name) for m in methods if name in m.__code__.co_names}
    return {part for part in found if callable(part) and part is not getattr(answers, name)}


# Exercises 7 and 8: the engine, and a policy


@LAB.exercise
def engine(scheduler_class: Any) -> Passed:
    """Check `LLM(scheduler_cls=...)`: the same answers and steps, with much memory and little."""
    needs_scheduler(scheduler_class)
    return learners_engine.run(scheduler_class)


@LAB.exercise
def my_priority(function: Any, scheduler_class: Any = None) -> Passed:
    """Check `my_priority(num_prompt_tokens, arrival_time)` with the learner's scheduler."""
    needs_scheduler(scheduler_class)
    with held_output():
        return policies.judge(scheduler_class, function)


def needs_scheduler(scheduler_class: Any) -> None:
    """Refuse a scheduler that isn't right yet, or isn't the learner's."""
    not_the_engines(scheduler_class, Scheduler, "MyScheduler")
    try:
        judged_scheduler(scheduler_class)
    except Mismatch as wrong:
        exercise = scheduler.title.partition(":")[0]
        wrong.headline = f"{exercise} is not right yet. {wrong.headline}"
        raise


# Exercise 9, optional: what the two ways back cost


def draw_costs(c: Choices) -> Given:
    """Each part may be the largest one, or 0; blocks that are full, or lack one token."""
    block_size, num_tokens = c.pick((c.size(1, 300), 16)), c.size(1, 100_000)
    if c.rarely(3):
        num_tokens = max(1, block_size * c.size(1, 300) + c.pick((0, -1, 1)))
    costs = Costs(
        num_weights=10 ** c.integer(0, 10) * c.integer(1, 9),
        flops_per_pair=c.pick((0, 1)) * 10 ** c.integer(0, 8) * c.integer(1, 9),
        block_bytes=10 ** c.integer(0, 8) * c.integer(1, 9),
        block_size=block_size,
        flops=10.0 ** c.integer(0, 15) * c.integer(1, 9),
        bandwidth=10.0 ** c.integer(0, 12) * c.integer(1, 9),
        seconds_per_copy=c.pick((0.0, 1e-3, 6e-6, 2.0)),
    )
    return Given(num_tokens, costs)


def seconds(num_tokens: int, costs: Costs) -> tuple[float, float]:
    """Token by token, block by block, in exact fractions."""
    flops = 2 * costs.num_weights * num_tokens + costs.flops_per_pair * sum(range(num_tokens + 1))
    copies = 2 * len(range(0, num_tokens, costs.block_size))
    flow = Fraction(costs.block_bytes) / Fraction(costs.bandwidth)
    per_copy = Fraction(costs.seconds_per_copy) + flow
    return float(flops / Fraction(costs.flops)), float(copies * per_copy)


def wrong_seconds(expected: tuple[float, float], got: Any, given: Given) -> Fault | None:
    pair = steps.pair_of(got)
    if pair is None or not all(isinstance(x, Real) for x in pair):
        return Fault("pair", "", expected, got)
    told = [f"recompute {r:.8g} s, swap {s:.8g} s" for r, s in (expected, pair)]
    for clause, want, came in zip(("recompute", "swap"), expected, pair, strict=True):
        if says := difference(want, float(came), rtol=1e-6):  # as exact as float32
            turned = difference(expected, [float(x) for x in pair[::-1]], rtol=1e-6)
            clause = clause if turned else "swapped"
            return Fault(clause, "", want, float(came), says, words=(told[0], told[1]))
    return None


def praise_seconds(answer: Any) -> Passed:
    lengths = [16 * 2**i for i in range(14)]
    both = [answer(n, LARGE) for n in lengths]
    crossing = next((n for n, (again, swap) in zip(lengths, both, strict=True) if again > swap), 0)
    ways = {
        "recompute": [again for again, _ in both],
        "swap out and in": [swap for _, swap in both],
    }
    return Passed(
        "Right. The picture shows your numbers for a large model: at "
        f"{crossing:,} tokens swapping is the cheaper way. The longer the text, the more it costs "
        "per token to recompute it, because attention looks at ever more tokens. Swapping costs "
        "the same per token at any length.",
        pictures.crossover(
            lengths, ways, "7 billion weights: recompute short texts, swap long ones"
        ),
        "What it costs to recompute and to swap, per token, over the number of tokens.",
    )


recovery_seconds = LAB.check(
    answers.recovery_seconds,
    draw_costs,
    Returns(seconds, wrong=wrong_seconds),
    passed=praise_seconds,
)

# Exercise 10, optional: swap or recompute

swap_or_recompute = LAB.check(
    answers.SwapOrRecompute, memory.SwapStory.draw, memory.SwapStory.judge(answers.SwapOrRecompute)
)
