"""What lab 06 says of preemption and priorities: exercises 4 and 5."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.block_pictures import count
from utils.checks.kit.runner import Mismatch, call, describe
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import WatchedManager, bare_request
from utils.checks.lab_06.pictures import Cell
from utils.engine.request import Request, RequestStatus

# Exercise 4

_BLOCK_SIZE = 4
_FREE = "`kv_cache_manager.free(victim)` takes all its blocks back."


class _Shortage(NamedTuple):
    """Requests that run, one of them in need of blocks. Each: tokens, and how many are computed."""

    running: dict[str, tuple[int, int]]
    waiting: tuple[str, ...]
    asks: str
    num_new_tokens: int
    num_blocks: int


_SHORTAGES = [
    _Shortage({"A": (5, 4)}, (), "A", 1, 3),
    _Shortage({"A": (4, 3), "B": (5, 4), "C": (3, 2)}, ("X",), "B", 1, 3),
    _Shortage({"A": (5, 4), "B": (4, 3)}, (), "A", 1, 2),
    _Shortage({"A": (5, 4), "B": (4, 3)}, ("X", "Y"), "A", 1, 2),
    _Shortage({"A": (4, 3), "B": (5, 4)}, ("X",), "B", 1, 2),
    _Shortage({"A": (5, 4), "B": (4, 3), "C": (7, 6)}, ("X",), "A", 1, 4),
    _Shortage({"A": (12, 4), "B": (4, 3), "C": (3, 2)}, ("X",), "A", 8, 3),
    _Shortage({"A": (10, 9), "B": (12, 4), "C": (3, 2)}, (), "B", 8, 5),
]


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // _BLOCK_SIZE)


def _expected_victims(case: _Shortage) -> list[str]:
    """In plain numbers: who has to go, in order."""
    held = {name: _blocks(computed) for name, (_, computed) in case.running.items()}
    needed = _blocks(case.running[case.asks][1] + case.num_new_tokens) - held[case.asks]
    victims = []
    while needed > case.num_blocks - sum(held.values()):
        victims.append(list(held)[-1])
        del held[victims[-1]]
        if victims[-1] == case.asks:
            break
    return victims


class _Scene:
    """A shortage, with real requests and a real manager."""

    def __init__(self, case: _Shortage) -> None:
        self.case = case
        self.manager = WatchedManager(case.num_blocks, _BLOCK_SIZE)
        self.running, self.before = [], {}
        for arrival, (name, (num_tokens, computed)) in enumerate(case.running.items()):
            request = bare_request(name, num_tokens - 2, 8, arrival)
            for token_id in (7, 8):
                request.append_token(token_id)
            self.manager.allocate_slots(request, computed)
            request.num_computed_tokens = computed
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            self.before[name] = request
        self.waiting = [bare_request(name, 3, 8, 100 + i) for i, name in enumerate(case.waiting)]
        self.before |= {request.request_id: request for request in self.waiting}
        self.requests_for_blocks = 0
        self.manager.before_allocate = self._watch

    def _watch(self) -> None:
        """Before each allocation: whoever has left `running` has left its blocks, too."""
        self.requests_for_blocks += 1
        for name in self.case.running:
            gone = all(request is not self.before[name] for request in self.running)
            if gone and self.manager.num_blocks(name):
                raise self.wrong(f"{name} is no longer in `running`, but keeps its blocks.", _FREE)
        if self.requests_for_blocks > 2 * len(self.case.running) + 2:
            raise self.wrong(
                "Your loop asks for the same blocks again and again, and nobody gives way.",
                "In each round one victim leaves `running`, and its blocks are freed.",
            )

    @property
    def told(self) -> str:
        def each(name: str) -> str:
            num_tokens, computed = self.case.running[name]
            return f"{name} ({computed} of {num_tokens} tokens computed)"

        held = sum(_blocks(computed) for _, computed in self.case.running.values())
        return (
            f"running: {', '.join(map(each, self.case.running))}; waiting: "
            f"{', '.join(self.case.waiting) or 'nobody'}; blocks of {_BLOCK_SIZE} tokens, "
            f"{self.case.num_blocks - held} free; {self.case.asks} needs room for "
            f"{self.case.num_new_tokens} more"
        )

    def wrong(self, says: str, look: str = "", expected: str = "", got: str = "") -> Mismatch:
        return Mismatch(
            says, input=self.told, expected=expected, got=got, look=look,
            figure=self._picture(),
            alt="Who holds how many blocks: before, expected, and yours.",
        )  # fmt: skip

    def _picture(self) -> Any:
        case, victims = self.case, _expected_victims(self.case)

        def row(
            label: str, held: dict[str, int], right: dict[str, int] | None = None
        ) -> pictures.Row:
            cells = [
                Cell(name, "held" if right is None or right.get(name) == n else "wrong", n)
                for name, n in held.items()
                if n
            ]
            return label, cells

        before = {name: _blocks(computed) for name, (_, computed) in case.running.items()}
        after = {name: n for name, n in before.items() if name not in victims}
        if case.asks in after:
            after[case.asks] = _blocks(case.running[case.asks][1] + case.num_new_tokens)
        yours = {name: self.manager.num_blocks(name) for name in case.running}
        return pictures.rows_of_cells(
            [row("before", before), row("expected", after), row("yours", yours, after)],
            "Who holds how many blocks", f"blocks (dashed: all {case.num_blocks})",
            limit=case.num_blocks, unit=0.7,
        )  # fmt: skip


def judge_make_room(function: Callable[..., Any]) -> str:
    """Check `make_room(request, num_new_tokens, running, waiting, kv_cache_manager)`."""
    for case in _SHORTAGES:
        scene = _Scene(case)
        request = scene.before[case.asks]
        arguments = (case.num_new_tokens, scene.running, scene.waiting, scene.manager)
        got = call(function, request, *arguments, given=scene.told)
        scene.manager.before_allocate = lambda: None
        _judge_victims(scene, got)
        _judge_states(scene)
    return (
        f"Right in {len(_SHORTAGES)} shortages. The least important gives way, starts again from "
        "nothing, and is the first to come back."
    )


def _judge_victims(scene: _Scene, got: Any) -> None:
    if not isinstance(got, list) or not all(isinstance(r, Request) for r in got):
        raise scene.wrong(
            f"Your function returned {describe(got)}; expected a list of the preempted requests, "
            "perhaps an empty one.",
            "Collect the victims in a list, and return it at the end.",
        )
    case, victims = scene.case, _expected_victims(scene.case)
    names = [request.request_id for request in got]
    gone = [n for n in case.running if all(r is not scene.before[n] for r in scene.running)]
    lost = [name for name in case.running if not scene.manager.num_blocks(name)]
    if sorted(names) == sorted(victims):
        if still := [name for name in victims if name not in gone]:
            raise scene.wrong(
                f"{still[0]} is preempted, but still in `running`. It would be scheduled in the "
                "next step, without blocks.", "`victim = running.pop()`.",
            )  # fmt: skip
        if kept := [name for name in victims if name not in scene.manager.freed]:
            raise scene.wrong(f"{kept[0]} is preempted, but keeps its blocks.", _FREE)
        if names != victims:
            raise scene.wrong(
                "The victims are returned in the wrong order.",
                "`append` each when it is preempted.", f"{victims}", f"{names}",
            )  # fmt: skip
        return
    told = {"expected": f"preempted: {victims}", "got": f"{names}"}
    if sorted(names) != sorted({*gone, *lost}):
        says = f"You return {names}, but those who lost their place or their blocks are {lost}."
        raise scene.wrong(says, "Return each victim, and nobody else.", **told)
    if not victims:
        raise scene.wrong(
            f"{names[0]} is preempted, though there is room.",
            "Ask `allocate_slots` first. Only if it returns None, somebody has to give way.",
            **told,
        )
    if not names:
        raise scene.wrong(
            f"There is no room for {case.asks}, and nobody gives way.",
            "`while kv_cache_manager.allocate_slots(request, num_new_tokens) is None:`", **told,
        )  # fmt: skip
    if case.asks in victims and case.asks not in names:
        raise scene.wrong(
            f"{case.asks} is the least important one left, so it has to give way itself.",
            "The last in `running` may be `request`. Then stop: it gets no blocks in this step.",
            **told,
        )
    if names[0] == next(iter(case.running)) not in (victims[0], case.asks):
        raise scene.wrong(
            f"The victim is {names[0]}, the most important one. It has come the furthest, and "
            "would start again from nothing.", "The last in `running` gives way: `running.pop()`.",
            **told,
        )  # fmt: skip
    if names[0] == case.asks:
        raise scene.wrong(
            f"{case.asks} gives way itself, though {victims[0]} is less important.",
            "The last in `running` gives way, whoever asked.", **told,
        )  # fmt: skip
    if set(victims) < set(names):
        raise scene.wrong(
            "More requests are preempted than needed.", "Ask again after each victim.", **told
        )
    raise scene.wrong("The wrong requests are preempted.", "`running.pop()`, one by one.", **told)


def _judge_states(scene: _Scene) -> None:
    case, victims = scene.case, _expected_victims(scene.case)
    for name in victims:
        victim = scene.before[name]
        tokens = case.running[name]
        if victim.num_tokens != tokens[0] or len(victim.output_token_ids) != 2:
            raise scene.wrong(
                f"{name} has lost tokens of its text. Only its keys and values are gone; what it "
                "said has been sent to the user already.",
                "Leave `all_token_ids` and `output_token_ids` alone.",
            )
        if victim.num_computed_tokens != 0:
            raise scene.wrong(
                f"{name} keeps num_computed_tokens = {victim.num_computed_tokens}, but its blocks "
                "are gone. When it comes back, it would read keys and values of somebody else.",
                "`victim.num_computed_tokens = 0`.",
            )
        if victim.status != RequestStatus.PREEMPTED:
            raise scene.wrong(
                f"The status of {name} is {victim.status.name}; expected PREEMPTED.",
                "`victim.status = RequestStatus.PREEMPTED`.",
            )
    left = [request.request_id for request in scene.running]
    if left != [name for name in case.running if name not in victims]:
        raise scene.wrong("The order of `running` has changed.", got=f"{left}")
    line = [request.request_id for request in scene.waiting]
    want = [*victims[::-1], *case.waiting]
    if line != want:
        says = "The line of those who wait is wrong."
        if lost := [name for name in want if name not in line]:
            says = f"{lost[0]} is lost: it neither runs nor waits."
        elif len(line) > len(want):
            says = "Somebody stands in `waiting` twice."
        elif line[: len(case.waiting)] == list(case.waiting) and victims:
            says = (
                f"{victims[0]} goes to the back of the line. It came before those who wait, and "
                "has had its turn taken from it."
            )
        elif sorted(line[: len(victims)]) == sorted(victims):
            says = (
                "Two victims are in the wrong order in `waiting`. The more important one, which "
                "was taken last, must come first."
            )
        raise scene.wrong(
            says, "`waiting.insert(0, victim)`, for each victim in turn.",
            expected=f"waiting: {want}", got=f"{line}",
        )  # fmt: skip
    request = scene.before[case.asks]
    if case.asks in victims:
        if scene.manager.num_blocks(case.asks):
            raise scene.wrong(
                f"{case.asks} gave way itself, and then got blocks all the same.",
                "Stop when the victim is `request`.",
            )
        return
    wanted = _blocks(case.running[case.asks][1] + case.num_new_tokens)
    if scene.manager.num_blocks(case.asks) != wanted:
        got = count(scene.manager.num_blocks(case.asks), "block")
        raise scene.wrong(
            f"{case.asks} has {got}; expected {wanted}.",
            "The call of `allocate_slots` that succeeds gives the blocks.",
        )
    if request.num_computed_tokens != case.running[case.asks][1]:
        raise scene.wrong(
            f"num_computed_tokens of {case.asks} has changed. Nothing is computed yet.",
            "Only the victims' `num_computed_tokens` is set, to 0.",
        )


# Exercise 5


_Member = tuple[str, int, float]  # name, priority, arrival


def _sorted(order: Sequence[_Member], key: Callable[[_Member], Any]) -> list[str]:
    return [name for name, _, _ in sorted(order, key=key)]


def judge_by_importance(function: Callable[..., Any]) -> str:
    """Check `by_importance(requests)` on all orders of a few requests."""
    groups = [
        [("A", 0, 1.0)],
        [("A", 0, 1.0), ("B", 0, 2.0)],
        [("A", 0, 1.0), ("B", 1, 2.0)],
        [("A", 1, 1.0), ("B", 0, 2.0)],
        [("B", 0, 1.0), ("A", 0, 2.0)],
        [("A", 2, 1.0), ("B", -1, 2.0), ("C", 0, 3.0)],
        [("D", 1, 1.0), ("C", 0, 2.0), ("B", 1, 3.0), ("A", 0, 4.0)],
    ]
    answers: list[tuple[tuple[_Member, ...], list[Any]]] = []
    for group in groups:
        for order in itertools.permutations(group):
            requests = [
                bare_request(name, 3, 1, arrival, priority) for name, priority, arrival in order
            ]
            given = "; ".join(f"{n}: priority {p}, arrived at {t:g} s" for n, p, t in order)
            before = list(requests)
            got = call(function, requests, given=given)
            if not isinstance(got, list):
                raise Mismatch(
                    f"Your function returned {describe(got)}; expected a list.",
                    input=given, look="`list.sort()` returns None; `sorted(...)` returns a list.",
                )  # fmt: skip
            if [id(r) for r in requests] != [id(r) for r in before]:
                raise Mismatch(
                    "Your function sorts the list that it is given. Return a new one.",
                    input=given, look="`sorted(requests, key=...)`.",
                )  # fmt: skip
            answers.append((order, [getattr(r, "request_id", r) for r in got]))
    for order, names in answers:
        want = _sorted(order, lambda m: m[1:])
        if names != want:
            says, look = _wrong_order(order, names, answers)
            given = "; ".join(f"{n}: priority {p}, arrived at {t:g} s" for n, p, t in order)
            raise Mismatch(says, input=given, expected=f"{want}", got=f"{names}", look=look)
    return (
        f"Right for {len(answers)} lists: the lower number first, and among equals the earlier "
        "arrival. The last one is the one to preempt."
    )


def _wrong_order(
    order: Sequence[_Member], names: list[Any], answers: Sequence[tuple[Sequence[_Member], list]]
) -> tuple[str, str]:
    look = "A tuple as the key is compared from left to right: priority first, then arrival."
    if sorted(map(str, names)) != sorted(name for name, _, _ in order):
        return "Requests are missing, or come twice.", "Every request, once."
    bugs: list[tuple[str, Callable[[_Member], Any]]] = [
        ("The priority is not what counts first: you sort by arrival.", lambda m: m[2]),
        ("Upside down: the *lower* number is the more important one.", lambda m: (-m[1], m[2])),
        ("Upside down: you begin with the least important one.", lambda m: (-m[1], -m[2])),
    ]
    for says, key in bugs:
        if all(got == _sorted(given, key) for given, got in answers):
            return says, look
    priorities = {name: priority for name, priority, _ in order}
    got = [priorities[name] for name in names]
    if got == sorted(got):
        return (
            "Ties are broken wrongly. Among requests of equal priority, the one that arrived first "
            "is the most important.", look,
        )  # fmt: skip
    return "The order is wrong.", look
