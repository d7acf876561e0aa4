"""What lab 06 says of swapping out and in: exercise 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_06.bare_requests import Bare, draw_bare, name_of
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.scheduler import Scheduler
from utils.engine.request import Request, RequestStatus
from utils.engine.spec_decode.draft import NO_DRAFT

Recovery = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Turn:
    """One request gives way, comes back or ends, whichever it can."""

    who: int
    ends: bool
    part: int  # of what it lacks, in quarters


@dataclass(frozen=True)
class Story:
    """Requests that all run at first, a memory for them, and host memory."""

    requests: tuple[Bare, ...]
    block_size: int
    num_spare: int
    num_cpu_blocks: int
    swaps_from: int  # so many computed tokens are swapped sooner than computed again
    has_twin: bool
    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        each = ", ".join(
            f"{name_of(i)} ({r.computed} of {r.num_tokens} tokens computed)"
            for i, r in enumerate(self.requests)
        )
        return (
            f"running: {each}; blocks of {self.block_size} tokens, {self.num_spare} free, and "
            f"{self.num_cpu_blocks} in host memory; to swap is faster from {self.swaps_from} "
            f"tokens on, at {self.swaps_from - 1} both take as long"
            + ("; a second object of the class beside it" if self.has_twin else "")
        )

    def recovery(self, num_tokens: int) -> tuple[float, float]:
        """Seconds to recompute and to swap; equal at one token less than `swaps_from`."""
        return 0.25 * num_tokens, 0.25 * (self.swaps_from - 1)


def draw(c: Choices) -> Story:
    """Host memory for all, for some, for none; long and short requests; ties."""
    block_size = c.pick((4, 16, 1, 3))
    high = 3000 if c.rarely(8) else 40
    requests = c.some(lambda: draw_bare(c, high, started=True), 1, 30 if c.rarely(12) else 5)
    one = c.pick(requests)
    swaps_from = c.pick((1, one.computed + 1, one.computed, one.num_tokens, 10**6))
    sizes = [-(-r.computed // block_size) for r in requests]
    num_cpu_blocks = c.pick((sum(sizes), max(sizes), c.integer(0, sum(sizes)), 0))
    turns = c.some(
        lambda: Turn(c.integer(0, len(requests) - 1), c.rarely(8), c.integer(1, 4)), 1, 14
    )
    # Sometimes the pool lacks a block for what somebody will want.
    return Story(
        tuple(requests),
        block_size,
        c.pick((0, 1, c.integer(0, 6))),
        num_cpu_blocks,
        swaps_from,
        c.rarely(6),
        tuple(turns),
    )


class _Machine:
    """A manager with its requests, all running, and an object of the class beside it."""

    def __init__(self, stage: Stage, swapping: Any, story: Story, recovery: Recovery) -> None:
        size = story.block_size
        held = sum(-(-r.computed // size) for r in story.requests)
        self.manager = KVCacheManager(
            held + story.num_spare, size, enable_caching=False, num_cpu_blocks=story.num_cpu_blocks
        )
        self.requests: list[Request] = []
        for number, bare in enumerate(story.requests):
            made = Bare(bare.num_prompt, bare.num_answer, 0)
            self.requests.append(made.made(name_of(number), RequestStatus.RUNNING))
            self.manager.allocate_slots(self.requests[-1], bare.computed)
            self.requests[-1].num_computed_tokens = bare.computed
        self.swapping = stage.do(swapping, self.manager, recovery)
        stage.see("raises", _error(self.swapping))

    def show(self, stage: Stage) -> None:
        manager = self.manager
        copies = manager.take_block_copies()
        stage.see(
            "copies",
            (len(copies.swap_out), len(copies.swap_in)),
            lambda n: f"{n[0]} blocks copied out, {n[1]} in",
        )
        stage.see("blocks", self._of_each(lambda r: len(manager.req_to_blocks.get(r, ()))))
        stage.see("host", self._of_each(lambda r: "out" if r in manager.swap_space else "not out"))
        stage.see(
            "pool",
            (manager.block_pool.get_num_free_blocks(), manager.swap_space.num_free_blocks),
            lambda free: f"{free[0]} blocks free, {free[1]} in host memory",
        )
        stage.see("computed", {r.request_id: r.num_computed_tokens for r in self.requests})
        stage.see(
            "status", {r.request_id: getattr(r.status, "name", r.status) for r in self.requests}
        )
        stage.see("text", {r.request_id: list(r.all_token_ids) for r in self.requests})

    def _of_each(self, what: Callable[[str], Any]) -> dict[str, Any]:
        return {request.request_id: what(request.request_id) for request in self.requests}


def _error(got: Any) -> Any:
    return got if isinstance(got, Raised) else "no error"


def play(stage: Stage, swapping: Any, story: Story) -> None:
    machine = _Machine(stage, swapping, story, story.recovery)
    twin = None
    if story.has_twin:  # it decides the other way round
        twin = _Machine(stage, swapping, story, lambda n: story.recovery(n)[::-1])
    for turn in story.turns:
        _take(stage, machine, turn)
        if twin:
            _take(stage, twin, turn)
            machine.show(stage)


def _take(stage: Stage, machine: _Machine, turn: Turn) -> None:
    manager, request = machine.manager, machine.requests[turn.who]
    name = request.request_id
    if request.is_finished:
        return
    if turn.ends:
        stage.step(f"{name} is aborted")
        request.status = RequestStatus.FINISHED_ABORTED
        manager.free(request)
    elif name in manager.req_to_blocks:
        stage.step(f"{name} gives way")
        got = stage.call(machine.swapping, "give_way", request)
        stage.see("raises", _error(got))
        machine.show(stage)
    else:
        lacking = request.num_tokens - request.num_computed_tokens
        num_new_tokens = max(1, lacking * turn.part // 4)
        stage.step(f"{name} comes back with {num_new_tokens} tokens")
        got = stage.call(machine.swapping, "come_back", request, num_new_tokens)
        stage.see("raises", _error(got))
        machine.show(stage)
        stage.see("returns", got)
        if got is True:  # what the scheduler and the step do then
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens += min(num_new_tokens, lacking)
            if request.num_computed_tokens == request.num_tokens:
                request.all_token_ids.append(7)


class SwapOrRecompute:
    """A right answer, with a switch for each known mistake."""

    swaps: Callable[[float, float], bool] = staticmethod(lambda recompute, swap: swap < recompute)
    asks_for: Callable[[Request], int] = staticmethod(lambda victim: victim.num_computed_tokens)
    trusts = frees_both = keeps_count = loses_count = keeps_status = False
    forgets_new = without_new = without_asking = truth_of_list = False

    def __init__(self, kv_cache_manager: Any, recovery: Recovery) -> None:
        self.kv_cache_manager, self.recovery = kv_cache_manager, recovery

    def give_way(self, victim: Any) -> None:
        swapped = self.swaps(*self.recovery(self.asks_for(victim)))
        swapped = swapped and (self.kv_cache_manager.swap_out(victim) or self.trusts)
        if not swapped or self.frees_both:
            self.kv_cache_manager.free(victim)
        if self.loses_count or not (swapped or self.keeps_count):
            victim.num_computed_tokens = 0
        if not self.keeps_status:
            victim.status = RequestStatus.PREEMPTED

    def come_back(self, request: Any, num_new_tokens: int) -> Any:
        manager = self.kv_cache_manager
        if self.without_asking or request.request_id in manager.swap_space:
            if not manager.swap_in(request, *(() if self.without_new else (num_new_tokens,))):
                return False
            if self.forgets_new:
                return True
        blocks = manager.allocate_slots(request, num_new_tokens)
        return bool(blocks) if self.truth_of_list else blocks is not None


def _but(**switches: Any) -> type:
    static = {k: staticmethod(v) if callable(v) else v for k, v in switches.items()}
    return type("Wrong", (SwapOrRecompute,), static)


def scheduler_with(swapping: Any, recovery: Recovery) -> type[Scheduler]:
    """The engine's scheduler, with a learner's way of giving way and of coming back."""

    class Swapping(Scheduler):
        def __init__(self, config: Any, kv_cache_manager: Any) -> None:
            super().__init__(config, kv_cache_manager)
            self.swapping = swapping(kv_cache_manager, recovery)

        def _preempt(self, request: Request) -> None:
            self.swapping.give_way(request)
            request.num_preemptions += 1
            request.draft = NO_DRAFT
            self.waiting.add_request(request)

        def _admit(self, request: Request, budget: int) -> int:
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            return num_new_tokens if self.swapping.come_back(request, num_new_tokens) else 0

    return Swapping


TRY = "`swap_out` returns False if host memory has too little room. Then recompute."
IN_USE = "In host memory the request is known by `request_id in kv_cache_manager.swap_space`."
SWAP = Contract(
    inputs=draw,
    judge=InLockstep(play, SwapOrRecompute),
    passed="Right in 150 stories. Whoever has much to lose is copied out, whoever has little is "
    "computed again; and when host memory is full, everybody is.",
    clauses={
        "copies": Clause(
            "The wrong number of blocks is copied, out to host memory or back in.",
            f"To swap must be *faster* than to recompute. {TRY} {IN_USE}",
        ),
        "host": Clause(
            "The wrong requests are in host memory.",
            f"To swap must be *faster* than to recompute. {TRY}",
        ),
        "blocks": Clause(
            "The wrong numbers of blocks. Whoever gives way holds none; whoever comes "
            "back has room for all that is computed and for the new tokens.",
            "`allocate_slots` gives the blocks for the new tokens, after `swap_in`.",
        ),
        "pool": Clause(
            "Blocks are lost: they are neither held nor free.",
            "`free(victim)` for whoever is not swapped out.",
        ),
        "computed": Clause(
            "`num_computed_tokens` is wrong: of a victim that is recomputed it is "
            "0, of one that is swapped out it stays.",
            "Only if its keys and values are gone: `victim.num_computed_tokens = 0`.",
        ),
        "status": Clause(
            "The status is wrong: of a victim PREEMPTED, of all others as before.",
            "`victim.status = RequestStatus.PREEMPTED`, whichever way it goes.",
        ),
        "text": Clause(
            "A request has lost or gained tokens of its text.",
            "Leave `all_token_ids` and `output_token_ids` alone.",
        ),
        "returns": Clause(
            "`come_back` returned {got}; expected {expected}: whether the request "
            "has its blocks now.",
            "`allocate_slots` returns None for no room, and `[]` if no new block was needed.",
        ),
    },
    mistakes=(
        mistake(
            "Everybody is swapped out, even where to recompute is as fast or faster.",
            "Compare the two numbers of `self.recovery(...)`.",
            _but(swaps=lambda recompute, swap: True),
        ),
        mistake(
            "Nobody is swapped out.",
            "Compare the two numbers of `self.recovery(...)`.",
            _but(swaps=lambda recompute, swap: False),
        ),
        mistake(
            "The slower way is taken.",
            "`recompute, swap = self.recovery(...)`.",
            _but(swaps=lambda recompute, swap: swap > recompute),
        ),
        mistake(
            "If both take as long, recompute: it leaves host memory to others.",
            "`swap < recompute`.",
            _but(swaps=lambda recompute, swap: swap <= recompute),
        ),
        mistake(
            "The costs are those of all tokens. What is lost, or copied, is only what the "
            "victim has computed.",
            "`self.recovery(victim.num_computed_tokens)`.",
            _but(asks_for=lambda victim: victim.num_tokens),
        ),
        mistake("Host memory is full, and the victim keeps its blocks.", TRY, _but(trusts=True)),
        mistake(
            "What was just copied out is thrown away: `free` gives the blocks in host memory "
            "back, too.",
            "`free(victim)` only if it is not swapped out.",
            _but(frees_both=True),
        ),
        mistake(
            "A victim that was swapped out starts again from nothing. Its keys and values are "
            "safe: `num_computed_tokens` stays.",
            "0 only for those that are recomputed.",
            _but(loses_count=True),
        ),
        mistake(
            "A victim that is recomputed keeps `num_computed_tokens`, but its blocks are gone.",
            "`victim.num_computed_tokens = 0`.",
            _but(keeps_count=True),
        ),
        mistake(
            "Whoever was not swapped out cannot be swapped in.", IN_USE, _but(without_asking=True)
        ),
        mistake(
            "`swap_in` brings the blocks that were copied out. The new tokens may need more.",
            "`allocate_slots(request, num_new_tokens)` after it.",
            _but(forgets_new=True),
        ),
        mistake(
            "`allocate_slots` returns `[]` if no new block was needed. That is a success; "
            "only None says that there is no room.",
            "`is not None`.",
            _but(truth_of_list=True),
        ),
    ),
)
