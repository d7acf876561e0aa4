"""One simulated replica against a simulator that takes every step, and against queueing theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.sim.cluster.cost import CostModel
from utils.sim.cluster.replica import NEVER, SimReplica
from utils.sim.cluster.replica_config import ReplicaConfig

COST = CostModel(per_step=0.01, per_token=0.002, per_pair=0.0001, per_context_token=0.0003)
Arrival = tuple[float, int, int]  # seconds, prompt tokens, answer tokens


def step_by_step(arrivals: list[Arrival], config: ReplicaConfig) -> tuple[list[float], list[float]]:
    """First and last tokens; one loop per step, no heap, no runs of steps."""
    cost, now, done = config.cost, 0.0, [0] * len(arrivals)  # prompt tokens computed
    written, first = [0] * len(arrivals), [0.0] * len(arrivals)
    last = [0.0] * len(arrivals)
    while any(written[i] < row[2] for i, row in enumerate(arrivals)):
        here = [i for i, row in enumerate(arrivals) if row[0] <= now and written[i] < row[2]]
        if not here:
            now = min(row[0] for i, row in enumerate(arrivals) if written[i] < row[2])
            continue
        decoding = [i for i in here if written[i]]
        seconds = cost.per_step + len(decoding) * cost.per_token
        for i in decoding:
            seconds += (arrivals[i][1] + arrivals[i][2] // 2) * cost.per_context_token
        budget = config.max_num_batched_tokens - len(decoding)
        seats = config.max_num_seqs - len(decoding)
        grown = list(decoding)
        for i in here:
            if not written[i] and seats > 0 and budget > 0:
                new = min(budget, arrivals[i][1] - done[i])
                seconds += new * (cost.per_token + cost.per_pair * (done[i] + new / 2))
                done[i] += new
                budget -= new
                if done[i] == arrivals[i][1]:
                    seats -= 1
                    grown.append(i)
        now += seconds
        for i in grown:
            written[i] += 1
            if written[i] == 1:
                first[i] = now
            if written[i] == arrivals[i][2]:
                last[i] = now
    return first, last


# No two at the same moment, nor at the end of a step: who is first would be a matter of rounding.
moments = st.integers(0, 1000).map(lambda n: 0.00137123 * n + 0.0000777)
arrival = st.tuples(moments, st.integers(1, 40), st.integers(1, 12))


@settings(max_examples=200)
@given(
    st.lists(arrival, min_size=1, max_size=12, unique_by=lambda row: row[0]),
    st.integers(1, 4),
    st.integers(5, 30),
)
def test_runs_of_steps_are_steps(arrivals: list[Arrival], seats: int, budget: int) -> None:
    arrivals.sort()
    config = ReplicaConfig(COST, None, 16, budget, seats)
    nan = float("nan")
    first, last = [nan] * len(arrivals), [nan] * len(arrivals)
    replica = SimReplica(0, config, first, last)
    for number, (now, prompt, answer) in enumerate(arrivals):
        replica.advance(now)
        assert sorted(replica.unfinished()) == [i for i in range(number) if not last[i] <= now]
        replica.submit(now, number, [], prompt, answer)
        assert replica.num_waiting + replica.num_running == len(replica.unfinished())
    while replica.end != NEVER:
        replica.advance(replica.end)
    expected = step_by_step(arrivals, config)
    np.testing.assert_allclose([first, last], expected, rtol=1e-9, atol=1e-6)
    assert (replica.num_running, replica.num_waiting, replica.waiting_tokens) == (0, 0, 0)
    assert replica.unfinished() == []


def test_found_blocks_are_not_computed_and_one_token_always_is() -> None:
    nan = float("nan")
    first, last = [nan] * 2, [nan] * 2
    replica = SimReplica(0, ReplicaConfig(COST, 8, 16, 512), first, last)
    assert replica.submit(0.0, 0, ["a", "b"], 32, 1) == (0, [])
    replica.advance(10.0)
    assert first[0] == pytest.approx(COST.prefill_seconds(32))
    assert replica.submit(10.0, 1, ["a", "b"], 32, 1) == (31, [])
    replica.advance(20.0)
    assert first[1] == pytest.approx(10 + COST.prefill_seconds(32, 31))


@pytest.mark.parametrize(
    "bad",
    [{"block_size": 0}, {"max_num_seqs": 0}, {"max_num_seqs": 8, "max_num_batched_tokens": 8}],
)
def test_bad_replicas_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ReplicaConfig(COST, None, **bad)
