"""The cluster against queueing theory, brute-force caches, and itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from utils.routing.policies import (
    LeastLoaded,
    PowerOfTwo,
    Random,
    Replica,
    RoundRobin,
    RoutingPolicy,
    RoutingRequest,
)
from utils.routing.prefix_index import KVIndex, RoutingHistory
from utils.routing.prefix_policies import LongestPrefix, LongestPrefixAndLoad
from utils.sim.cluster.cost import CostModel, llama3_70b_on_a800
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import ClusterResult, simulate
from utils.sim.cluster.trace import Conversations, Row, conversations


@dataclass
class Unrelated:
    """Requests that share nothing."""

    arrivals: np.ndarray
    num_tokens: np.ndarray
    block_size: int = 1

    def __post_init__(self) -> None:
        self.output_lens = np.ones_like(self.num_tokens)

    def __len__(self) -> int:
        return len(self.arrivals)

    def rows(self):  # type: ignore[no-untyped-def]
        for number, (now, tokens) in enumerate(
            zip(self.arrivals.tolist(), self.num_tokens.tolist(), strict=True)
        ):
            row: Row = (number, now, number, tokens, 1, [])
            yield row


# One prompt at a time, in order of arrival, and work in proportion to its tokens.
QUEUE = ReplicaConfig(CostModel(0.0, 0.001), None, 1, 10**9, 1)


def queueing(policy: RoutingPolicy, num_replicas: int, rho: float, count: int) -> ClusterResult:
    """Poisson arrivals, exponential services of 1 s on average (a thousand tokens or so)."""
    rng = np.random.default_rng(5)
    arrivals = rng.exponential(1 / (rho * num_replicas), count).cumsum()
    tokens = np.ceil(rng.exponential(1000, count)).astype(int)
    return simulate(Unrelated(arrivals, tokens), policy, num_replicas, QUEUE)


@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_one_server_is_m_m_1(rho: float) -> None:
    """The mean time in the system is 1/(mu - lambda), and the share who do not wait is 1 - rho."""
    result = queueing(RoundRobin(), 1, rho, 60_000)
    assert result.ttft.mean() == pytest.approx(1 / (1 - rho), rel=0.06)
    assert result.busy[0] / result.finished.max() == pytest.approx(rho, rel=0.03)
    assert np.percentile(result.ttft, 90) == pytest.approx(np.log(10) / (1 - rho), rel=0.08)


def test_power_of_two_is_mitzenmachers() -> None:
    """With many servers the mean time is the sum of rho^(2^i - 2) over i >= 1; 1/(1 - rho) at
    random."""
    rho = 0.8
    theory = sum(rho ** (2.0**i - 2) for i in range(1, 9))
    assert queueing(PowerOfTwo(), 100, rho, 60_000).ttft.mean() == pytest.approx(theory, rel=0.06)
    assert queueing(Random(), 60, rho, 50_000).ttft.mean() == pytest.approx(5, rel=0.1)


def test_old_reports_stampede_and_two_choices_do_not() -> None:
    """Everybody runs to the one that looked idle, unless the router counts what it sent."""
    rng = np.random.default_rng(5)
    trace = Unrelated(rng.exponential(1 / 24, 5000).cumsum(), np.full(5000, 1000))

    class Forgetful(LeastLoaded):
        def choose(self, request, replicas):  # type: ignore[no-untyped-def]
            frozen.setdefault(
                int(trace.arrivals[request.request_id] / 5),
                [replica.num_running + replica.num_waiting for replica in replicas],
            )
            return int(np.argmin([*frozen.values()][-1]))

    frozen: dict[int, list[int]] = {}
    old = simulate(trace, Forgetful(), 32, QUEUE)
    counted = simulate(trace, LeastLoaded(), 32, QUEUE, report_seconds=5.0)
    assert np.median(old.ttft) > 10 * np.median(counted.ttft)


@pytest.fixture(scope="module")
def trace() -> Conversations:
    return conversations(3000, 6.0, seed=3, num_tenants=5, system_blocks=4, cache_ratio=0.6)


CONFIG = ReplicaConfig(CostModel(0.01, 5e-5, 1e-9, 1e-8), 600)


def test_round_robins_hits_are_those_of_sets(trace: Conversations) -> None:
    """Caches without limit: a set of names per replica, and requests in turns."""
    held: list[set[int]] = [set() for _ in range(4)]
    expected = []
    for number, _, _, num_tokens, _, names in trace.rows():
        here = held[number % 4]
        run = next((i for i, name in enumerate(names) if name not in here), len(names))
        expected.append(min(512 * run, num_tokens - 1))
        here |= set(names)
    result = simulate(trace, RoundRobin(), 4, ReplicaConfig(CONFIG.cost, None))
    assert result.num_cached_tokens.tolist() == expected
    assert result.hit_rate == sum(expected) / trace.num_tokens.sum()


@pytest.mark.parametrize(
    "make",
    [
        LeastLoaded,
        lambda: LongestPrefix(KVIndex(4)),
        lambda: LongestPrefixAndLoad(RoutingHistory(4, 600), 512),
    ],
)
def test_nothing_is_lost_and_the_same_happens_again(trace: Conversations, make: object) -> None:
    one, two = (simulate(trace, make(), 4, CONFIG) for _ in range(2))  # type: ignore[operator]
    for name in ("chosen", "num_cached_tokens", "first_token", "finished", "busy", "samples"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.arrivals < one.first_token).all() and (one.first_token < one.finished).all()
    assert (one.num_cached_tokens < one.num_tokens).all()
    assert set(one.chosen) <= {0, 1, 2, 3}


def test_events_keep_the_truth_true(trace: Conversations) -> None:
    """After the run, the index holds what the caches hold: never more than their room."""
    index = KVIndex(4)
    result = simulate(trace, LongestPrefixAndLoad(index, 512), 4, CONFIG)
    assert 600 < len(index) <= 4 * 600
    # What it finds for the latest prompts is what the chosen replica had found or now holds.
    *_, (number, _, _, _, _, names) = trace.rows()
    assert index.matches(names)[result.chosen[number]] == len(names)


def test_locality_beats_turns_and_the_longest_prefix_alone_stampedes(trace: Conversations) -> None:
    turns = simulate(trace, RoundRobin(), 4, CONFIG)
    local = simulate(trace, LongestPrefixAndLoad(KVIndex(4), 512), 4, CONFIG)
    stampede = simulate(trace, LongestPrefix(KVIndex(4)), 4, CONFIG)
    assert local.hit_rate > turns.hit_rate + 0.05
    assert local.ttft_percentile(99) < turns.ttft_percentile(99)
    assert stampede.imbalance > 2 > local.imbalance


def test_turning_away_keeps_the_queue_short() -> None:
    trace = conversations(2000, 50.0, seed=1)
    config = ReplicaConfig(CONFIG.cost, None)
    all_taken = simulate(trace, LeastLoaded(), 2, config, sample_seconds=1.0)
    bounded = simulate(trace, LeastLoaded(), 2, config, max_waiting=4, sample_seconds=1.0)
    assert all_taken.samples.max() > 50 and (all_taken.chosen >= 0).all()
    assert bounded.samples.max() <= 4
    assert (bounded.chosen == -1).sum() == np.isnan(bounded.first_token).sum() > 0
    assert bounded.goodput(5.0) > all_taken.goodput(5.0)
    assert len(bounded.ttft) == (bounded.chosen >= 0).sum()


def test_bad_arguments_are_refused(trace: Conversations) -> None:
    with pytest.raises(ValueError, match="num_replicas must be at least 1"):
        simulate(trace, RoundRobin(), 0, CONFIG)
    with pytest.raises(ValueError, match="ReplicaConfig\\(block_size=512\\)"):
        simulate(trace, RoundRobin(), 1, ReplicaConfig(CONFIG.cost, None, block_size=16))


CLUSTER = ReplicaConfig(llama3_70b_on_a800(), 400)


@pytest.mark.parametrize("whole", [False, True])
def test_a_routers_own_books_count_whole_prompts_until_their_first_token(whole: bool) -> None:
    trace = conversations(300, 12.0, seed=3, num_tenants=3)
    seen: list[tuple[int, float, int]] = []

    class Recorder(RoundRobin):
        def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
            chosen = super().pick(request, replicas)
            tokens = sum(replica.waiting_tokens for replica in replicas)
            seen.append((request.request_id, trace.arrivals[request.request_id], tokens))
            return chosen

    result = simulate(trace, Recorder(), 2, CLUSTER, whole_prompts=whole)
    for number, now, tokens in seen:
        before = slice(0, number)
        waiting = result.first_token[before] > now
        prompts = trace.num_tokens[before][waiting]
        left = prompts - result.num_cached_tokens[before][waiting]
        if whole:
            assert tokens == prompts.sum()
        else:
            assert tokens <= left.sum()  # long prompts are computed in part
    assert any(tokens for _, _, tokens in seen)


def test_books_and_reports_do_not_go_together() -> None:
    trace = conversations(10, 1.0)
    with pytest.raises(ValueError, match="cannot be combined"):
        simulate(trace, RoundRobin(), 2, CLUSTER, report_seconds=1.0, whole_prompts=True)


@dataclass
class Together(Unrelated):
    """The first prompt has blocks of its own, and all others have the same blocks."""

    def rows(self):  # type: ignore[no-untyped-def]
        for number, now, session, tokens, output, _ in super().rows():
            yield number, now, session, tokens, output, [(number > 0, i) for i in range(tokens)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("budget", [10**6, 800])
def test_blocks_count_when_they_arrive_or_after_their_prefill(late: bool, budget: int) -> None:
    """Behind another prompt come two equal ones together, one that waits, and one long after."""
    cost = CostModel(0.0, 0.001)
    config = ReplicaConfig(cost, None, 1, budget, 8, blocks_after_prefill=late)
    trace = Together(np.array([0.0, 0.1, 0.1, 1.5, 60.0]), np.full(5, 1000))
    index, told = KVIndex(2), []

    class Watched(RoundRobin):
        def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
            told.append(index.matches(request.block_hashes)[0])
            return 0

    policy = LongestPrefix(index)
    policy.pick = Watched().pick  # type: ignore[method-assign]
    result = simulate(trace, policy, 2, config)
    if not late:
        assert result.num_cached_tokens.tolist() == [0, 0, 999, 999, 999]
        assert told == [0, 0, 1000, 1000, 1000]
    else:
        # The second of the equal ones begins in a step that the first is still part of, so both
        # are computed. The next one begins after the first has ended, and finds everything.
        assert result.num_cached_tokens.tolist() == [0, 0, 0, 999, 999]
        assert told == [0, 0, 0, 0, 1000]


def test_late_blocks_lose_no_request_and_keep_the_truth(trace: Conversations) -> None:
    config = replace(CONFIG, blocks_after_prefill=True)
    index = KVIndex(4)
    late = simulate(trace, LongestPrefixAndLoad(index, 512), 4, config)
    soon = simulate(trace, LongestPrefixAndLoad(KVIndex(4), 512), 4, CONFIG)
    assert not np.isnan(late.finished).any() and 600 < len(index) <= 4 * 600
    assert 0 < late.hit_rate < soon.hit_rate
