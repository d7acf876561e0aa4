"""One trace through every policy, and the figures that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from utils.routing.policies import (
    ConsistentHash,
    LeastLoaded,
    PowerOfTwo,
    Random,
    RoundRobin,
    RoutingPolicy,
    Session,
)
from utils.routing.prefix_index import KVIndex, RoutingHistory
from utils.routing.prefix_policies import CacheAware, LongestPrefix, LongestPrefixAndLoad
from utils.routing.token_load import FewestWaitingTokens
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import ClusterResult, simulate
from utils.sim.cluster.trace import ClusterTrace

BY_SESSION = ("session", "consistent hash", "consistent hash, bounded")


def every_policy(
    num_replicas: int, num_blocks: int | None, block_size: int
) -> dict[str, Callable[[], RoutingPolicy]]:
    """Name -> what makes a new policy.

    Args:
        num_replicas: for those that keep an index.
        num_blocks: of a replica's cache: as many a history remembers; None: all.
        block_size: tokens in a block.
    """

    def history() -> RoutingHistory:
        return RoutingHistory(num_replicas, num_blocks)

    def truth() -> KVIndex:
        return KVIndex(num_replicas)

    return {
        "round robin": RoundRobin,
        "random": Random,
        "least loaded": LeastLoaded,
        "power of two": PowerOfTwo,
        "fewest waiting tokens": FewestWaitingTokens,
        "session": Session,
        "consistent hash": ConsistentHash,
        "consistent hash, bounded": lambda: ConsistentHash(bound=1.25),
        "longest prefix": lambda: LongestPrefix(truth()),
        "cache aware (history)": lambda: CacheAware(history(), balance_abs_threshold=8),
        "prefix + load (history)": lambda: LongestPrefixAndLoad(history(), block_size),
        "prefix + load (truth)": lambda: LongestPrefixAndLoad(truth(), block_size),
    }


def summary(result: ClusterResult) -> dict[str, float]:
    """Hit rate, p50 and p99 of TTFT in seconds, and the busiest replica over their mean."""
    return {
        "hit_rate": result.hit_rate,
        "ttft_p50": result.ttft_percentile(50),
        "ttft_p99": result.ttft_percentile(99),
        "imbalance": result.imbalance,
    }


def compare_policies(
    trace: ClusterTrace, num_replicas: int, config: ReplicaConfig, *, without_sessions: bool = False
) -> dict[str, dict[str, float]]:
    """`summary` of every policy on one trace; or of those that need not know who asks."""
    policies = every_policy(num_replicas, config.num_blocks, config.block_size)
    if without_sessions:
        for name in BY_SESSION:
            del policies[name]
    return {
        name: summary(simulate(trace, make(), num_replicas, config))
        for name, make in policies.items()
    }


def over_seeds(
    make_trace: Callable[[int], ClusterTrace],
    policies: Mapping[str, Callable[[], RoutingPolicy]],
    num_replicas: int,
    config: ReplicaConfig,
    seeds: Iterable[int] = range(5),
) -> dict[str, list[dict[str, float]]]:
    """`summary` of each policy on traces that differ only in their seed, one entry per seed.

    Args:
        make_trace: seed -> trace. Every policy gets the same traces.
        policies: name -> what makes a new policy.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in policies}
    for seed in seeds:
        trace = make_trace(seed)
        for name, make in policies.items():
            found[name].append(summary(simulate(trace, make(), num_replicas, config)))
    return found


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, with the smallest and the largest value: "4.5 (3.9 to 4.6)"."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
