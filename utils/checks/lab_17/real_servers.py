"""The learner's router in front of two real servers: exercise 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.runner import Mismatch, call
from utils.hub import load_tokenizer, resolve_model
from utils.kv_events.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockStored, Event, KVEventBatch
from utils.routing.fleet.experiments import ask_warmed, warm_behind
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
from utils.routing.router.block_names import block_names
from utils.routing.router.server import our_router

BLOCK_SIZE, NUM_WORDS, NUM_WARMED = 16, 40, 6
TOLERANCE = 0.03
MakeRouter = Callable[[int, int], Any]


def against_round_robin(make_router: MakeRouter) -> str:
    """Round robin and the learner's router send prompts to the same two servers."""
    tokenizer = load_tokenizer(resolve_model("bundled"))
    with course_replicas(
        2, block_size=BLOCK_SIZE, num_gpu_blocks_override=400, max_model_len=256, verbose=False
    ) as replicas:
        prompts = prompt_groups(3, 3, NUM_WORDS, seed=1)
        turn = iter(range(len(prompts)))
        requests = routing_requests(prompts, tokenizer, BLOCK_SIZE)
        plain_foretold = predicted_hit_rate(requests, BLOCK_SIZE, lambda request: next(turn) % 2)
        with our_router(RoundRobin(), replicas) as front:
            plain = run_prompts(front.url, replicas, prompts)
        prompts = prompt_groups(3, 3, NUM_WORDS, seed=2)
        foretold = foretell(call(make_router, 2, BLOCK_SIZE), prompts, tokenizer)
        yours = Learners(call(make_router, 2, BLOCK_SIZE))
        with our_router(yours, replicas, tokenizer=tokenizer, listeners=yours.listeners()) as front:
            run = run_prompts(front.url, replicas, prompts)
            yours.complain()
            judge(run, plain, foretold)
            asked, owners = warm_behind(replicas, NUM_WARMED, NUM_WORDS, seed=3)
            warmed = ask_warmed(front.url, replicas, asked, owners)
            yours.complain()
    if warmed.num_right < NUM_WARMED - 1:
        raise Mismatch(
            "Prompts whose beginning a server had computed were sent to the other one.",
            input=f"{NUM_WARMED} prompts that were sent to the servers directly, past your router",
            expected=f"all {NUM_WARMED} where their beginning is",
            got=f"{warmed.num_right}",
            look="Does `heard` book all events, also those of prompts that you never saw?",
        )
    return (
        f"Your router stands in front of two real servers. Of the prompts' tokens, round robin "
        f"finds {plain.hit_rate:.1%} in the caches (foretold: {plain_foretold:.1%}), yours "
        f"{run.hit_rate:.1%} (foretold: {foretold:.1%}); requests per server {run.num_requests}. "
        f"And of {NUM_WARMED} prompts that it had never seen, {warmed.num_right} went where "
        f"somebody else had left their beginning."
    )


def judge(run: RunReport, plain: RunReport, foretold: float) -> None:
    """What the servers have counted, against round robin and against the prediction."""
    if run.errors:
        raise Mismatch("A request was not answered.", got=run.errors[0])
    if run.hit_rate <= plain.hit_rate:
        raise Mismatch(
            "Your router finds no more in the caches than round robin.",
            expected=f"more than {plain.hit_rate:.1%}",
            got=f"{run.hit_rate:.1%}, requests per server {run.num_requests}",
        )
    if abs(run.hit_rate - foretold) > TOLERANCE:
        raise Mismatch(
            "The servers' counters are not as foretold.",
            input="the same prompts, to your router and two pretended servers",
            expected=f"{foretold:.1%} of the tokens found",
            got=f"{run.hit_rate:.1%}",
            look="Does your router remember something from one run to the next?",
        )


def foretell(router: Any, prompts: Sequence[GroupedPrompt], tokenizer: Any) -> float:
    """The hit rate if the prompts are sent one after the other to servers with endless caches."""
    requests = routing_requests(prompts, tokenizer, BLOCK_SIZE)
    tokens = {
        r.request_id: tokenizer.encode(p.text) for r, p in zip(requests, prompts, strict=True)
    }

    def choose(request: RoutingRequest) -> int:
        chosen = call(router.choose, request, [ReplicaLoad(0), ReplicaLoad(1)])
        call(router.heard, chosen, stored(tokens[request.request_id]))
        return chosen

    return predicted_hit_rate(requests, BLOCK_SIZE, choose)


def stored(token_ids: Sequence[int]) -> BlockStored:
    """What a server says that has computed a prompt: all of its full blocks."""
    names = block_names(token_ids, BLOCK_SIZE)
    return BlockStored(
        [name ^ 1 for name in names],
        None,
        list(token_ids[: len(names) * BLOCK_SIZE]),
        BLOCK_SIZE,
        None,
        MEDIUM_GPU,
        None,
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
