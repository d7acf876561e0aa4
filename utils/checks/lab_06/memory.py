"""Requests that give way when memory runs out, and come back: `make_room`, `SwapOrRecompute`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.lab.story import Story
from utils.checks.kit.pictures.blocks import count
from utils.checks.lab_06 import answers, pictures
from utils.checks.lab_06.bare import BareRequest, bare_request, draw_request, name_of, names
from utils.checks.lab_06.given import Recovery
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.request import Request, RequestStatus

DRAWN = 30  # blocks in a picture


def status_of(request: Request) -> str:
    return str(getattr(request.status, "name", request.status))


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def listed(requests: Sequence[BareRequest]) -> str:
    each = [f"{r.request_id} ({r.num_computed_tokens} of {r.num_tokens} tokens)" for r in requests]
    return ", ".join(each)


def running_on(manager: KVCacheManager, request: BareRequest) -> BareRequest:
    """A copy of a running request, with blocks for what it has computed."""
    mine, computed = copy.deepcopy(request), request.num_computed_tokens
    mine.num_computed_tokens = 0
    manager.allocate_slots(mine, computed)
    mine.num_computed_tokens = computed
    return mine


# Exercise 4


@dataclass(frozen=True)
class Shortage:
    """Requests that run, one of them in need of blocks, and requests that wait."""

    running: tuple[BareRequest, ...]
    waiting: tuple[BareRequest, ...]
    asks: int
    num_new_tokens: int
    num_free: int
    block_size: int

    def __str__(self) -> str:
        return (
            f"running, with their computed tokens: {listed(self.running)}; waiting: "
            f"{', '.join(names(self.waiting)) or 'nobody'}; blocks of {self.block_size} tokens, "
            f"{self.num_free} free; {name_of(self.asks)} needs room for {self.num_new_tokens} more"
        )


def draw_shortage(c: Choices) -> Shortage:
    """From plenty of room to far too little; room in the last block; many small requests behind
    one that needs all of their blocks."""
    block_size, swarm, numbers = c.pick((4, 4, 16, 1, 3)), c.rarely(10), iter(range(100))
    high, most = (block_size, 20) if swarm else (40, 40 if c.rarely(12) else 5)
    running = c.some(lambda: draw_request(c, name_of(next(numbers)), high, True), 1, most)
    asks = 0 if swarm else c.integer(0, len(running) - 1)
    if swarm:
        first = {"num_computed_tokens": 1, "status": RequestStatus.RUNNING}
        running[0] = bare_request("A", 30 * block_size, **first)
    lacking = running[asks].lacking
    num_new = c.integer(1, lacking) if c.rarely(2) else c.pick((1, lacking))
    waiting = c.some(lambda: draw_request(c, f"waiting {next(numbers)}", 10), 0, 3)
    needed = blocks_for(running[asks].num_computed_tokens + num_new, block_size)
    free = 0 if swarm else c.integer(0, needed + 1)
    return Shortage(tuple(running), tuple(waiting), asks, num_new, free, block_size)


class Scene:
    """A shortage, with requests of its own and a real manager."""

    def __init__(self, case: Shortage) -> None:
        held = sum(blocks_for(r.num_computed_tokens, case.block_size) for r in case.running)
        self.manager = KVCacheManager(held + case.num_free, case.block_size, enable_caching=False)
        self.running = [running_on(self.manager, request) for request in case.running]
        self.waiting = [copy.deepcopy(request) for request in case.waiting]
        self.everybody = [*self.running, *self.waiting]
        self.request, self.num_new_tokens = self.running[case.asks], case.num_new_tokens

    def ask(self, function: Any) -> Any:
        return attempt(
            function, self.request, self.num_new_tokens, self.running, self.waiting, self.manager
        )

    def of_each(self, what: Callable[[Request], Any]) -> dict[str, Any]:
        return {request.request_id: what(request) for request in self.everybody}

    def num_blocks(self, request: Request) -> int:
        return len(self.manager.get_blocks(request.request_id))


def play_shortage(stage: Stage, function: Any, case: Shortage) -> None:
    scene = Scene(case)
    before = scene.of_each(scene.num_blocks)

    def see(clause: str, value: Any) -> None:
        stage.see(clause, value, picture=lambda *_: _draw(case, before, scene))

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
    see("status", scene.of_each(status_of))
    text = scene.of_each(lambda r: (r.prompt_token_ids, r.output_token_ids, r.all_token_ids))
    see("text", text)
    again = Scene(case).ask(function)
    see("again", names(again) if isinstance(again, list) else again)


def _draw(case: Shortage, before: dict[str, int], scene: Scene) -> tuple[Figure | None, str]:
    total, right = scene.manager.block_pool.num_gpu_blocks, Scene(case)
    if total > DRAWN:
        return None, ""
    right.ask(answers.make_room)
    after, yours = right.of_each(right.num_blocks), scene.of_each(scene.num_blocks)
    figure = pictures.rows_of_cells(
        [
            (
                label,
                [
                    pictures.Cell(k, "held" if good[k] == n else "wrong", n)
                    for k, n in held.items()
                    if n
                ],
            )
            for label, held, good in (
                ("before", before, before),
                ("expected", after, after),
                ("yours", yours, after),
            )
        ],
        "Who holds how many blocks",
        f"blocks (dashed: all {total})",
        limit=total,
        unit=0.7,
    )
    return figure, "Who holds how many blocks: before, expected, and yours."


# Exercise: swap or recompute


@dataclass(frozen=True)
class Memory:
    """Requests that all run at first, memory for them, and host memory."""

    requests: tuple[BareRequest, ...]
    block_size: int
    num_spare: int
    num_cpu_blocks: int
    swaps_from: int  # as many computed tokens are swapped sooner than computed again

    def recovery(self, num_tokens: int) -> tuple[float, float]:
        """Seconds to recompute and to swap; equal at one token less than `swaps_from`."""
        return 0.25 * num_tokens, 0.25 * (self.swaps_from - 1)


class SwapStory(Story):
    """Requests give way and come back in turn."""

    kinds = ("turn",) * 6 + ("abort",)
    most = 14

    @classmethod
    def draw_setting(cls, c: Choices) -> Memory:
        """Host memory for all, for some, for none; long and short requests; ties."""
        block_size, numbers = c.pick((4, 16, 1, 3)), iter(range(99))
        high, most = 3000 if c.rarely(8) else 40, 30 if c.rarely(12) else 5
        requests = c.some(lambda: draw_request(c, name_of(next(numbers)), high, True), 1, most)
        one = c.pick(requests)
        computed = one.num_computed_tokens
        sizes = [blocks_for(r.num_computed_tokens, block_size) for r in requests]
        return Memory(
            tuple(requests),
            block_size,
            num_spare=c.pick((0, 0, 1, c.integer(0, 6))),
            num_cpu_blocks=c.pick((sum(sizes), max(sizes), c.integer(0, sum(sizes)), 0)),
            swaps_from=c.pick((1, computed + 1, computed, one.num_tokens, 10**6)),
        )

    @classmethod
    def tell(cls, setting: Memory) -> str:
        limit = setting.swaps_from
        return (
            f"running, with their computed tokens: {listed(setting.requests)}; blocks of "
            f"{setting.block_size} tokens, {setting.num_spare} free, and {setting.num_cpu_blocks} "
            f"in host memory; swapping is faster from {limit} tokens on, and at {limit - 1} both "
            "ways take equally long"
        )

    @classmethod
    def draw_turn(cls, c: Choices, memory: Memory) -> tuple[int, int]:
        """Which request, and how much of what it lacks, in quarters, when it comes back."""
        return c.integer(0, len(memory.requests) - 1), c.integer(1, 4)

    @classmethod
    def draw_abort(cls, c: Choices, memory: Memory) -> tuple[int]:
        return (c.integer(0, len(memory.requests) - 1),)

    def start(self, answer: Any) -> None:
        memory = self.setting
        held = sum(blocks_for(r.num_computed_tokens, memory.block_size) for r in memory.requests)
        self.manager = KVCacheManager(
            held + memory.num_spare,
            memory.block_size,
            enable_caching=False,
            num_cpu_blocks=memory.num_cpu_blocks,
        )
        self.requests = [running_on(self.manager, request) for request in memory.requests]
        self.swapping = self._new(answer, memory.recovery)
        self._new(answer, lambda n: memory.recovery(n)[::-1])  # it must not disturb the first

    def do_turn(self, who: int, quarters: int) -> None:
        request = self.requests[who]
        if not request.is_finished:
            if self.manager.get_blocks(request.request_id):
                self._give_way(request)
            else:
                self._come_back(request, quarters)

    def do_abort(self, who: int) -> None:
        request = self.requests[who]
        if not request.is_finished:
            self.stage.step(f"{request.request_id} is aborted")
            request.status = RequestStatus.FINISHED_ABORTED
            self.manager.free(request)

    def _new(self, answer: Any, recovery: Recovery) -> Any:
        return self.see("new", self.stage.do(answer, self.manager, recovery), "an object")

    def _give_way(self, request: Request) -> None:
        self.stage.step(f"give_way({request.request_id})")
        self.see("give_way", self.stage.call(self.swapping, "give_way", request))
        self._look(request, "give_way")

    def _come_back(self, request: BareRequest, quarters: int) -> None:
        lacking = request.lacking
        num_new_tokens = max(1, lacking * quarters // 4)
        self.stage.step(f"come_back({request.request_id}, {num_new_tokens})")
        got = self.stage.call(self.swapping, "come_back", request, num_new_tokens)
        self.see("come_back", got)
        self._look(request, "come_back")
        self.stage.see("returns", got)
        if got:  # what the scheduler and the step do then
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens += min(num_new_tokens, lacking)
            if not request.lacking:
                request.all_token_ids.append(7)

    def _look(self, who: Request, method: str) -> None:
        """First at the request that was given, then at all others."""
        copies, stage = self.manager.take_block_copies(), self.stage
        lost = copies.swap_out and who.request_id not in self.manager.swap_space
        stage.see(f"{method}: place", self._place(who) + " (they were copied out)" * bool(lost))
        stage.see(f"{method}: computed", who.num_computed_tokens)
        stage.see(f"{method}: status", status_of(who))
        stage.see("copies", (len(copies.swap_out), len(copies.swap_in)), _copied)
        free = self.manager.block_pool.get_num_free_blocks()
        stage.see("pool", (free, self.manager.swap_space.num_free_blocks), _free)
        for request in self.requests:
            state = self._place(request), request.num_computed_tokens, status_of(request)
            stage.see("others", (request.request_id, *state))
        stage.see("text", [request.all_token_ids for request in self.requests])

    def _place(self, request: Request) -> str:
        """Where its keys and values are."""
        num_blocks = len(self.manager.get_blocks(request.request_id))
        if request.request_id in self.manager.swap_space:
            also = f", and it holds {count(num_blocks, 'block')}, too" if num_blocks else ""
            return f"in host memory{also}"
        return f"in {count(num_blocks, 'block')}" if num_blocks else "nowhere"


def _copied(numbers: tuple[int, int]) -> str:
    return f"{count(numbers[0], 'block')} copied out, {numbers[1]} copied in"


def _free(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]} in the pool, {numbers[1]} in host memory"
