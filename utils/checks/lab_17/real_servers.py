"""The learner's router in front of two real servers, and two others beside it: exercise 8."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_17 import answers
from utils.checks.lab_17.picture import plot_runs
from utils.checks.lab_17.stories import stored
from utils.hub import load_tokenizer, resolve_model
from utils.kv_events.kv_events import AllBlocksCleared, Event, KVEventBatch
from utils.routing.fleet.experiments import warm_behind
from utils.routing.fleet.replicas import course_replicas
from utils.routing.fleet.workload import (
    GroupedPrompt,
    RunReport,
    predicted_hit_rate,
    prompt_groups,
    routing_requests,
    run_prompts,
)
from utils.routing.policies import ReplicaLoad, RoundRobin, RoutingRequest
from utils.routing.router.router import Policy
from utils.routing.router.server import our_router

BLOCK_SIZE, NUM_WORDS, NUM_GROUPS, PER_GROUP = 16, 40, 4, 2
ON_THE_WAY_S = 0.5  # after an answer, until its event has been heard
TOLERANCE = 0.07  # less than what two misses cost
YOURS, REMEMBERS, IN_TURNS = "your router", "a history (exercise 3)", "round robin"
MakeRouter = Callable[[int, int], Any]


class Remembering(answers.MyRouter):
    """As a right router, with a history in place of its index."""

    def __init__(self) -> None:
        super().__init__(2, BLOCK_SIZE)
        self.index: Any = answers.RoutingHistory(2, max_blocks=1000)

    def heard(self, replica: int, event: Event) -> None:
        """It remembers; it doesn't listen."""

    def choose(self, request: RoutingRequest, replicas: Sequence[Any]) -> int:
        chosen = super().choose(request, replicas)
        self.index.sent(chosen, request.block_hashes)
        return chosen


def against_two_others(make_router: MakeRouter) -> Passed:
    """Three routers send prompts to the same two servers, each router prompts of its own."""
    tokenizer = load_tokenizer(resolve_model("bundled"))
    yours = Learners(call(make_router, 2, BLOCK_SIZE))
    # What runs, what predicts (of yours a right answer), and the seed of the prompts.
    routers: dict[str, tuple[Policy, Policy, int]] = {
        IN_TURNS: (RoundRobin(), RoundRobin(), 1),
        REMEMBERS: (Remembering(), Remembering(), 2),
        YOURS: (yours, answers.MyRouter(2, BLOCK_SIZE), 3),
    }
    runs, rates = {}, {}
    with course_replicas(
        2, block_size=BLOCK_SIZE, num_gpu_blocks_override=400, max_model_len=256, verbose=False
    ) as replicas:
        for name, (policy, model, seed) in routers.items():
            listeners = yours.listeners() if policy is yours else None
            with our_router(policy, replicas, tokenizer=tokenizer, listeners=listeners) as front:
                # Each group's beginning is computed by one server, past the router.
                _, owners = warm_behind(replicas, NUM_GROUPS, NUM_WORDS, seed)
                time.sleep(ON_THE_WAY_S)
                known, asked = prompts_of(seed)
                runs[name] = run_prompts(front.url, replicas, asked)
            yours.complain()
            rates[name] = predicted(model, known, owners, asked, tokenizer)
    judge(runs[YOURS], rates[YOURS])
    found = [f"{runs[name].hit_rate:.0%}" for name in (YOURS, REMEMBERS, IN_TURNS)]
    return Passed(
        f"Your router stands in front of two real servers, which find {found[0]} of the prompts' "
        f"tokens in their caches. With a router that only remembers what it sent, they find "
        f"{found[1]}; with round robin, {found[2]}. Your router had never seen any of these "
        "prompts: it listens to the servers.",
        *plot_runs(runs, rates),
    )


def prompts_of(seed: int) -> tuple[list[GroupedPrompt], list[GroupedPrompt]]:
    """One prompt of each group, which `warm_behind` sends, and further ones in mixed order."""
    prompts = prompt_groups(NUM_GROUPS, 1 + PER_GROUP, NUM_WORDS, seed)
    return sorted(prompts[:NUM_GROUPS], key=lambda prompt: prompt.group), prompts[NUM_GROUPS:]


def predicted(
    policy: Policy,
    known: Sequence[GroupedPrompt],
    owners: Sequence[int],
    asked: Sequence[GroupedPrompt],
    tokenizer: Any,
) -> float:
    """The share of `asked` tokens that two servers with endless caches find, one by one."""
    prompts = [*known, *asked]
    requests = routing_requests(prompts, tokenizer, BLOCK_SIZE)

    def choose(request: RoutingRequest) -> int:
        number = request.request_id
        if number < len(known):
            chosen = owners[number]
        else:
            idle: list[Any] = [ReplicaLoad(0), ReplicaLoad(1)]
            chosen = policy.choose(request, idle)
        if isinstance(policy, answers.MyRouter):
            tokens = tokenizer.encode(prompts[number].text)
            tokens = tokens[: len(request.block_hashes) * BLOCK_SIZE]
            hashes: list[Any] = [*request.block_hashes]
            policy.heard(chosen, stored(hashes, None, tokens, BLOCK_SIZE))
        return chosen

    hits = predicted_hit_rate(requests, BLOCK_SIZE, choose) * sum(r.num_tokens for r in requests)
    return hits / sum(request.num_tokens for request in requests[len(known) :])


def judge(run: RunReport, rate: float) -> None:
    """What the servers have counted, against the prediction."""
    if run.errors:
        raise Mismatch("A request got no answer from the servers.", got=run.errors[0])
    if run.hit_rate < rate - TOLERANCE:
        raise Mismatch(
            "With your router the servers find less in their caches than they could.",
            expected=f"{rate:.1%} of the prompts' tokens",
            got=f"{run.hit_rate:.1%}, requests per server {run.num_requests}",
            look="Each server had computed the beginnings of half of the prompts before, unknown "
            "to your router. Does `heard` pass on every event, and does `choose` ask that index?",
        )


class Learners:
    """The learner's router as our router's policy; remembers its first error."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.error: Exception | None = None

    def choose(self, request: RoutingRequest, replicas: Sequence[Any]) -> int:
        return self._try(lambda: self.router.choose(request, replicas))

    def listeners(self) -> list[Listener]:
        return [Listener(self, replica) for replica in range(2)]

    def heard(self, replica: int, event: Event) -> None:
        self._try(lambda: self.router.heard(replica, event))

    def complain(self) -> None:
        """Raise a `Mismatch` if something in the learner's router has failed."""
        if self.error is not None:
            raise Mismatch(
                "Your router raised an error in front of the servers.",
                got=f"{type(self.error).__name__}: {self.error}",
            )

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self.error = self.error or error
            raise


class Listener:
    """Passes one server's events on, one by one."""

    def __init__(self, learners: Learners, replica: int) -> None:
        self.learners, self.replica = learners, replica

    def apply(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            self.learners.heard(self.replica, event)

    def clear(self) -> None:
        self.learners.heard(self.replica, AllBlocksCleared())
