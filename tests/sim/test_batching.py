"""The replay on a clock of its own, against hand-made schedules and against the real engine."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.engine import LLM, SamplingParams
from utils.engine.core.step_record import ScheduledTokens
from utils.sim.batching import (
    SimRequest,
    engine_on_device,
    engine_schedule,
    replay,
    request_metrics,
    scaled_trace,
    throughput,
)
from utils.sim.traces import sharegpt_like


class OneByOne:
    """One request at a time, first come, first served."""

    def __init__(self) -> None:
        self.waiting: deque[SimRequest] = deque()
        self.running: list[SimRequest] = []

    def schedule(self) -> list[tuple[SimRequest, int]]:
        if not self.running:
            self.running = [self.waiting.popleft()]
        [request] = self.running
        return [(request, request.num_tokens - request.num_computed_tokens)]

    def update_from_output(self) -> None:
        self.running = [request for request in self.running if not request.is_finished]


class Chunks(OneByOne):
    """Everybody at once, but at most three tokens of a request in a step."""

    def schedule(self) -> list[tuple[SimRequest, int]]:
        self.running += self.waiting
        self.waiting.clear()
        return [(r, min(3, r.num_tokens - r.num_computed_tokens)) for r in self.running]


def seconds(num_tokens: int) -> float:
    return max(4.0, num_tokens)


def test_two_requests_by_hand() -> None:
    trace = [SimRequest("A", 1.0, 10, 3), SimRequest("B", 2.0, 2, 1)]
    steps = replay(OneByOne(), trace, seconds)
    # A's prompt from 1 to 11, two tokens of 4 s each; then B's prompt.
    assert [(s.start, s.end) for s in steps] == [(1, 11), (11, 15), (15, 19), (19, 23)]
    assert [s.tokens for s in steps] == [
        {"A": ScheduledTokens(0, 10, 0, 1)},
        {"A": ScheduledTokens(10, 1, 0, 1)},
        {"A": ScheduledTokens(11, 1, 0, 1)},
        {"B": ScheduledTokens(0, 2, 0, 1)},
    ]
    assert [s.finished_req_ids for s in steps] == [[], [], ["A"], ["B"]]
    assert [s.num_waiting for s in steps] == [0, 1, 1, 0]
    metrics = request_metrics(steps, trace)
    assert (metrics["A"].ttft, metrics["A"].tpot, metrics["A"].queue_time) == (10, 4, 0)
    assert (metrics["B"].ttft, metrics["B"].tpot, metrics["B"].queue_time) == (21, None, 17)
    assert throughput(steps) == 4 / 22
    assert trace[0].num_computed_tokens == trace[0].num_output_tokens == 0  # not changed


def test_clock_jumps_over_empty_time() -> None:
    trace = [SimRequest("A", 0.0, 2, 1), SimRequest("B", 50.0, 2, 1)]
    assert [s.start for s in replay(OneByOne(), trace, seconds)] == [0.0, 50.0]


def test_chunks_give_a_token_only_at_their_end() -> None:
    steps = replay(Chunks(), [SimRequest("A", 0.0, 7, 2)], seconds)
    tokens = [s.tokens["A"] for s in steps]
    assert [(t.start, t.num_new, t.num_sampled) for t in tokens] == [
        (0, 3, 0),
        (3, 3, 0),
        (6, 1, 1),
        (7, 1, 1),
    ]


lengths = st.tuples(st.floats(0, 30), st.integers(1, 20), st.integers(1, 9))


@given(st.lists(lengths, min_size=1, max_size=8), st.sampled_from([OneByOne, Chunks]))
def test_every_token_is_computed_once_and_in_order(lengths, scheduler) -> None:
    trace = [SimRequest(str(i), *request) for i, request in enumerate(lengths)]
    steps = replay(scheduler(), trace, seconds)
    assert all(a.end <= b.start for a, b in itertools.pairwise(steps))
    for request in trace:
        mine = [s for s in steps if request.request_id in s.tokens]
        tokens = [s.tokens[request.request_id] for s in mine]
        assert mine[0].start >= request.arrival_time
        starts = [0, *itertools.accumulate(t.num_new for t in tokens)]
        assert [t.start for t in tokens] == starts[:-1]
        assert starts[-1] == request.num_prompt_tokens + request.max_tokens - 1
        assert sum(t.num_sampled for t in tokens) == request.max_tokens
        assert [request.request_id in s.finished_req_ids for s in mine].index(True) == len(mine) - 1


class Idle(OneByOne):
    def schedule(self) -> list[tuple[SimRequest, int]]:
        return []


class Greedy(OneByOne):
    def schedule(self) -> list[tuple[SimRequest, int]]:
        [(request, left)] = super().schedule()
        return [(request, left + 1)]


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (Idle, r"At 2\.000 s nobody was scheduled, though 1 wait and 0 run"),
        (Greedy, "6 tokens were scheduled for request A, which has 5 left"),
    ],
)
def test_a_wrong_scheduler_is_told_so(scheduler: type[OneByOne], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(scheduler(), [SimRequest("A", 2.0, 5, 1)], seconds)


def test_scaled_trace() -> None:
    trace = scaled_trace(20, rate=4.0, seed=3, scale=0.1)
    full = sharegpt_like(20, 4.0, 3)
    assert [r.request_id for r in trace] == list("ABCDEFGHIJKLMNOPQRST")
    assert trace[0].arrival_time == 0
    for small, large in zip(trace, full, strict=True):
        assert small.arrival_time == pytest.approx(large.arrival_time - full[0].arrival_time)
        assert small.num_prompt_tokens == max(2, round(0.1 * large.prompt_len))
        assert small.max_tokens == max(2, round(0.1 * large.output_len))
    assert scaled_trace(20, 4.0, 3, 0.1) == trace
    shortest = scaled_trace(20, 4.0, 3, scale=1e-6)
    assert {(r.num_prompt_tokens, r.max_tokens) for r in shortest} == {(2, 2)}


@pytest.mark.parametrize("arguments", [(0, 1.0, 0, 0.1), (27, 1.0, 0, 0.1), (5, 1.0, 0, 0.0)])
def test_bad_traces(arguments: tuple[int, float, int, float]) -> None:
    with pytest.raises(ValueError, match=r"num_requests must be|scale must be"):
        scaled_trace(*arguments)


def test_records_are_those_of_the_engine(llm: LLM) -> None:
    """The same requests, in the same steps: the engine's trace says what the replay's says."""
    trace = [SimRequest("A", 0.0, 10, 3), SimRequest("B", 0.0, 2, 4)]
    engine = llm.new_engine(changes={"max_num_seqs": 1, "enable_prefix_caching": False})
    engine.step_trace = []
    for request in trace:
        params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        engine.add_request(request.request_id, [5] * request.num_prompt_tokens, params)
    outputs = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    steps = replay(OneByOne(), trace, seconds)
    for theirs, ours in zip(engine.step_trace, steps, strict=True):
        assert theirs.tokens == ours.tokens
        assert theirs.finished_req_ids == ours.finished_req_ids
        assert theirs.num_waiting == ours.num_waiting
    # And the times of tokens, from the records, are those that the engine noted itself.
    start = outputs["A"].metrics.arrival_time
    for name, metrics in request_metrics(engine.step_trace, trace, start).items():
        assert metrics.token_ts == pytest.approx(outputs[name].metrics.token_ts, abs=0.05)
        assert metrics.arrival_time == start


class Together(OneByOne):
    """Whoever is there, with all tokens."""

    def schedule(self) -> list[tuple[SimRequest, int]]:
        self.running += self.waiting
        self.waiting.clear()
        return [(r, r.num_tokens - r.num_computed_tokens) for r in self.running]


def test_the_engine_schedules_what_its_replay_does(llm: LLM) -> None:
    trace = scaled_trace(8, rate=0.2, seed=1, scale=0.02)
    steps = replay(Together(), trace, seconds)
    engine = llm.new_engine(changes={"max_num_seqs": 8, "enable_prefix_caching": False})
    expected = [{name: t.num_new for name, t in step.tokens.items()} for step in steps]
    assert engine_schedule(engine, steps, trace) == expected


def test_too_few_steps_are_no_schedule(llm: LLM) -> None:
    trace = [SimRequest("A", 0.0, 10, 3)]
    steps = replay(OneByOne(), trace, seconds)
    engine = llm.new_engine(changes={"enable_prefix_caching": False})
    with pytest.raises(ValueError, match="after all 2 steps, the engine is not finished"):
        engine_schedule(engine, steps[:-1], trace)


SECONDS = 0.002


@pytest.mark.parametrize("is_async", [False, True])
def test_all_write_one_word(llm: LLM, is_async: bool) -> None:
    engine = engine_on_device(
        llm, SECONDS, async_scheduling=is_async, max_num_batched_tokens=8, max_num_seqs=4
    )
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    for i, length in enumerate((3, 20)):  # the second one comes in chunks
        engine.add_request(str(i), list(range(100, 100 + length)), params)
    texts = {}
    while engine.has_unfinished_requests():
        texts |= {output.request_id: output.outputs[0].text for output in engine.step()}
    assert texts == {"0": " the" * 5, "1": " the" * 5}
    assert all(step.executed - step.started >= SECONDS for step in engine.step_trace)
    assert engine.kv_cache_manager.usage == 0
