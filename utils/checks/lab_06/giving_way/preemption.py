"""What lab 06 says of preemption: exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.kit.contracts.faults import attempt
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import Bare, draw_bare, name_of, names
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.request import Request, RequestStatus


@dataclass(frozen=True)
class Shortage:
    """Requests that run, one of them in need of blocks, and requests that wait."""

    running: tuple[Bare, ...]
    shares: tuple[bool, ...]  # whether each has the same blocks as the one before it
    waiting: tuple[Bare, ...]
    asks: int
    num_new_tokens: int
    num_free: int
    block_size: int

    def __str__(self) -> str:
        each = [
            f"{name_of(i)} ({r.computed} of {r.num_tokens} tokens computed"
            + (f", in the blocks of {name_of(i - 1)})" if same else ")")
            for i, (r, same) in enumerate(zip(self.running, self.shares, strict=True))
        ]
        line = [f"waiting {i + 1}" for i in range(len(self.waiting))]
        return (
            f"running: {', '.join(each)}; waiting: {', '.join(line) or 'nobody'}; blocks of "
            f"{self.block_size} tokens, {self.num_free} free; {name_of(self.asks)} needs room for "
            f"{self.num_new_tokens} more"
        )


def draw(c: Choices) -> Shortage:
    """From plenty of room to far too little; room in the last block; shared blocks."""
    many, block_size = c.rarely(12), c.pick((4, 4, 16, 1, 3))
    running = c.some(lambda: draw_bare(c, 40, True), 1, 40 if many else 5)
    shares = [False] * len(running)
    if c.rarely(6):
        shares = [i > 0 and c.rarely(2) for i in range(len(running))]
        for i, same in enumerate(shares):
            running[i] = running[i - 1] if same else running[i]
    asks = c.integer(0, len(running) - 1)
    num_new = c.pick((1, running[asks].lacking))
    if c.rarely(2):
        num_new = c.integer(1, running[asks].lacking)
    waiting = c.some(lambda: draw_bare(c, 10), 0, 3)
    needed = -(-(running[asks].computed + num_new) // block_size)
    free = c.integer(0, needed + 1)
    return Shortage(tuple(running), tuple(shares), tuple(waiting), asks, num_new, free, block_size)


class Scene:
    """A shortage, with real requests and a real manager."""

    def __init__(self, case: Shortage) -> None:
        sizes = [-(-r.computed // case.block_size) for r in case.running]
        held = sum(n for n, same in zip(sizes, case.shares, strict=True) if not same)
        self.manager = KVCacheManager(held + case.num_free, case.block_size, enable_caching=False)
        self.running: list[Request] = []
        for i, (bare, same) in enumerate(zip(case.running, case.shares, strict=True)):
            request = replace(bare, computed=0).made(name_of(i), RequestStatus.RUNNING)
            if same:
                self.manager.fork(self.running[-1], request)
            else:
                self.manager.allocate_slots(request, bare.computed)
            request.num_computed_tokens = bare.computed
            self.running.append(request)
        self.waiting = [r.made(f"waiting {i + 1}") for i, r in enumerate(case.waiting)]
        self.everybody = [*self.running, *self.waiting]
        self.request, self.num_new_tokens = self.running[case.asks], case.num_new_tokens

    def ask(self, function: Any) -> Any:
        return attempt(
            function, self.request, self.num_new_tokens, self.running, self.waiting, self.manager
        )

    def of_each(self, what: Callable[[Request], Any]) -> dict[str, Any]:
        return {request.request_id: what(request) for request in self.everybody}

    def num_blocks(self, request: Request) -> int:
        return len(self.manager.req_to_blocks.get(request.request_id, ()))


def play(stage: Stage, function: Any, case: Shortage) -> None:
    scene = Scene(case)
    before = scene.of_each(scene.num_blocks)

    def see(clause: str, value: Any) -> None:
        stage.see(clause, value, picture=lambda *_: _picture(case, before, scene))

    got = scene.ask(function)
    see("raises", got if isinstance(got, Raised) else "no error")
    own = got is not scene.running and got is not scene.waiting
    is_list = isinstance(got, list) and all(isinstance(victim, Request) for victim in got)
    see("list", "a list of requests" if is_list and own else got)
    see("running", names(scene.running))
    see("waiting", names(scene.waiting))
    see("blocks", scene.of_each(scene.num_blocks))
    see("pool", scene.manager.block_pool.get_num_free_blocks())
    see("victims", names(got))
    see("computed", scene.of_each(lambda request: request.num_computed_tokens))
    see("status", scene.of_each(lambda request: getattr(request.status, "name", request.status)))
    text = scene.of_each(lambda r: (len(r.prompt_token_ids), r.output_token_ids, r.all_token_ids))
    see("text", text)
    again = Scene(case).ask(function)
    see("again", names(again) if isinstance(again, list) else again)


def _picture(case: Shortage, before: dict[str, int], scene: Scene) -> tuple[Figure | None, str]:
    right = Scene(case)
    right.ask(make_room)
    after, yours = right.of_each(right.num_blocks), scene.of_each(scene.num_blocks)
    total = scene.manager.block_pool.num_gpu_blocks
    if total > 30 or any(case.shares):
        return None, ""

    def row(label: str, held: dict[str, int], right: dict[str, int]) -> pictures.Row:
        kinds = {name: "held" if right[name] == n else "wrong" for name, n in held.items()}
        return label, [pictures.Cell(name, kinds[name], n) for name, n in held.items() if n]

    figure = pictures.rows_of_cells(
        [row("before", before, before), row("expected", after, after), row("yours", yours, after)],
        "Who holds how many blocks",
        f"blocks (dashed: all {total})",
        limit=total,
        unit=0.7,
    )
    return figure, "Who holds how many blocks: before, expected, and yours."


def make_room(
    request: Any,
    num_new_tokens: int,
    running: list[Any],
    waiting: list[Any],
    manager: Any,
    *,
    choose: Callable[[Any, Any], Any] = lambda running, request: running[-1],
    full: Callable[[Any], bool] = lambda blocks: blocks is None,
    lost: str = "blocks computed status place",
    line: Callable[[Any, Any], Any] | None = None,
    stop: bool = True,
    most: int = 10**9,
    at_first: bool = False,
) -> list[Any]:
    """A right answer, with a switch for each known mistake."""
    preempted: list[Any] = []
    while len(preempted) < most:
        unasked = at_first and not preempted
        if not unasked and not full(manager.allocate_slots(request, num_new_tokens)):
            break
        victim = choose(running, request)
        if victim is None:
            break
        running.remove(victim)
        if "blocks" in lost:
            manager.free(victim)
        if "computed" in lost:
            victim.num_computed_tokens = 0
        if "status" in lost:
            victim.status = RequestStatus.PREEMPTED
        if "place" in lost:
            (line or (lambda waiting, victim: waiting.insert(0, victim)))(waiting, victim)
        preempted.append(victim)
        if stop and victim is request:
            break
    return preempted


def _but(**switches: Any) -> Callable[..., list[Any]]:
    return lambda *args: make_room(*args, **switches)


def _never_itself(running: list[Any], request: Any) -> Any:
    return next((other for other in reversed(running) if other is not request), None)


def _one_victim(request: Any, n: int, running: Any, waiting: Any, manager: Any) -> list[Any]:
    victims = make_room(request, n, running, waiting, manager, most=1)
    if victims and request not in victims:
        manager.allocate_slots(request, n)
    return victims


def _in_one_block(request: Any, n: int, running: Any, waiting: Any, manager: Any) -> list[Any]:
    line = list(waiting)
    victims = make_room(request, n, running, waiting, manager)
    waiting[:] = victims + line
    return victims


FREE = "`kv_cache_manager.free(victim)` takes all its blocks back."
FRONT = "`waiting.insert(0, victim)`, for each victim in turn."
LAST = "The last in `running` gives way, whoever asked: `running.pop()`."
ASK = "`while kv_cache_manager.allocate_slots(request, num_new_tokens) is None:`"
MAKE_ROOM = Contract(
    inputs=draw,
    judge=InLockstep(play, make_room),
    passed="Right in 150 shortages. The least important gives way, starts again from nothing, and "
    "is the first to come back.",
    clauses={
        "list": Clause(
            "Your function returned {got}; expected a list of its own with the "
            "preempted requests, perhaps an empty one.",
            "Collect the victims in a new list, and return it at the end.",
        ),
        "running": Clause(
            "The wrong requests are left in `running`. The last ones lose their "
            "place, one by one, until there is room; nobody else does.",
            f"{LAST} {ASK}",
        ),
        "waiting": Clause(
            "The line of those who wait is wrong. Each victim goes to its front.", FRONT
        ),
        "blocks": Clause(
            "The wrong numbers of blocks. Victims hold none, `request` holds what "
            "`allocate_slots` gave it, unless it is a victim itself.",
            f"{FREE} If the victim is `request`, stop: it gets nothing.",
        ),
        "pool": Clause(
            "Blocks are lost: neither does somebody hold them, nor are they free.", FREE
        ),
        "victims": Clause(
            "You return {got}; expected the victims {expected}, in the order in "
            "which they were preempted.",
            "`append` each when it is preempted.",
        ),
        "computed": Clause(
            "`num_computed_tokens` is wrong: of a victim it is 0, for its blocks "
            "are gone. Of all others it stays.",
            "`victim.num_computed_tokens = 0`.",
        ),
        "status": Clause(
            "The status is wrong: of a victim PREEMPTED, of all others as before.",
            "`victim.status = RequestStatus.PREEMPTED`.",
        ),
        "text": Clause(
            "A request has lost or gained tokens of its text. Only keys and values are "
            "gone; what it said has been sent to the user already.",
            "Leave `all_token_ids` and `output_token_ids` alone.",
        ),
    },
    mistakes=(
        mistake(
            "The victim is the first in `running`, the most important one. It has come the "
            "furthest, and would start again from nothing.",
            LAST,
            _but(choose=lambda running, request: running[0]),
        ),
        mistake(
            "A request gives way itself, though others are less important.",
            LAST,
            _but(choose=lambda running, request: request),
        ),
        mistake(
            "The last one in `running` may be `request`. Then it has to give way itself.",
            "Then stop: it gets no blocks in this step.",
            _but(choose=_never_itself),
        ),
        mistake(
            "Somebody is preempted before it is asked whether there is room.",
            "Ask `allocate_slots` first.",
            _but(at_first=True),
        ),
        mistake(
            "Somebody is preempted though there is room: `[]` says that no new block was "
            "needed, only None that there are too few.",
            ASK,
            _but(full=lambda b: not b),
        ),
        mistake("One victim may be too few. Ask again after each of them.", ASK, _one_victim),
        mistake(
            "A victim keeps its blocks, so that nothing is gained.",
            FREE,
            _but(lost="computed status place"),
        ),
        mistake(
            "A victim keeps `num_computed_tokens`, but its blocks are gone. When it comes "
            "back, it would read keys and values of somebody else.",
            "`victim.num_computed_tokens = 0`.",
            _but(lost="blocks status place"),
        ),
        mistake(
            "Victims go to the back of the line. They came before those who wait, and had "
            "their turn taken from them.",
            FRONT,
            _but(line=lambda waiting, victim: waiting.append(victim)),
        ),
        mistake(
            "Two victims are in the wrong order in `waiting`. The more important one, which "
            "was taken last, must come first.",
            FRONT,
            _in_one_block,
        ),
        mistake(
            "A victim is lost: it neither runs nor waits.",
            FRONT,
            _but(lost="blocks computed status"),
        ),
    ),
)
