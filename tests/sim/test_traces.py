"""Traces: published means, Poisson arrivals, equal seeds, and who shares what with whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from utils.sim.traces import (
    MAX_TOTAL_LEN,
    SYSTEM_PROMPT_LEN,
    TraceRequest,
    agents,
    alpaca_like,
    multi_turn_chat,
    shared_system_prompt,
    sharegpt_like,
    sharegpt_like_lengths,
)

GENERATORS = [sharegpt_like, alpaca_like, shared_system_prompt, multi_turn_chat, agents]
every_generator = pytest.mark.parametrize("generate", GENERATORS, ids=lambda g: g.__name__)
Generate = Callable[[int, float, int], list[TraceRequest]]


def common_prefix(a: TraceRequest, b: TraceRequest) -> int:
    """Segments that two prompts share from their beginning."""
    pairs = zip(a.segments, b.segments, strict=False)
    return next(
        (i for i, (x, y) in enumerate(pairs) if x != y), min(map(len, (a.segments, b.segments)))
    )


def test_published_means() -> None:
    """PagedAttention paper, figure 11; a million requests leave 0.2 % of sampling noise."""
    prompt_lens, output_lens = sharegpt_like_lengths(1_000_000, seed=0)
    assert prompt_lens.mean() == pytest.approx(161.31, rel=0.01)
    assert output_lens.mean() == pytest.approx(337.99, rel=0.01)
    trace = alpaca_like(50_000, rate=1, seed=0)
    assert np.mean([r.prompt_len for r in trace]) == pytest.approx(19.31, rel=0.02)
    assert np.mean([r.output_len for r in trace]) == pytest.approx(58.45, rel=0.02)


def test_spread_of_outputs_follows_from_figures_2_and_13() -> None:
    """Slots that figure 2 shows as reserved, over the batch sizes of figure 13a."""
    reserved, batch = np.array([0.133, 0.179, 0.252]), np.array([7.00, 9.81, 13.62])
    published = reserved * 15_700 / batch
    _, n = sharegpt_like_lengths(1_000_000, seed=1)
    assert (n**2).mean() / (2 * n.mean()) == pytest.approx(published.mean(), rel=0.03)


@every_generator
def test_arrivals_are_poisson(generate: Generate) -> None:
    times = np.array([r.arrival_time for r in generate(5000, 4.0, 7)])
    gaps = np.diff(times, prepend=0)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as in an exponential distribution


@every_generator
def test_seed_decides_everything(generate: Generate) -> None:
    assert generate(40, 2.0, 3) == generate(40, 2.0, 3)
    first, other = generate(40, 2.0, 3), generate(40, 2.0, 4)
    assert first[0].arrival_time != other[0].arrival_time
    assert first[0].output_len != other[0].output_len
    segments = [{pair for r in trace for pair in r.segments} for trace in (first, other)]
    assert segments[0].isdisjoint(segments[1])  # nor does a trace warm the cache for another


@every_generator
def test_requests_are_well_formed(generate: Generate) -> None:
    for num_requests in (1, 20, 2000):
        trace = generate(num_requests, 2.0, 0)
        assert [r.request_id for r in trace] == list(range(num_requests))
        assert all(n >= 1 for r in trace for _, n in r.segments)
        assert all(r.output_len >= 1 for r in trace)
        assert max(r.prompt_len + r.output_len for r in trace) <= MAX_TOTAL_LEN


def test_lengths_without_objects_are_those_of_the_trace() -> None:
    prompt_lens, output_lens = sharegpt_like_lengths(200, seed=5)
    trace = sharegpt_like(200, 3.0, seed=5)
    assert [r.prompt_len for r in trace] == prompt_lens.tolist()
    assert [r.output_len for r in trace] == output_lens.tolist()


def test_equal_segments_are_equal_text() -> None:
    a, b, *_ = shared_system_prompt(2, 1.0, 0)
    ids_a, ids_b = a.prompt_token_ids(1000), b.prompt_token_ids(1000)
    assert ids_a == a.prompt_token_ids(1000)
    assert len(ids_a) == a.prompt_len and set(ids_a) <= set(range(1000))
    assert ids_a[:SYSTEM_PROMPT_LEN] == ids_b[:SYSTEM_PROMPT_LEN]
    assert ids_a[SYSTEM_PROMPT_LEN:][:5] != ids_b[SYSTEM_PROMPT_LEN:][:5]
    longer = dataclasses.replace(a, segments=((a.segments[0][0], SYSTEM_PROMPT_LEN + 1),))
    assert longer.prompt_token_ids(1000)[:5] != ids_a[:5]


@pytest.mark.parametrize("generate", [sharegpt_like, alpaca_like])
def test_unrelated_requests_share_nothing(generate: Generate) -> None:
    segments = [pair for r in generate(500, 2.0, 0) for pair in r.segments]
    assert len(set(segments)) == len(segments)


def test_system_prompt_is_all_that_is_shared() -> None:
    trace = shared_system_prompt(300, 2.0, 0)
    assert {r.segments[0] for r in trace} == {trace[0].segments[0]}
    assert trace[0].segments[0][1] == SYSTEM_PROMPT_LEN
    assert len({r.segments[1] for r in trace}) == len(trace)


@pytest.mark.parametrize("num_requests", [20, 1000])
def test_a_turn_repeats_all_that_was_said(num_requests: int) -> None:
    trace = multi_turn_chat(num_requests, 2.0, 0)
    last_turn: dict[int, TraceRequest] = {}  # by the segment id of the conversation's first message
    follow_ups = 0
    for request in trace:
        before = last_turn.get(request.segments[0][0])
        if before is None:
            assert len(request.segments) == 1
        else:
            follow_ups += 1
            answer, _message = request.segments[len(before.segments) :]
            assert request.segments[: len(before.segments)] == before.segments
            assert answer[1] == before.output_len
            assert before.arrival_time < request.arrival_time
        last_turn[request.segments[0][0]] = request
    assert follow_ups > num_requests / 3


def test_agents_extend_an_earlier_call_and_branch() -> None:
    trace = agents(1000, 2.0, 0)
    assert len({r.segments[0] for r in trace}) == 1  # the instructions
    children: dict[tuple, int] = {}
    for number, request in enumerate(trace):
        if len(request.segments) == 2:
            continue  # the first call of a task
        *prompt, (_, answer_len), _tool = request.segments
        parent = next(r for r in trace[:number] if r.segments == tuple(prompt))
        assert answer_len == parent.output_len
        children[parent.segments] = children.get(parent.segments, 0) + 1
    assert max(children.values()) > 1  # branches
    assert sum(children.values()) > 500
    depths = [common_prefix(a, b) for a in trace[-40:] for b in trace[:-40]]
    assert min(depths) == 1 and max(depths) > 4


@every_generator
def test_bad_arguments(generate: Generate) -> None:
    with pytest.raises(ValueError, match="num_requests must be at least 1, not 0"):
        generate(0, 1.0, 0)
    with pytest.raises(ValueError, match="rate must be positive"):
        generate(3, 0.0, 0)
    with pytest.raises(ValueError, match="vocab_size must be at least 1"):
        generate(1, 1.0, 0)[0].prompt_token_ids(0)
