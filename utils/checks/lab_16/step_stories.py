"""What lab 16 says of the scheduler's side of a connector: exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import (
    Choices,
    Clause,
    Contract,
    InLockstep,
    Raised,
    Stage,
    mistake,
)
from utils.checks.lab_16.learners_parts import BareRequest, Pair, Scheduled, Transfers


@dataclass(frozen=True)
class Plan:
    """A request: its prompt, what the engine has of it, what the store has, when it is asked."""

    num_tokens: int
    local: int
    external: int
    earlier: tuple[int, ...]  # what the engine had when it was asked before
    settled: bool  # or nothing is loaded after all
    chunks: tuple[int, ...]  # tokens that the steps give it, as long as the prompt lasts
    answer: int  # tokens that it decodes
    waits: int  # steps before it is asked
    lost: int  # after so many steps it loses its blocks, and begins anew; 0: never


@dataclass(frozen=True)
class Story:
    """Requests for a connector, together or one after another."""

    block_size: int
    plans: tuple[Plan, ...]
    together: bool

    def __str__(self) -> str:
        told = "; ".join(
            f"{p.num_tokens} tokens, {p.local} in the engine's cache and {p.external} in the store"
            for p in self.plans
        )
        return f"block_size {self.block_size}; requests: {told}"


def draw(c: Choices) -> Story:
    """Up to three requests, by turns or together, chunked, with and without hits."""
    size = c.pick([2, 1, 4])

    def plan() -> Plan:
        num_tokens = c.integer(1, 5 * size)
        most = (num_tokens - 1) // size
        local = c.integer(0, most)
        external = c.integer(0, most - local)
        chunks = tuple(c.some(lambda: c.integer(1, 2 * size), 1, 3))
        earlier = tuple(c.some(lambda: size * c.integer(0, most), 0, 1))
        return Plan(num_tokens, local * size, external * size, earlier, not c.rarely(4), chunks,
                    c.integer(0, 2 * size), c.pick((0, 1, 2, 3)), c.pick((0, 0, 1, 2)))  # fmt: skip

    return Story(size, tuple(c.some(plan, 1, 3)), c.rarely(2))


OVER = object()


def key_of(request: BareRequest, end: int) -> bytes:
    """Of the block that ends at token `end`."""
    return f"{request.all_token_ids[0] // 100}:{end}".encode()


def play(stage: Stage, side_class: Any, story: Story) -> None:
    """Let the requests arrive, run and end; see what is promised, loaded and saved."""
    size = story.block_size
    requests = [
        # The same id again, if they come one after another: what was kept of the first is wrong.
        BareRequest(
            f"request {i if story.together else 0}", [100 * i + t for t in range(p.num_tokens)]
        )
        for i, p in enumerate(story.plans)
    ]
    stored = {id(r): p.local + p.external for r, p in zip(requests, story.plans, strict=True)}

    def keys_of(request: BareRequest) -> list[bytes]:
        return [key_of(request, end) for end in range(size, request.num_tokens + 1, size)]

    def matched_tokens(request: BareRequest, num_computed_tokens: int) -> int:
        return max(0, stored[id(request)] - num_computed_tokens)

    side = stage.do(side_class, size, keys_of, matched_tokens)
    stage.see("new", side if isinstance(side, Raised) else "a connector")
    jobs = [_steps(stage, side, size, i, r, p)
            for i, (r, p) in enumerate(zip(requests, story.plans, strict=True))]  # fmt: skip
    waves = [jobs] if story.together else [[job] for job in jobs]
    for wave in waves:
        while wave:
            parts = {job: part for job in wave if (part := next(job, OVER)) is not OVER}
            wave = list(parts)
            if wave:
                _run(stage, side, [p for p in parts.values() if isinstance(p, Scheduled)])


def _steps(stage: Stage, side: Any, size: int, number: int, request: BareRequest, plan: Plan):  # type: ignore[no-untyped-def]
    """One request's part of each step; a generator, so that several can run together."""
    yield from [None] * plan.waits

    def begin(local: int, external: int) -> list[int]:
        for computed in (*plan.earlier, local):
            stage.step(f"get_num_new_matched_tokens({request.request_id}, {computed})")
            got = stage.call(side, "get_num_new_matched_tokens", request, computed)
            stage.see("get_num_new_matched_tokens", got)
        request.num_computed_tokens = local + external
        ids = [100 * (number + 1) + 9 - i for i in range(plan.num_tokens + plan.answer)]
        stage.step(
            f"update_state_after_alloc({request.request_id} with num_computed_tokens "
            f"{request.num_computed_tokens}, block_ids, {external})"
        )
        got = stage.call(side, "update_state_after_alloc", request, list(ids), external)
        stage.see("update_state_after_alloc", got)
        return ids

    ids = begin(plan.local, plan.external if plan.settled else 0)
    chunks, num_steps = list(plan.chunks), 0
    while (left := request.num_tokens - request.num_computed_tokens) or plan.answer:
        if not left:
            break
        count = min(left, chunks.pop(0) if chunks else left)
        yield Scheduled(request, list(ids), request.num_computed_tokens, count)
        request.num_computed_tokens += count
        num_steps += 1
        if num_steps == plan.lost:
            ids = begin(0, 0)
            continue
        if request.num_computed_tokens == request.num_tokens < plan.num_tokens + plan.answer:
            request.all_token_ids.append(100 * number + request.num_tokens)
    stage.step(f"request_finished({request.request_id})")
    stage.see("request_finished", stage.call(side, "request_finished", request))


def _run(stage: Stage, side: Any, scheduled: list[Scheduled]) -> None:
    told = ", ".join(
        f"{s.request.request_id}: {s.num_scheduled_tokens} tokens after {s.num_computed_tokens}"
        for s in scheduled
    )
    stage.step(f"build_connector_meta([{told}])")
    meta = stage.call(side, "build_connector_meta", scheduled)
    if isinstance(meta, Transfers):
        for name in ("loads", "saves"):
            pairs = getattr(meta, name)
            stage.see(name, sorted(pairs, key=repr) if isinstance(pairs, list) else pairs)
    stage.see("meta", type(meta).__name__ if not isinstance(meta, Raised) else meta)


KeysOf = Callable[[Any], list[bytes]]
Matched = Callable[[Any, int], int]


class RightSide:
    """Plain and right. The switches make known mistakes."""

    forgets, skips_local, begins, rounds, at_question, answers, cleans = (
        True, True, "computed", "down", False, True, True,
    )  # fmt: skip

    def __init__(self, block_size: int, keys_of: KeysOf, matched_tokens: Matched) -> None:
        self.block_size, self.keys_of, self.matched_tokens = block_size, keys_of, matched_tokens
        self.loads: list[Pair] = []
        self.prompts: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        found = self.matched_tokens(request, num_computed)
        if self.at_question:
            first = num_computed // self.block_size
            keys = self.keys_of(request)[first : first + found // self.block_size]
            self.loads += [(key, first + i) for i, key in enumerate(keys)]
        return found, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int], num_ext: int) -> None:
        self.prompts.setdefault(request.request_id, request.num_tokens)
        count, end = num_ext // self.block_size, request.num_computed_tokens // self.block_size
        first = end - count if self.skips_local else 0
        if not self.at_question:
            self.loads += list(zip(self.keys_of(request), block_ids, strict=False))[
                first : first + count
            ]

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step = Transfers(list(self.loads))
        if self.forgets:
            self.loads = []
        for part in scheduled:
            after = part.num_computed_tokens + part.num_scheduled_tokens
            first = part.num_computed_tokens // self.block_size
            first = 0 if self.begins == "zero" else first
            last = after // self.block_size
            if self.rounds == "up":
                last = -(-after // self.block_size)
            if not self.answers and after > self.prompts[part.request.request_id]:
                continue
            pairs = zip(self.keys_of(part.request), part.block_ids, strict=False)
            step.saves += list(pairs)[first:last]
        return step

    def request_finished(self, request: Any) -> tuple[bool, None]:
        self.prompts.pop(request.request_id, None)
        return False, None


def with_switches(**switches: Any) -> type[RightSide]:
    """The connector that makes one mistake."""
    return type("Wrong", (RightSide,), switches)


class SavesOnce(RightSide):
    """Saves only in the first step of a request."""

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step = super().build_connector_meta([])
        for part in scheduled:
            if part.request.request_id in self.prompts:
                step.saves += super().build_connector_meta([part]).saves
                del self.prompts[part.request.request_id]
        return step


_SAVES = "From block `num_computed_tokens // block_size` up to, but without, block " \
         "`(num_computed_tokens + num_scheduled_tokens) // block_size`."  # fmt: skip
SCHEDULER_SIDE = Contract(
    inputs=draw,
    judge=InLockstep(play, RightSide),
    passed="Right in all stories: what is promised is loaded once, and each block is saved in the "
           "step that fills it.",
    clauses={
        "new": Clause("`SchedulerSide(block_size, keys_of, matched_tokens)` makes no connector."),
        "get_num_new_matched_tokens": Clause(
            "`get_num_new_matched_tokens` returns {got}; expected {expected}.",
            "The number that `matched_tokens` says, and False: nothing is loaded beside steps."),
        "update_state_after_alloc": Clause("`update_state_after_alloc` returns {got}, not None."),
        "meta": Clause("`build_connector_meta` returns {got}; expected a `Transfers`."),
        "loads": Clause("`loads` are {got}; expected {expected}.",
                        "The external tokens are the last of the first `num_computed_tokens`. "
                        "Pair their keys with the blocks at the same places, once."),
        "saves": Clause("`saves` are {got}; expected {expected}.", _SAVES),
        "request_finished": Clause("`request_finished` returns {got}; expected (False, None)."),
    },
    mistakes=(
        mistake("What was loaded is loaded again in the next step.",
                "Begin a new list when `build_connector_meta` has handed the old one over.",
                with_switches(forgets=False)),
        mistake("The first blocks are loaded, although the engine has those itself. The external "
                "tokens come behind them.",
                "They end at block `request.num_computed_tokens // block_size`.",
                with_switches(skips_local=False)),
        mistake("Blocks are saved again in each step, and loaded ones, too.", _SAVES,
                with_switches(begins="zero")),
        mistake("A block is saved before it is full.", _SAVES, with_switches(rounds="up")),
        mistake("Blocks that an answer fills are not saved. The next turn of the conversation "
                "begins with them.", _SAVES, with_switches(answers=False)),
        mistake("Loads are noted when somebody asks. Asking promises nothing, and the blocks are "
                "not known yet.", "Note them in `update_state_after_alloc`.",
                with_switches(at_question=True)),
        mistake("Only the first step of a request is saved. A long prompt takes several.", _SAVES,
                SavesOnce),
    ),
    examples=200,
)  # fmt: skip
