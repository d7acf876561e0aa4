"""The oracles of lab 17 against the course's own policies.

Its index and its history are right answers in the bug zoo, and so held against those of the lab.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.checks import lab_17
from utils.checks.kit.contracts import Choices
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_17 import answers, real_servers, stories
from utils.hub import load_tokenizer, resolve_model
from utils.routing.policies import (
    ConsistentHash,
    ReplicaLoad,
    RoundRobin,
    RoutingRequest,
    stable_hash,
)
from utils.routing.prefix_index import KVIndex
from utils.routing.prefix_policies import LongestPrefixAndLoad
from utils.routing.router.block_names import block_names

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


@pytest.mark.parametrize(("found", "words"), [(50, "less in their caches"), (70, "")])
def test_the_servers_counters_decide(found: int, words: str) -> None:
    run = real_servers.RunReport([3, 3], [50, 50], [found, 0], 1.0)
    with pytest.raises(Mismatch, match=words) if words else contextlib.nullcontext():
        real_servers.judge(run, 0.71)


def test_a_router_that_listens_is_predicted_to_find_the_most() -> None:
    tokenizer = load_tokenizer(resolve_model("bundled"))
    policies = RoundRobin(), real_servers.Remembering(), answers.MyRouter(2, 16)
    known, asked = real_servers.prompts_of(seed=1)
    plain, remembers, listens = (
        real_servers.predicted(policy, known, [0, 1, 1, 0], asked, tokenizer) for policy in policies
    )
    assert plain < remembers - real_servers.TOLERANCE
    assert remembers < listens - real_servers.TOLERANCE


def test_names_of_blocks_are_those_of_the_prompt() -> None:
    empty = 0
    for seed in range(100):
        event, known = lab_17.draw_event(Choices(random.Random(seed))).args
        found = [*lab_17.chained(event, known).values()]
        empty += not found
        assert not found or any(
            found == names[i : i + len(found)]
            for names in map(block_names, *zip(*stories.CUT_PROMPTS, strict=True))
            for i in range(len(names))
        )
    assert 10 < empty < 50
