"""The oracles of lab 17 against the course's own policies.

Its index and its history are right answers in the bug zoo, and so held against those of the lab.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.checks import lab_17
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_17 import real_servers
from utils.routing.policies import ConsistentHash, ReplicaLoad, RoutingRequest, stable_hash
from utils.routing.prefix_index import KVIndex
from utils.routing.prefix_policies import LongestPrefixAndLoad

LOADS = st.dictionaries(st.integers(0, 4), st.integers(0, 5), min_size=1)


@given(LOADS, st.text(max_size=4), st.sampled_from([None, 1.25, 2.0]))
def test_the_ring_is_that_of_the_course(
    loads: dict[int, int], key: str, bound: float | None
) -> None:
    def place_of(text: str) -> int:
        replica, slash, point = text.partition("/")
        return stable_hash(f"replica {replica} point {point}" if slash else text)

    key = key.replace("/", "")
    replicas = [ReplicaLoad(i, loads[i]) for i in sorted(loads)]
    policy = ConsistentHash(bound=bound, num_points=20)
    chosen = policy.choose(RoutingRequest(0, session_id=key), replicas)
    assert lab_17.walk(key, loads, place_of, 20, bound) == chosen


@given(
    st.lists(st.sets(st.integers(0, 2)), max_size=6),
    st.lists(st.integers(0, 50), min_size=3, max_size=3),
    st.integers(1, 8),
    st.integers(0, 7),
)
def test_matches_and_the_choice_are_those_of_the_course(
    held: list[set[int]], waiting: list[int], block_size: int, rest: int
) -> None:
    index = KVIndex(3)
    for name, replicas in enumerate(held):
        for replica in replicas:
            index.stored(replica, [name])
    names = list(range(len(held)))
    found = lab_17.leading_blocks(dict(enumerate(held)), names, 3)
    assert found == index.matches(names)
    # One token more than the blocks: there the course's policy counts as the lab does.
    num_tokens = len(held) * block_size + 1 + rest
    chosen = lab_17.soonest(num_tokens, block_size, found, dict(enumerate(waiting)))
    policy = LongestPrefixAndLoad(index, block_size)
    loads = [ReplicaLoad(i, waiting_tokens=n) for i, n in enumerate(waiting)]
    best = policy.choose(RoutingRequest(0, names, num_tokens), loads)
    costs = [n - block_size * found[i] for i, n in enumerate(waiting)]
    assert costs[chosen] == costs[best] == min(costs)


class Forgetful:
    """It fails in front of servers."""

    def __init__(self, num_replicas: int, block_size: int) -> None:
        pass

    def heard(self, replica: int, event: Any) -> None:
        pass

    def choose(self, request: Any, replicas: Any) -> int:
        raise ZeroDivisionError("who knows")


def test_an_error_in_front_of_the_servers_is_told_as_it_was() -> None:
    learners = real_servers.Learners(Forgetful(2, 16))
    with pytest.raises(ZeroDivisionError):
        learners.choose(RoutingRequest(0), [])
    with pytest.raises(Mismatch, match="raised an error in front of the servers"):
        learners.complain()


@pytest.mark.parametrize(
    ("yours", "words"), [(0.3, "no more in the caches"), (0.5, "not as foretold"), (0.7, "")]
)
def test_the_servers_counters_decide(yours: float, words: str) -> None:
    def report(rate: float) -> real_servers.RunReport:
        return real_servers.RunReport([3, 3], [50, 50], [int(100 * rate), 0], 1.0)

    if not words:
        real_servers.judge(report(yours), report(0.4), 0.71)
        return
    with pytest.raises(Mismatch, match=words):
        real_servers.judge(report(yours), report(0.4), 0.7)
