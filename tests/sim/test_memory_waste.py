"""The fast simulator against the slot-by-slot one, and both against the published figure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from utils.sim.memory import GIB, MODEL_SHAPES, kv_bytes_per_token
from utils.sim.memory_map import NOBODY, USED, as_text, map_memory
from utils.sim.memory_policies import STATES, Contiguous, MemoryUsage, Paged, Policy
from utils.sim.memory_waste import simulate
from utils.sim.traces import sharegpt_like_lengths

NUM_SLOTS = int(12 * GIB // kv_bytes_per_token(MODEL_SHAPES["OPT-13B"]))  # table 1 of the paper


def policies(max_model_len: int) -> st.SearchStrategy[Policy]:
    contiguous = st.builds(
        Contiguous,
        st.sampled_from(["max", "pow2", "oracle"]),
        st.sampled_from(["first_fit", "buddy"]),
        st.just(max_model_len),
    )
    return contiguous | st.builds(Paged, st.sampled_from([1, 2, 3, 4, 8]))


@st.composite
def small_runs(draw: st.DrawFn) -> tuple[Policy, list[int], list[int], int, list[int]]:
    """A policy, lengths, a memory in which each request fits alone, and arrivals."""
    max_model_len = draw(st.integers(1, 16))
    num_slots = draw(st.integers(18, 40))  # 16 tokens fit, in blocks of 3 as well
    finals = draw(st.lists(st.integers(1, max_model_len), min_size=1, max_size=10))
    outputs = [draw(st.integers(1, final)) for final in finals]
    prompts = [final + 1 - output for final, output in zip(finals, outputs, strict=True)]
    arrivals = sorted(draw(st.integers(0, 30)) for _ in finals)
    return draw(policies(max_model_len)), prompts, outputs, num_slots, arrivals


@settings(max_examples=300)
@given(run=small_runs(), sample_every=st.sampled_from([1, 1, 4]))
# Two requests are preempted in one step; the earlier of them must come back first.
@example(run=(Paged(1), [1] * 10, [12, 11, 3, 9, 8, 7, 6, 2, 4, 10], 16, [0] * 10), sample_every=1)
def test_equals_the_slot_by_slot_simulation(run: tuple, sample_every: int) -> None:
    policy, prompts, outputs, num_slots, arrivals = run
    fast = simulate(
        policy, prompts, outputs, num_slots, arrival_steps=arrivals, sample_every=sample_every
    )
    slow = map_memory(policy, prompts, outputs, num_slots, arrival_steps=arrivals)
    for state in STATES:
        assert getattr(fast, state).tolist() == slow.count(state)[::sample_every].tolist(), state
    assert fast.num_running.tolist() == slow.num_running[::sample_every].tolist()
    assert fast.steps.tolist() == list(range(0, len(slow.states), sample_every))
    assert (fast.num_steps, fast.num_preemptions) == (len(slow.states), slow.num_preemptions)
    # What a request held before it was out of memory without having come to its end.
    discarded = 0
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        held = ((slow.owners == i) & (slow.states == USED)).sum(axis=1)
        discarded += held[:-1][(held[1:] == 0) & (held[:-1] < prompt + output - 1)].sum()
    assert fast.num_discarded_tokens == discarded


@settings(max_examples=150)
@given(run=small_runs())
def test_every_token_gets_its_slot(run: tuple) -> None:
    """Properties that any correct engine has, checked on the slots themselves."""
    policy, prompts, outputs, num_slots, arrivals = run
    result = map_memory(policy, prompts, outputs, num_slots, arrival_steps=arrivals)
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        held = ((result.owners == i) & (result.states == USED)).sum(axis=1)
        present = held[held > 0]
        assert np.flatnonzero(held)[0] >= arrivals[i]
        assert present[0] == prompt and present[-1] == prompt + output - 1
        assert (np.diff(present) == 1).all()  # also across a preemption: nothing written is lost
        assert len(present) == output
    assert (result.owners[result.states == USED] != NOBODY).all()
    usage = simulate(policy, prompts, outputs, num_slots, arrival_steps=arrivals)
    assert (sum(getattr(usage, state) for state in STATES) == num_slots).all()
    assert all((getattr(usage, state) >= 0).all() for state in STATES)


def test_a_map_as_text() -> None:
    exactly = map_memory(Contiguous("oracle", "first_fit"), [3, 1, 3], [1, 3, 2], 8)
    assert as_text(exactly, "ABC") == ["AAABbb..", "...BBb..", "...BBB..", "CCCc....", "CCCC...."]
    maximum = map_memory(Contiguous("max", "first_fit", 4), [3, 1], [1, 3], 8)
    assert as_text(maximum, "ab")[0] == "AAA-Bbb-"


@pytest.fixture(scope="module")
def usages() -> dict[str, MemoryUsage]:
    """The experiment of the paper's figure 2: more requests than OPT-13B on 40 GB can serve."""
    prompts, outputs = sharegpt_like_lengths(4000, seed=0)
    table = {
        "max": Contiguous("max"),
        "pow2": Contiguous("pow2"),
        "oracle": Contiguous("oracle"),
        "oracle, first fit": Contiguous("oracle", "first_fit"),
        "paged": Paged(16),
    }
    return {
        name: simulate(policy, prompts, outputs, NUM_SLOTS, sample_every=20)
        for name, policy in table.items()
    }


# Figure 2: percent of KV memory that is used, reserved, internal and external fragmentation.
# Figure 13a: mean number of batched requests.
PUBLISHED = {
    "max": (20.4, 13.3, 57.3, 8.9, 7.00),
    "pow2": (26.8, 17.9, 13.6, 41.6, 9.81),
    "oracle": (38.2, 25.2, 0.0, 36.6, 13.62),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_waste_appears(name: str, usages: dict[str, MemoryUsage]) -> None:
    usage = usages[name]
    first, last = 0.05 * usage.num_steps, 0.8 * usage.num_steps  # without beginning and end
    shares = usage.shares(first, last)
    for state, published in zip(STATES, PUBLISHED[name][:4], strict=False):
        assert 100 * shares[state] == pytest.approx(published, abs=3), state
    assert usage.mean_batch(first, last) == pytest.approx(PUBLISHED[name][4], rel=0.04)


def test_paged_wastes_less_than_4_percent(usages: dict[str, MemoryUsage]) -> None:
    usage = usages["paged"]
    shares = usage.shares(0.05 * usage.num_steps, 0.8 * usage.num_steps)
    owned = shares["used"] + shares["reserved"] + shares["internal"]
    assert 1 - shares["used"] / owned < 0.04
    assert shares["used"] == pytest.approx(0.963, abs=0.02)  # figure 2
    assert shares["external"] == 0


def test_first_fit_also_loses_memory_between_chunks(usages: dict[str, MemoryUsage]) -> None:
    external = usages["oracle, first fit"].external
    assert external.mean() > 0.1 * NUM_SLOTS
    assert external.mean() < usages["oracle"].external.mean()


def test_arrivals_that_leave_memory_idle_are_free_not_wasted() -> None:
    usage = simulate(Contiguous("oracle"), [4], [3], 16, arrival_steps=[2])
    assert usage.steps.tolist() == [0, 1, 2, 3, 4]
    assert usage.used.tolist() == [0, 0, 4, 5, 6]
    assert usage.reserved.tolist() == [0, 0, 2, 1, 0]
    assert usage.external.tolist() == [0, 0, 2, 2, 2]  # 6 slots were asked for, the chunk has 8
    assert usage.free.tolist() == [16, 16, 8, 8, 8]


def test_means_between_two_steps() -> None:
    usage = simulate(Contiguous("max", max_model_len=8), [4, 4], [4, 1], 16)
    assert usage.num_running.tolist() == [2, 1, 1, 1]
    assert usage.mean_batch() == 5 / 4 and usage.mean_batch(1, 2) == 1
    usage = simulate(Contiguous("max", max_model_len=8), [4], [4], 8)
    assert usage.used.tolist() == [4, 5, 6, 7]
    assert usage.shares()["used"] == pytest.approx(22 / 32)
    assert usage.shares(2, 2) == {
        "used": 6 / 8,
        "reserved": 1 / 8,
        "internal": 1 / 8,
        "external": 0,
        "free": 0,
    }
    with pytest.raises(ValueError, match="no sample between steps 9 and inf"):
        usage.shares(9)


@pytest.mark.parametrize(
    ("policy", "lengths", "arrivals", "message"),
    [
        (Paged(), ([1, 2], [1]), None, "same length, not 2, 1 and 2"),
        (Paged(), ([0], [1]), None, "request 0: lengths must be at least 1, not 0 and 1"),
        (Paged(), ([1, 1], [1, 1]), [3, 2], "must not descend"),
        (Paged(), ([33], [1]), None, "request 0 needs 33 slots"),
        (Paged(20), ([21], [1]), None, "gives at most 20"),
        (Contiguous("oracle", max_model_len=8), ([5], [5]), None, "grows to 9 tokens, more than"),
        (Contiguous("max"), ([5], [5]), None, "request 0 needs 2048 slots"),
        (Contiguous("oracle"), ([9], [9]), None, "request 0 needs 32 slots"),
    ],
)
def test_bad_arguments(
    policy: Policy, lengths: tuple[list[int], list[int]], arrivals: list[int] | None, message: str
) -> None:
    for run in (simulate, map_memory):
        with pytest.raises(ValueError, match=message):
            run(policy, *lengths, num_slots=31, arrival_steps=arrivals)


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="sample_every must be at least 1, not 0"):
        simulate(Paged(), [1], [1], 16, sample_every=0)
    with pytest.raises(ValueError, match="state must be one of"):
        map_memory(Paged(), [1], [1], 16).count("wasted")
    with pytest.raises(ValueError, match='reserve must be "max", "pow2" or "oracle", not'):
        Contiguous("half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='placement must be "first_fit" or "buddy", not'):
        Contiguous("max", "best_fit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_model_len must be at least 1, not 0"):
        Contiguous("max", max_model_len=0)
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        Paged(0)
