"""What lab 06 says of priorities: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.lab_06.bare_requests import ask, bare_request, name_of, names
from utils.engine.request import Request

NUMBERS = (0, 0, 1, -1, 2, -2, 10, 1000, -1000, 10**12, -(10**12))


@dataclass(frozen=True)
class Line:
    """Priority and arrival of each request, in the order in which they are given."""

    members: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        each = [
            f"{name_of(i)}: priority {p}, arrived at {t!r} s"
            for i, (p, t) in enumerate(self.members)
        ]
        return "; ".join(each[:12] + ["..."] * (len(each) > 12)) or "no requests"

    def arguments(self) -> tuple[list[Request]]:
        return (
            [
                bare_request(name_of(i), 3, arrival=arrival, priority=priority)
                for i, (priority, arrival) in enumerate(self.members)
            ],
        )


def draw(c: Choices) -> Line:
    """Equal priorities, huge ones, arrivals within a microsecond, or at the same time."""
    start, tick = c.pick((0.0, 0.0, 86_400.0)), c.pick((1.0, 1.0, 1e-6, 0.125, 1e5))
    same, many = c.rarely(8), c.rarely(10)

    def member() -> tuple[int, float]:
        return c.pick(NUMBERS), start + tick * c.integer(0, 5 if same else 9)

    members = c.some(member, 1, 80 if many else 6)
    if not same:  # times of their own
        places = c.shuffled(range(len(members)))
        members = [(p, t + 10 * tick * i) for i, (p, t) in zip(places, members, strict=True)]
    return Line(() if c.rarely(20) else tuple(members))


def play(stage: Stage, function: Any, line: Line) -> None:
    given: list[list[Request]] = []

    def make() -> tuple[list[Request]]:
        given.append(line.arguments()[0])
        return (given[-1],)

    ask(stage, function, make, lambda got: _judge(stage, given[-1], got))


def _judge(stage: Stage, given: list[Request], got: Any) -> Any:
    want = sorted(given, key=_rank)
    if not isinstance(got, list):
        stage.blame("list", names(want), got)
    if got is given:
        stage.blame("new", "a new list", "the list that was given")
    came = {id(request) for request in got}
    if len(got) != len(given) or came != {id(request) for request in given}:
        stage.blame("all", sorted(names(given)), sorted(names(got)), show=str)
    ranks = [[request.priority for request in line] for line in (want, got)]
    clause = "order" if ranks[0] != ranks[1] else "ties"
    if [_rank(r) for r in got] != [_rank(r) for r in want]:
        stage.expect(clause, names(want), names(got), str)
    return [_rank(request) for request in got]


def _rank(request: Request) -> tuple[int, float]:
    return request.priority, request.arrival_time


def _by(key: Callable[[int, float], Any]) -> Callable[[list[Request]], list[Request]]:
    return lambda requests: sorted(requests, key=lambda r: key(*_rank(r)))


def by_importance(requests: list[Request]) -> list[Request]:
    return sorted(requests, key=_rank)


KEY = "A tuple as the key is compared from left to right: priority first, then arrival."
BY_IMPORTANCE = Contract(
    inputs=draw,
    judge=InLockstep(play, by_importance),
    passed="Right for 150 lists: the lower number first, and among equals the earlier arrival. The "
    "last one is the one to preempt.",
    clauses={
        "list": Clause(
            "Your function returned {got}; expected a list.",
            "`list.sort()` returns None; `sorted(...)` returns a list.",
        ),
        "new": Clause(
            "Your function returns the list that it is given. Return a new one.",
            "`sorted(requests, key=...)`.",
        ),
        "changes": Clause(
            "Your function sorts or changes what it is given. Return a new list.",
            "`sorted(requests, key=...)`.",
        ),
        "all": Clause(
            "Requests are missing, come twice, or are copies.", "Every request itself, once."
        ),
        "order": Clause("The order is wrong: the *lower* priority is the more important one.", KEY),
        "ties": Clause(
            "Ties are broken wrongly. Among requests of equal priority, the one that "
            "arrived first is the most important.",
            KEY,
        ),
    },
    mistakes=(
        mistake(
            "The priority is not what counts first: you sort by arrival.",
            KEY,
            _by(lambda p, t: t),
            _by(lambda p, t: (t, p)),
        ),
        mistake(
            "Upside down: the *lower* number is the more important one.",
            KEY,
            _by(lambda p, t: (-p, t)),
        ),
        mistake(
            "Upside down: you begin with the least important one.", KEY, _by(lambda p, t: (-p, -t))
        ),
        mistake(
            "Ties are broken wrongly: among requests of equal priority you begin with the one "
            "that arrived *last*.",
            KEY,
            _by(lambda p, t: (p, -t)),
        ),
        mistake(
            "Ties are broken wrongly: requests of equal priority stay in the order of the "
            "list, whenever they arrived.",
            KEY,
            _by(lambda p, t: p),
        ),
        mistake(
            "Arrivals are rounded to whole seconds. Many requests come within one.",
            KEY,
            _by(lambda p, t: (p, int(t))),
        ),
        mistake(
            "You add priority and arrival up. A small number may then outweigh the other one.",
            KEY,
            _by(lambda p, t: p + t),
            _by(lambda p, t: 1000 * p + t),
            _by(lambda p, t: 1e6 * p + t),
        ),
        mistake(
            "The size of the number counts, and its sign is lost.",
            KEY,
            _by(lambda p, t: (abs(p), t)),
        ),
    ),
)
