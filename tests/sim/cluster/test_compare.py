"""Every policy on one trace: new ones each time, and the figures that are shown of them."""

from __future__ import annotations

import numpy as np
import pytest

from utils.routing.policies import RoundRobin
from utils.sim.cluster.compare import (
    BY_SESSION,
    compare_policies,
    every_policy,
    over_seeds,
    spread,
    summary,
)
from utils.sim.cluster.cost import llama3_70b_on_a800
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import simulate
from utils.sim.cluster.trace import Conversations, conversations

CONFIG = ReplicaConfig(llama3_70b_on_a800(), 300)


def test_every_policy_is_new_each_time() -> None:
    policies = every_policy(2, 10, 512)
    assert len(policies) == 12
    assert all(make() is not make() for make in policies.values())
    assert isinstance(policies["round robin"](), RoundRobin)


def test_the_figures_are_those_of_a_run() -> None:
    trace = conversations(400, 4.0, seed=2, num_tenants=4, system_blocks=2)
    rows = compare_policies(trace, 3, CONFIG)
    assert list(rows) == list(every_policy(3, 300, 512))
    result = simulate(trace, RoundRobin(), 3, CONFIG)
    assert rows["round robin"] == summary(result)
    ttft = np.sort(result.first_token - result.arrivals)
    assert rows["round robin"]["ttft_p50"] == pytest.approx(np.median(ttft))
    assert rows["round robin"]["imbalance"] == result.busy.max() / result.busy.mean()
    assert rows["longest prefix"]["imbalance"] == pytest.approx(3)
    unknown = compare_policies(trace, 3, CONFIG, without_sessions=True)
    assert set(rows) - set(unknown) == set(BY_SESSION)


def test_every_policy_gets_the_same_traces() -> None:
    def make_trace(seed: int) -> Conversations:
        return conversations(200, 4.0, seed)

    rows = over_seeds(make_trace, {"one": RoundRobin, "other": RoundRobin}, 2, CONFIG, range(3))
    assert rows["one"] == rows["other"] and len(rows["one"]) == 3
    assert rows["one"][2] == summary(simulate(make_trace(2), RoundRobin(), 2, CONFIG))
    assert rows["one"][0] != rows["one"][1]


def test_a_spread_in_words() -> None:
    assert spread([4.61, 3.92, 4.5]) == "4.5 (3.9 to 4.6)"
    assert spread([46, 41], 0) == "44 (41 to 46)"
