"""Generated conversations against the published statistics, and against their own definition."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from utils.sim.cluster.trace import MEAN_OUTPUT, MEAN_PROMPT, conversations


def infinite_cache_ratio(trace) -> float:  # type: ignore[no-untyped-def]
    seen: set[int] = set()
    found = 0
    for *_, names in trace.rows():
        found += sum(name in seen for name in names)
        seen |= set(names)
    return found * trace.block_size / trace.num_tokens.sum()


def test_means_and_cache_ratio_are_table_2s() -> None:
    trace = conversations(40_000, 3.4, seed=2)
    assert trace.num_tokens.mean() == pytest.approx(MEAN_PROMPT, rel=0.03)
    assert trace.output_lens.mean() == pytest.approx(MEAN_OUTPUT, rel=0.02)
    assert infinite_cache_ratio(trace) == pytest.approx(0.40, abs=0.02)
    assert len(trace) / trace.arrivals[-1] == pytest.approx(3.4, rel=0.05)
    assert (np.diff(trace.arrivals) >= 0).all() and trace.arrivals[0] == 0


@pytest.mark.parametrize("ratio", [0.2, 0.66])
def test_other_ratios_with_many_tenants(ratio: float) -> None:
    trace = conversations(20_000, 10.0, seed=4, num_tenants=20, system_blocks=3, cache_ratio=ratio)
    assert infinite_cache_ratio(trace) == pytest.approx(ratio, abs=0.03)
    shares = Counter(trace.tenants.tolist())
    assert shares[0] / shares[9] == pytest.approx(10, rel=0.3)


def test_a_prompt_repeats_what_was_said_before() -> None:
    trace = conversations(3000, 10.0, seed=1, num_tenants=3, system_blocks=2, cache_ratio=0.5)
    last: dict[object, tuple[list[int], int, int]] = {}
    owner: dict[int, object] = {}
    turns = 0
    for _, _, session, num_tokens, output_len, names in trace.rows():
        assert len(names) == num_tokens // 512 and len(set(names)) == len(names)
        for name in names[2:]:  # behind the system prompt, no other session has its blocks
            assert owner.setdefault(name, session) == session
        assert all(name < 0 for name in names[:2])
        if session in last:
            before, tokens, output = last[session]
            assert names[: len(before)] == before and num_tokens > tokens + output
            turns += 1
        last[session] = names, num_tokens, output_len
    assert turns > 500


def test_equal_seeds_equal_traces() -> None:
    one, two, other = (conversations(500, 5.0, seed) for seed in (7, 7, 8))
    assert list(one.rows()) == list(two.rows()) != list(other.rows())


@pytest.mark.parametrize(
    "bad",
    [
        {"num_requests": 0},
        {"rate": 0.0},
        {"cache_ratio": 1.0},
        {"mean_prompt": 600, "cache_ratio": 0.8},
    ],
)
def test_bad_arguments_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        conversations(**({"num_requests": 10, "rate": 1.0} | bad))  # type: ignore[arg-type]
