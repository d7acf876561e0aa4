"""The learner's router in random stories, before any server is started: exercise 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_17.matches import soonest
from utils.checks.lab_17.truths import PlainIndex, told
from utils.kv_events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    ExternalBlockHash,
)
from utils.routing.policies import ReplicaLoad, RoutingRequest
from utils.routing.router.block_names import block_names

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Story:
    """Two routers, each in front of its own replicas, and what they hear and are asked.

    Attributes:
        routers: the replicas of each, and its block size
        steps: (router, "heard", replica, event), (router, "died", replica), or (router, "choose",
            prompt, each replica's waiting tokens and requests, whether the last comes first)
    """

    routers: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        (n, size), (m, other) = self.routers
        return f"router 1 of {n} replicas, block size {size}; router 2 of {m}, block size {other}"


def draw(c: Choices) -> Story:
    """Prompts of two groups, of which each shares its beginning."""
    routers = [(c.integer(1, 4), c.pick((16, 4, 1, 32))) for _ in range(2)]

    def step() -> Step:
        which = c.pick((0, 0, 0, 1))
        num_replicas, size = routers[which]
        group, replica = c.integer(0, 1), c.integer(0, num_replicas - 1)
        blocks = c.integer(1, 4)
        tokens = [100 * group + i for i in range(blocks * size)]
        if c.rarely(8):
            return which, "died", replica
        if c.rarely(2):
            held = c.pick((0, size, 2 * size, 4 * size))
            waiting = [c.pick((0, 0, 1, held, held + 1, 10_000)) for _ in range(num_replicas)]
            loads = [(tokens_there, c.integer(0, 3)) for tokens_there in waiting]
            beginning = [] if c.rarely(6) else tokens  # without it: perhaps less than a block
            rest = range(10**6, 10**6 + c.integer(0 if beginning else 1, size))
            return which, "choose", [*beginning, *rest], loads, c.rarely(3)
        hashes: list[ExternalBlockHash] = [name ^ 1 for name in block_names(tokens, size)]
        event: Event = BlockStored(hashes, None, tokens, size, None, MEDIUM_GPU, None)
        if c.rarely(4):
            event = BlockRemoved(hashes[c.integer(0, blocks - 1) :], MEDIUM_GPU)
        return which, "heard", replica, AllBlocksCleared() if c.rarely(10) else event

    return Story(tuple(routers), tuple(c.some(step, 0, 20)))


def play(stage: Stage, make_router: Any, story: Story) -> None:
    routers = [stage.do(make_router, *given) for given in story.routers]
    for router in routers:
        stage.see("new", router if isinstance(router, Raised) else "a router")
        lacking = [name for name in ("heard", "choose") if not hasattr(router, name)]
        stage.see("methods", lacking, lambda names: " and no ".join(f"`{name}`" for name in names))
    dead: set[tuple[int, int]] = set()
    for number, (which, kind, *rest) in enumerate(story.steps):
        name = f"router {which + 1}"
        live = [i for i in range(story.routers[which][0]) if (which, i) not in dead]
        if kind == "heard" and rest[0] in live:
            stage.step(f"{name}: heard({rest[0]}, {told(rest[1])})")
            got = stage.call(routers[which], "heard", *rest)
            stage.see("heard", got if isinstance(got, Raised) else "heard")
        if kind == "died" and live != [rest[0]]:  # one is left
            stage.step(f"{name}: replica {rest[0]} dies")
            dead.add((which, rest[0]))
        if kind == "choose":
            tokens, loads, turned = rest
            replicas = [ReplicaLoad(i, 0, loads[i][1], loads[i][0]) for i in live]
            replicas = replicas[::-1] if turned else replicas
            names = block_names(tokens, story.routers[which][1])
            waiting = {r.index: r.waiting_tokens for r in replicas}
            stage.step(
                f"{name}: choose({len(tokens)} tokens from {tokens[0]} on, waiting tokens "
                f"{waiting})"
            )
            request = RoutingRequest(number, names, len(tokens))
            stage.see("choose", stage.call(routers[which], "choose", request, replicas))


class PlainRouter:
    """Right, by the slow index and the slow choice of the other exercises."""

    def __init__(self, num_replicas: int, block_size: int) -> None:
        self.index, self.block_size = PlainIndex(num_replicas), block_size

    def heard(self, replica: int, event: Event) -> None:
        self.index.apply(replica, event)

    def choose(self, request: RoutingRequest, replicas: Sequence[Any]) -> int:
        waiting = {replica.index: self.load(replica) for replica in replicas}
        found = self.matches(request, replicas)
        return soonest(request.num_tokens, self.block_size, found, waiting)

    def load(self, replica: Any) -> int:
        return int(replica.waiting_tokens)

    def matches(self, request: RoutingRequest, replicas: Sequence[Any]) -> list[int]:
        return self.index.matches([*request.block_hashes])  # type: ignore[list-item]


class _Sixteen(PlainRouter):
    def __init__(self, num_replicas: int, block_size: int) -> None:
        super().__init__(num_replicas, 16)


class _FirstReplicas(PlainRouter):
    replicas: Sequence[Any] = ()

    def choose(self, request: RoutingRequest, replicas: Sequence[Any]) -> int:
        self.replicas = self.replicas or replicas
        return super().choose(request, self.replicas)


class _MatchesOfLive(PlainRouter):
    def matches(self, request: RoutingRequest, replicas: Sequence[Any]) -> list[int]:
        found = super().matches(request, replicas)
        return [found[replica.index] for replica in replicas] + [0] * len(found)


class _Requests(PlainRouter):
    def load(self, replica: Any) -> int:
        return int(replica.num_waiting)


class _NoLoad(PlainRouter):
    def load(self, replica: Any) -> int:
        return 0


PARTS = (
    "`heard` passes events on to your `KVIndex`; `choose` asks it for `matches`, and gives them to "
    "`choose_replica` with the tokens that wait."
)
REHEARSAL = Contract(
    inputs=draw,
    judge=InLockstep(play, PlainRouter),
    passed="Right in all stories.",
    clauses={
        "new": Clause("`MyRouter(num_replicas, block_size)` gives no router."),
        "methods": Clause(
            "Your router has no method {got}.", "Keep the methods of the cell above."
        ),
        "choose": Clause(
            "Your router sends a prompt to the wrong replica: {got}; expected {expected}.", PARTS
        ),
    },
    mistakes=(
        mistake(
            "Blocks have 16 tokens in your router, whatever `block_size` says.",
            "Keep `block_size` in `__init__`.",
            _Sixteen,
        ),
        mistake(
            "The replicas of the first call are asked about in later ones, too. Some have died "
            "since.",
            "Look at `replicas` in each call.",
            _FirstReplicas,
        ),
        mistake(
            "When a replica is dead, the others' matches are mixed up: `matches` begins at "
            "replica 0, live or not.",
            "Pass on what your `KVIndex` returns.",
            _MatchesOfLive,
        ),
        mistake(
            "You weigh waiting requests, not the tokens that wait.", "`waiting_tokens`.", _Requests
        ),
        mistake("The queues do not count.", "`waiting_tokens` of each replica.", _NoLoad),
    ),
    examples=200,
)
