"""Rules over an index, against their definitions written out by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.routing.policies import ReplicaLoad, RoutingRequest, unfinished
from utils.routing.prefix_index import KVIndex, RoutingHistory
from utils.routing.prefix_policies import CacheAware, LongestPrefix, LongestPrefixAndLoad

PROMPT = list(range(10))
clusters = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 100), st.integers(0, 400)), min_size=1, max_size=6
)


def cluster(rows: list[tuple[int, int, int]]) -> tuple[KVIndex, list[ReplicaLoad]]:
    """Replicas of which each holds so many blocks of the prompt, with so much to do."""
    index = KVIndex(len(rows))
    for i, (held, _, _) in enumerate(rows):
        index.stored(i, PROMPT[:held])
    replicas = [ReplicaLoad(i, running, 0, tokens) for i, (_, running, tokens) in enumerate(rows)]
    return index, replicas


@given(clusters)
def test_longest_prefix(rows: list[tuple[int, int, int]]) -> None:
    index, replicas = cluster(rows)
    chosen = LongestPrefix(index).choose(RoutingRequest(0, PROMPT, 160), replicas)
    assert chosen == max(range(len(rows)), key=lambda i: rows[i][0])


@given(clusters, st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_soonest_first_token(rows: list[tuple[int, int, int]], weight: float) -> None:
    index, replicas = cluster(rows)
    policy = LongestPrefixAndLoad(index, 16, weight)
    chosen = policy.choose(RoutingRequest(0, PROMPT, 160), replicas)
    costs = [160 - 16 * held + weight * tokens for held, _, tokens in rows]
    assert costs[chosen] == min(costs)


@given(clusters)
def test_cache_aware(rows: list[tuple[int, int, int]]) -> None:
    index, replicas = cluster(rows)
    policy = CacheAware(index, 0.35, 20, 1.5)
    chosen = policy.choose(RoutingRequest(0, PROMPT, 160), replicas)
    loads = [running for _, running, _ in rows]
    longest = max(held for held, _, _ in rows)
    if (max(loads) - min(loads) > 20 and max(loads) > 1.5 * min(loads)) or longest < 4:
        assert unfinished(replicas[chosen]) == min(loads)
    else:
        assert rows[chosen][0] == longest
        assert loads[chosen] == min(
            load for (held, _, _), load in zip(rows, loads, strict=True) if held == longest
        )


def test_the_stampede() -> None:
    """All prompts begin with one system prompt: the longest prefix alone sends all to one."""
    sent = {}
    for policy in (LongestPrefix(RoutingHistory(4)), LongestPrefixAndLoad(RoutingHistory(4), 16)):
        replicas = [ReplicaLoad(i) for i in range(4)]
        for number in range(40):
            request = RoutingRequest(number, [0, 1000 + number], 32)
            chosen = replicas[policy.choose(request, replicas)]
            chosen.num_waiting += 1
            chosen.waiting_tokens += 16
        sent[type(policy)] = [replica.num_waiting for replica in replicas]
    assert sent[LongestPrefix] == [40, 0, 0, 0]
    assert min(sent[LongestPrefixAndLoad]) >= 9


def test_a_lost_replicas_cache_is_forgotten() -> None:
    policy = LongestPrefix(RoutingHistory(2))
    request = RoutingRequest(0, [1, 2, 3], 48)
    policy.choose(request, [ReplicaLoad(1)])
    assert policy.choose(request, [ReplicaLoad(0), ReplicaLoad(1)]) == 1
    policy.lost(1)
    assert policy.index.matches([1]) == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: CacheAware(KVIndex(1), cache_threshold=1.1),
        lambda: CacheAware(KVIndex(1), balance_rel_threshold=0.9),
        lambda: LongestPrefixAndLoad(KVIndex(1), 0),
        lambda: LongestPrefixAndLoad(KVIndex(1), 16, -1),
    ],
)
def test_bad_switches_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()  # type: ignore[operator]
