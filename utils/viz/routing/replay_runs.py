"""Every policy on one small trace, with a snapshot of the cluster after each request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from utils.sim.cluster.compare import every_policy, summary
from utils.sim.cluster.cost import llama3_70b_on_a800
from utils.sim.cluster.replica import SimReplica
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import simulate
from utils.sim.cluster.trace import Conversations, conversations

NUM_REPLICAS, SYSTEM_BLOCKS, COLUMNS = 4, 3, 24
LOADS = {"light load": 4.0, "fair load": 16.0, "heavy load": 60.0}  # requests per second
CACHES = {"48 blocks": 48, "24 blocks": 24, "96 blocks": 96}
TENANTS = "ABCD"


@dataclass(frozen=True)
class Snapshot:
    """The cluster just after a request was given to a replica.

    Attributes:
        number: of the request.
        chosen: index of its replica.
        num_found: leading blocks of it that the replica held.
        held: the blocks that each replica holds now.
        unfinished: requests at each replica.
        waiting_tokens: prompt tokens to be computed at each.
    """

    number: int
    chosen: int
    num_found: int
    held: list[list[int]]
    unfinished: list[int]
    waiting_tokens: list[int]


@dataclass(frozen=True)
class Replay:
    """One policy on one trace: a snapshot per request, and its figures at the end."""

    trace: Conversations
    num_blocks: int  # of each replica's cache
    names: list[list[int]]
    snapshots: list[Snapshot]
    figures: dict[str, float]


@cache
def replays(rate: float, num_blocks: int, num_requests: int = 120) -> dict[str, Replay]:
    """Every policy on the same small trace of four tenants; name -> replay.

    Args:
        rate: requests per second.
        num_blocks: of each replica's cache.
        num_requests: length of the trace.
    """
    trace = conversations(
        num_requests,
        rate,
        seed=6,
        num_tenants=len(TENANTS),
        system_blocks=SYSTEM_BLOCKS,
        mean_prompt=3600,
        mean_output=60,
        cache_ratio=0.7,
        think_seconds=1.0,
    )
    config = ReplicaConfig(llama3_70b_on_a800(), num_blocks)
    names = [row[-1] for row in trace.rows()]
    found = {}
    for name, make in every_policy(NUM_REPLICAS, num_blocks, trace.block_size).items():
        snapshots: list[Snapshot] = []

        def watch(
            number: int,
            chosen: int,
            cached: int,
            replicas: Sequence[SimReplica],
            snapshots: list[Snapshot] = snapshots,
        ) -> None:
            held = [sorted(cast(Iterable[int], r.cache), key=_place) for r in replicas]
            snapshots.append(
                Snapshot(
                    number,
                    chosen,
                    -(-cached // trace.block_size),
                    held,
                    [r.num_running + r.num_waiting for r in replicas],
                    [r.waiting_tokens for r in replicas],
                )
            )

        result = simulate(trace, make(), NUM_REPLICAS, config, watch=watch)
        found[name] = Replay(trace, num_blocks, names, snapshots, summary(result))
    return found


def _place(name: int) -> tuple[int, int]:
    """System prompts first, from the largest tenant's on, then the conversations as they began."""
    return (0, (-name - 1) // SYSTEM_BLOCKS * 100 + name % SYSTEM_BLOCKS) if name < 0 else (1, name)
