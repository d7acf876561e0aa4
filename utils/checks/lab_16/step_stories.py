"""What lab 16 says of the scheduler's side of a connector: exercise 4."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_16.learners_parts import BareRequest, Scheduled, Transfers
from utils.checks.lab_16.step_sides import (
    LoadsByKey,
    LoadsOnce,
    NoEmptySteps,
    OfThoseWhoCompute,
    RightSide,
    SavesOnce,
    Shared,
    with_switches,
)


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
    failed: bool  # not its blocks: a load has failed, and what it held is computed after all
    again: tuple[int, int]  # what the engine has then, and what is loaded then
    pauses: int  # steps that give it nothing, although it has got its blocks
    room: int  # blocks that it has got and does not need yet; others come step by step
    twin: str  # "same start": of the request before, but its blocks; "same tokens": no more


@dataclass(frozen=True)
class Story:
    """Requests for a connector, together or one after another."""

    block_size: int
    plans: tuple[Plan, ...]
    together: bool
    connectors: int  # the requests go to them by turns

    def __str__(self) -> str:
        told = "; ".join(
            f"{p.num_tokens} tokens{' (that begin as before)' * bool(p.twin)}, {p.local} in the "
            f"engine's cache and {p.external} in the store"
            for p in self.plans
        )
        two = "two connectors; " * (self.connectors > 1)
        return f"{two}block_size {self.block_size}; requests: {told}"


def draw(c: Choices) -> Story:
    """Up to three requests, by turns or together, chunked, with and without hits.

    Some begin as the one before, so that two blocks have one key. Some come again, some get
    nothing in a step, and some go to a second connector. Blocks come when they are needed, or
    earlier.
    """
    size = c.pick([2, 1, 4])

    def plan() -> Plan:
        num_tokens = c.integer(1, 5 * size)
        most = (num_tokens - 1) // size
        local = c.integer(0, most)
        external = c.integer(0, most - local)
        chunks = tuple(c.some(lambda: c.integer(1, 2 * size), 1, 3))
        earlier = tuple(c.some(lambda: size * c.integer(0, most), 0, 1))
        waits, lost = c.pick((0, 0, 1, 3)), c.pick((0, 0, 1, 2))
        found = c.integer(0, most)
        loaded = c.integer(0, most - found)
        return Plan(
            num_tokens,
            local * size,
            external * size,
            earlier,
            not c.rarely(4),
            chunks,
            c.integer(0, 2 * size),
            waits,
            lost,
            c.rarely(4),
            (found * size, loaded * size),
            c.pick((0, 0, 1)),
            c.pick((0, 1, 99)),
            c.pick(("", "", "", "same start", "same tokens")),
        )

    plans = c.some(plan, 1, 3)
    plans[0] = replace(plans[0], twin="")
    for number, twin in enumerate(plans):
        if twin.twin == "same start":
            plans[number] = replace(
                plans[number - 1],
                twin=twin.twin,
                chunks=twin.chunks,
                answer=twin.answer,
                lost=twin.lost,
            )
        elif twin.twin:  # at the same time, too: one may load what the other computes
            plans[number] = replace(twin, waits=plans[number - 1].waits)
    together = c.rarely(2) or any(p.twin for p in plans)
    return Story(size, tuple(plans), together, 1 + c.rarely(4))


OVER = object()


def key_of(request: BareRequest, end: int) -> bytes:
    """Of the block that ends at token `end`."""
    return f"{request.all_token_ids[0] // 100}:{end}".encode()


@dataclass
class Engine:
    """A connector, what it is called in the feedback, and what it has told."""

    side: Any
    name: str  # empty, if there is one only
    told: list[tuple[list[Any], list[Any]]] = field(default_factory=list)  # and as it was then


def play(stage: Stage, side_class: Any, story: Story) -> None:
    """Let the requests arrive, run and end; see what is promised, loaded and saved."""
    size, stored = story.block_size, dict[int, int]()
    requests: list[BareRequest] = []
    for i, p in enumerate(story.plans):
        first = requests[-1].all_token_ids[0] if p.twin else 100 * i
        # The same id again, if they come one after another: what was kept of the first is wrong.
        requests.append(
            BareRequest(
                f"request {i if story.together else 0}", [first + t for t in range(p.num_tokens)]
            )
        )

    def keys_of(request: BareRequest) -> list[bytes]:
        return [key_of(request, end) for end in range(size, request.num_tokens + 1, size)]

    def matched_tokens(request: BareRequest, num_computed_tokens: int) -> int:
        return max(0, stored[id(request)] - num_computed_tokens)

    engines = []
    for name in ("first", "second")[: story.connectors]:
        side = stage.do(side_class, size, keys_of, matched_tokens)
        stage.see("new", side if isinstance(side, Raised) else "a connector")
        engines.append(Engine(side, f"{name} connector: " if story.connectors > 1 else ""))
    jobs = []
    for i, (request, p) in enumerate(zip(requests, story.plans, strict=True)):
        engine = engines[i % len(engines)]
        jobs.append((engine, _steps(stage, engine, size, i, request, p, stored)))
    for wave in [jobs] if story.together else [[job] for job in jobs]:
        while wave:
            parts = [(job, part) for job in wave if (part := next(job[1], OVER)) is not OVER]
            wave = [job for job, _ in parts]
            for engine in engines if wave else ():
                _run(
                    stage,
                    engine,
                    [
                        part
                        for job, part in parts
                        if job[0] is engine and isinstance(part, Scheduled)
                    ],
                )


def _steps(  # type: ignore[no-untyped-def]
    stage: Stage,
    engine: Engine,
    size: int,
    number: int,
    request: BareRequest,
    plan: Plan,
    stored: dict[int, int],
):
    """One request's part of each step; a generator, so that several can run together."""
    side, name = engine.side, engine.name
    ids: list[int] = []
    yield from [None] * plan.waits

    def blocks(num_tokens: int) -> list[int]:
        """Of so many tokens; and for some more, if it has got room."""
        return ids[: -(-num_tokens // size) + plan.room]

    def begin(local: int, external: int, settled: int, times: int) -> None:
        stored[id(request)] = local + external
        for computed in (*plan.earlier, local):
            stage.step(f"{name}get_num_new_matched_tokens({request.request_id}, {computed})")
            got = stage.call(side, "get_num_new_matched_tokens", request, computed)
            stage.see("get_num_new_matched_tokens", got)
        request.num_computed_tokens = local + settled
        first = 1000 * times + 100 * (number + 1) + 9
        ids[:] = [first - i for i in range(plan.num_tokens + plan.answer)]
        stage.step(
            f"{name}update_state_after_alloc({request.request_id} with num_computed_tokens "
            f"{request.num_computed_tokens}, block_ids, {settled})"
        )
        now = blocks(local + settled)
        got = stage.call(side, "update_state_after_alloc", request, now, settled)
        stage.see("update_state_after_alloc", got)

    begin(plan.local, plan.external, plan.external if plan.settled else 0, 0)
    yield from [None] * plan.pauses
    chunks, num_steps = list(plan.chunks), 0
    while left := request.num_tokens - request.num_computed_tokens:
        count = min(left, chunks.pop(0) if chunks else left)
        after = request.num_computed_tokens + count
        yield Scheduled(request, blocks(after), request.num_computed_tokens, count)
        request.num_computed_tokens += count
        num_steps += 1
        if num_steps == plan.lost and plan.failed:
            request.num_computed_tokens = min(plan.again[0], request.num_computed_tokens)
        elif num_steps == plan.lost:
            begin(*plan.again, plan.again[1], 1)
            yield from [None] * plan.pauses
            continue
        if request.num_computed_tokens == request.num_tokens < plan.num_tokens + plan.answer:
            request.all_token_ids.append(request.all_token_ids[0] + request.num_tokens)
    stage.step(f"{name}request_finished({request.request_id})")
    stage.see("request_finished", stage.call(side, "request_finished", request))


def _run(stage: Stage, engine: Engine, scheduled: list[Scheduled]) -> None:
    told = ", ".join(
        f"{s.request.request_id}: {s.num_scheduled_tokens} tokens after {s.num_computed_tokens}"
        for s in scheduled
    )
    stage.step(f"{engine.name}build_connector_meta([{told}])")
    meta = stage.call(engine.side, "build_connector_meta", scheduled)
    if isinstance(meta, Transfers):
        for name in ("loads", "saves"):
            pairs = getattr(meta, name)
            stage.see(name, sorted(pairs, key=repr) if isinstance(pairs, list) else pairs)
            engine.told += [(pairs, list(pairs))] if isinstance(pairs, list) else []
    for pairs, then in engine.told:
        stage.expect("earlier", then, pairs)
    stage.see("meta", type(meta).__name__ if not isinstance(meta, Raised) else meta)


_SAVES = (
    "From block `num_computed_tokens // block_size` up to, but without, block "
    "`(num_computed_tokens + num_scheduled_tokens) // block_size`; their numbers are in "
    "the step's own `block_ids`."
)
SCHEDULER_SIDE = Contract(
    inputs=draw,
    judge=InLockstep(play, RightSide),
    passed="Right in all stories: what is promised is loaded once, and each block is saved in the "
    "step that fills it.",
    clauses={
        "new": Clause("`SchedulerSide(block_size, keys_of, matched_tokens)` makes no connector."),
        "get_num_new_matched_tokens": Clause(
            "`get_num_new_matched_tokens` returns {got}; expected {expected}.",
            "The number that `matched_tokens` says, and False: nothing is loaded beside steps.",
        ),
        "update_state_after_alloc": Clause("`update_state_after_alloc` returns {got}, not None."),
        "meta": Clause("`build_connector_meta` returns {got}; expected a `Transfers`."),
        "loads": Clause(
            "`loads` are {got}; expected {expected}.",
            "The external tokens are the last of the first `num_computed_tokens`. "
            "Pair their keys with the blocks at the same places, once.",
        ),
        "saves": Clause("`saves` are {got}; expected {expected}.", _SAVES),
        "earlier": Clause(
            "What `build_connector_meta` returned for an earlier step is changed: "
            "{got}; it was {expected}.",
            "New lists for each step.",
        ),
        "request_finished": Clause("`request_finished` returns {got}; expected (False, None)."),
    },
    mistakes=(
        mistake(
            "What was loaded is loaded again in the next step.",
            "Begin a new list when `build_connector_meta` has handed the old one over.",
            with_switches(forgets=False),
        ),
        mistake(
            "The first blocks are loaded, although the engine has those itself. The external "
            "tokens come behind them.",
            "They end at block `request.num_computed_tokens // block_size`.",
            with_switches(skips_local=False),
        ),
        mistake(
            "Blocks are saved again in each step, and loaded ones, too.",
            _SAVES,
            with_switches(begins="zero"),
        ),
        mistake("A block is saved before it is full.", _SAVES, with_switches(rounds="up")),
        mistake(
            "Blocks that an answer fills are not saved. The next turn of the conversation "
            "begins with them.",
            _SAVES,
            with_switches(answers=False),
        ),
        mistake(
            "Loads are noted when somebody asks. Asking promises nothing, and the blocks are "
            "not known yet.",
            "Note them in `update_state_after_alloc`.",
            with_switches(at_question=True),
        ),
        mistake(
            "Only the first step of a request is saved. A long prompt takes several.",
            _SAVES,
            SavesOnce,
        ),
        mistake(
            "Of two requests that load the same key in one step, only one gets its block.",
            "Keep pairs in a list. A dict has each key once.",
            LoadsByKey,
        ),
        mistake(
            "In a step that computes nothing, or nothing of this request, what is settled is "
            "not told.",
            "All that has been settled since the last step, whoever computes.",
            NoEmptySteps,
            OfThoseWhoCompute,
        ),
        mistake(
            "A request that comes again loads nothing. Its blocks are new, and empty.",
            "It begins anew: note its loads again.",
            LoadsOnce,
        ),
        mistake("Two connectors share a list.", "Make it in `__init__`, not in the class.", Shared),
    ),
    examples=300,
)
