"""Bytes and bubbles by formula, against rings and pipelines that are played through."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.distributed.layouts import Layout, Rank
from utils.distributed.shapes import SHAPES
from utils.distributed.traffic import (
    batches_in_flight,
    bubble,
    bytes_by_operation,
    micro_batch_steps,
    pipeline_schedule,
    ring_all_reduce_bytes,
    step_traffic,
)


def played_ring(numel: int, world_size: int) -> list[int]:
    """Numbers that each rank sends: chunk `c` starts at rank `c + 1`, and goes round twice.

    Once it is added up, and ends at rank `c`; from there it is copied to all others.
    """
    sent = [0] * world_size
    owner = [[i % world_size for i in range(numel)]]  # any equal dealing has the same sizes
    sizes = [owner[0].count(chunk) for chunk in range(world_size)]
    for chunk, size in enumerate(sizes):
        for step in range(world_size - 1):
            sent[(chunk + 1 + step) % world_size] += size  # towards its owner
            sent[(chunk + step) % world_size] += size  # and from there to all
    return sent


@given(st.integers(0, 200), st.integers(1, 9))
def test_ring(numel: int, world_size: int) -> None:
    formula = [ring_all_reduce_bytes(numel, 4, world_size, rank) for rank in range(world_size)]
    assert formula == [4 * numbers for numbers in played_ring(numel, world_size)]
    if numel % world_size == 0:
        assert set(formula) == {2 * (world_size - 1) * numel * 4 // world_size}


def test_a_dense_model() -> None:
    """SmolLM2 in TP=3, by hand: 61 sums of 576 numbers a token, of which a rank sends 4/3."""
    shape, layout = SHAPES["SmolLM2-135M"], Layout(3)
    sent = bytes_by_operation(step_traffic(Rank(shape, layout, tp=1), tokens=10, sampled=2))
    assert sent == {
        ("tp", "all_reduce"): 61 * 10 * 576 * 2 * 4 // 3,
        ("tp", "gather"): 2 * 49152 // 3 * 2,
    }
    first = bytes_by_operation(step_traffic(Rank(shape, layout, tp=0), 10, 2))
    assert ("tp", "gather") not in first  # it gets the scores


def test_a_pipeline() -> None:
    shape, layout = SHAPES["SmolLM2-135M"], Layout(1, 3)
    for stage in range(3):
        sent = bytes_by_operation(step_traffic(Rank(shape, layout, pp=stage), 10, 2))
        assert sent == ({("pp", "send"): 10 * 576 * 2} if stage < 2 else {})


def test_replicas_send_nothing_unless_they_share_experts() -> None:
    assert step_traffic(Rank(SHAPES["Llama-3-8B"], Layout(1, 1, 8)), 10, 1) == []
    mixtral = SHAPES["Mixtral-8x7B"]
    sent = bytes_by_operation(step_traffic(Rank(mixtral, Layout(1, 1, 4, True)), 10, 1))
    # Dispatch and combine in 32 layers: 2 copies of each token, 3 of 4 go elsewhere.
    assert sent == {("ep", "all_to_all"): 2 * 32 * 10 * 4096 * 2 * 2 * 3 / 4}
    sliced = bytes_by_operation(step_traffic(Rank(mixtral, Layout(1, 1, 4)), 10, 1))
    assert sliced == {
        ("ep", "all_gather"): 32 * 3 * 10 * 4096 * 2,
        ("ep", "reduce_scatter"): 32 * 3 * 10 * 4096 * 2,
    }


def test_experts_within_one_replica_cost_what_slices_cost() -> None:
    """Every TP rank has every token anyway, so only the results are added up."""
    mixtral = SHAPES["Mixtral-8x7B"]
    whole, sliced = (
        step_traffic(Rank(mixtral, Layout(4, 1, 1, expert_parallel)), 10, 1)
        for expert_parallel in (True, False)
    )
    assert whole == sliced


@given(st.integers(1, 9), st.integers(1, 40))
def test_bubble_is_that_of_the_schedule(num_stages: int, num_micro_batches: int) -> None:
    runs = pipeline_schedule(num_stages, num_micro_batches)
    end = max(run.end for run in runs)
    idle = 1 - sum(run.end - run.begin for run in runs) / (end * num_stages)
    assert bubble(num_stages, num_micro_batches) == pytest.approx(idle)
    begins = {(run.stage, run.micro_batch): run.begin for run in runs}
    ends = {(run.stage, run.micro_batch): run.end for run in runs}
    for (stage, i), begin in begins.items():
        assert begin >= ends.get((stage - 1, i), 0)  # what it needs is there
        assert begin >= ends.get((stage, i - 1), 0)  # and it is free


@given(st.integers(1, 5), st.integers(1, 6))
def test_batches_in_flight_wait_for_their_own_tokens_alone(num_stages: int, steps: int) -> None:
    runs = batches_in_flight(num_stages, steps)
    assert len(runs) == num_stages * num_stages * steps
    assert len({(run.stage, run.begin) for run in runs}) == len(runs)  # one at a time in a stage
    for batch in range(num_stages):
        own = [run for run in runs if run.micro_batch == batch]
        assert all(b.begin >= a.end for a, b in pairwise(own))  # stage by stage, step by step
    end = max(run.end for run in runs)
    assert end == steps * num_stages + num_stages - 1  # one bubble, however many steps


def test_micro_batches_pay_the_bubble_in_each_step() -> None:
    runs = micro_batch_steps(2, 2, 4)
    end = max(run.end for run in runs)
    assert end == 12 and max(run.end for run in batches_in_flight(2, 4)) == 9
    assert 1 - len(runs) / (end * 2) == pytest.approx(bubble(2, 2))


def test_bad_pipelines() -> None:
    for stages, micro_batches in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            bubble(stages, micro_batches)
