"""A step is scheduled while the one before it runs, and nobody can tell it from the answers.

The oracle is the same engine with a step at a time, whose oracles are Hugging Face and vLLM (see
`test_everything_at_once.py`); in random stories, Hugging Face alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.tiny_engines import nothing_is_held, tiny_llama, tiny_speaker
from utils.engine import (
    LLM,
    BeamSearchParams,
    SamplingParams,
    Scheduler,
    SpeculativeConfig,
    StructuredOutputsParams,
)
from utils.engine.attention.kv_cache import ContiguousKVCache
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.sched.async_scheduler import AsyncScheduler
from utils.engine.core.sched.output import PLACEHOLDER, SchedulerOutput
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore

PATIENCE = 60.0  # seconds; only a wrong engine waits for so long
SMALL: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 24, "max_model_len": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 5, 6, 7, 8, 9, 10, 12, 1], [7, 8], [3, 4, 5, 6, 1]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, seed=0)
    return LLM(folder, max_model_len=64, num_gpu_blocks_override=64)


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> LLM:
    return LLM(tiny_speaker(tmp_path_factory.mktemp("speaker"), model_path), max_model_len=64)


@pytest.fixture(autouse=True)
def nothing_stays(tiny: LLM) -> Iterator[None]:
    usual = tiny.llm_engine
    yield
    assert nothing_is_held(tiny) and not tiny.llm_engine.steps
    tiny.llm_engine = usual


def engine(llm: LLM, is_async: bool = True, **changes: Any) -> Any:
    llm.llm_engine = llm.new_engine({**SMALL, "async_scheduling": is_async, **changes})
    llm.llm_engine.step_trace = []
    return llm.llm_engine


def numbers(completion: Any, output: Any) -> list[Any]:
    """Tokens and log probabilities, which may differ in their last digits: batches do."""
    scores = [*(completion.logprobs or []), *(output.prompt_logprobs or [])]
    return [
        (token, pytest.approx(logprob.logprob, abs=1e-4))
        for at in scores
        for token, logprob in (at or {}).items()
    ]


def both(llm: LLM, prompts: Any, params: Any, **changes: Any) -> list[Any]:
    """The answers with a step at a time, then those with async scheduling."""
    answers = []
    for is_async in (False, True):
        core = engine(llm, is_async, **changes)
        outputs = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]
        answers.append(
            [
                (c.token_ids, c.text, c.finish_reason, c.stop_reason, numbers(c, o))
                for answered in outputs
                for o in answered
                for c in o.outputs
            ]
        )
        assert core.kv_cache_manager.usage == 0 and not core.steps
    return answers


KINDS = {
    "greedy": GREEDY,
    "seeds": SamplingParams(temperature=1, seed=5, max_tokens=20, top_p=0.9),
    "several answers": SamplingParams(temperature=1, seed=5, max_tokens=9, n=3),
    "stop tokens": replace(GREEDY, stop_token_ids=[3, 8], min_tokens=3),
    "stop strings": replace(GREEDY, stop=["w3", "w8 w5"]),
    "scores": replace(GREEDY, logprobs=2, prompt_logprobs=1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_seqs": 3, "max_num_batched_tokens": 5},
        {"num_gpu_blocks": 16, "num_cpu_blocks": 6},
        {"num_gpu_blocks": 16, "enable_prefix_caching": False},
    ],
    ids=["", "chunks", "swapped", "recomputed"],
)
def test_answers_are_the_same(tiny: LLM, kind: str, changes: dict[str, Any]) -> None:
    one_at_a_time, ahead = both(tiny, PROMPTS, KINDS[kind], **changes)
    assert ahead == one_at_a_time


def test_answers_of_a_given_form_are_the_same(speaker: LLM) -> None:
    form = StructuredOutputsParams(regex="( ?w[0-9]+)+")
    params = [replace(GREEDY, structured_outputs=form if i % 2 else None) for i in range(4)]
    one_at_a_time, ahead = both(speaker, PROMPTS, params)
    assert ahead == one_at_a_time


def test_the_next_step_is_scheduled_while_one_runs(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model doesn't go on until it is: an engine that waited would wait for ever."""
    core = engine(tiny)
    schedule, execute = core.scheduler.schedule, core.executor.execute_model
    scheduled = threading.Semaphore(0)
    ahead = []

    def scheduling() -> SchedulerOutput:
        output = schedule()
        if ahead:  # it is the next step for somebody
            scheduled.release()
        ahead.append([r.all_token_ids[-1] == PLACEHOLDER for r in output.scheduled_requests])
        return output

    def executing(output: SchedulerOutput) -> Any:
        assert scheduled.acquire(timeout=PATIENCE)
        assert all(r.all_token_ids[-1] >= 0 for r in output.scheduled_requests)
        return execute(output)

    monkeypatch.setattr(core.scheduler, "schedule", scheduling)
    monkeypatch.setattr(core.executor, "execute_model", executing)
    tiny.generate([[7, 8]], replace(GREEDY, max_tokens=6, ignore_eos=True), use_tqdm=False)
    # The prompt, five steps whose token was not known yet, and none for what comes after the last.
    assert ahead == [[False], *[[True]] * 5, []]


def test_a_token_too_many_is_thrown_away(tiny: LLM) -> None:
    """The end is seen a step late, unless it is that of the length."""
    lengths = {}
    for is_async in (False, True):
        core = engine(tiny, is_async)
        stopped = replace(GREEDY, stop_token_ids=[12])  # its fifth token
        [by_stop] = tiny.generate([PROMPTS[0]], stopped, use_tqdm=False)
        steps_by_stop = len(core.step_trace)
        limited = replace(GREEDY, max_tokens=len(by_stop.outputs[0].token_ids) - 1)
        [by_length] = tiny.generate([PROMPTS[0]], limited, use_tqdm=False)
        assert by_stop.outputs[0].finish_reason == "stop"
        assert by_length.outputs[0].finish_reason == "length"
        lengths[is_async] = (steps_by_stop, len(core.step_trace) - steps_by_stop)
        sampled = [t.num_sampled for record in core.step_trace for t in record.tokens.values()]
        assert sum(sampled) == 2 * len(by_stop.outputs[0].token_ids) - 1
    assert lengths[True] == (lengths[False][0] + 1, lengths[False][1])


def test_a_name_may_be_used_again_while_its_last_step_runs(tiny: LLM) -> None:
    """The token on its way belongs to the request that was aborted."""
    core = engine(tiny, is_async=False)
    [expected] = tiny.generate([[7, 8]], GREEDY, use_tqdm=False)
    core = engine(tiny)
    core.add_request("a", PROMPTS[0], GREEDY)
    for _ in range(3):
        core.step()
    assert len(core.steps) == 1
    core.abort_request("a")
    core.add_request("a", [7, 8], GREEDY)
    state = core.output_processor.parent_requests["a"]
    while core.has_unfinished_requests():
        core.step()
    assert state.output_token_ids == expected.outputs[0].token_ids


def test_who_ends_while_out_of_blocks_is_gone(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last token was on its way when it lost its blocks."""
    core = engine(tiny, num_gpu_blocks=16, num_cpu_blocks=0)
    schedule, victims = core.scheduler.schedule, []

    def scheduling() -> SchedulerOutput:
        output = schedule()
        if output.preempted_req_ids and not victims:
            [victim] = [r for r in core.scheduler.waiting if r.num_output_placeholders]
            victim.max_num_tokens = victim.num_tokens + 1
            victims.append(core.output_processor.request_states[victim.request_id])
        return output

    monkeypatch.setattr(core.scheduler, "schedule", scheduling)
    for i in range(3):
        core.add_request(str(i), PROMPTS[0], replace(GREEDY, ignore_eos=True, max_tokens=64))
    while core.has_unfinished_requests():
        core.step()
        assert not victims or victims[0].is_finished  # in the very step that it lost them in
        assert not any(request.is_finished for request in core.scheduler.waiting)
    assert victims


def test_prefixes_are_found_as_before(tiny: LLM) -> None:
    hits = []
    for is_async in (False, True):
        core = engine(tiny, is_async, num_gpu_blocks=40)
        [first] = tiny.generate([PROMPTS[0]], replace(GREEDY, ignore_eos=True), use_tqdm=False)
        tokens = [*first.prompt_token_ids, *first.outputs[0].token_ids]
        core.kv_cache_manager.prefix_cache_stats.hits = 0
        for length in range(4, len(tokens) + 1):
            tiny.generate([tokens[:length]], replace(GREEDY, max_tokens=1), use_tqdm=False)
        hits.append(core.kv_cache_manager.prefix_cache_stats.hits)
    assert hits[0] == hits[1] > 0


def test_beams_take_their_turn(tiny: LLM) -> None:
    """A search computes in the same thread, while a stream's step is on its way."""
    core = engine(tiny, is_async=False, num_gpu_blocks=60)
    beams = BeamSearchParams(3, 7, ignore_eos=True)
    expected = tiny.beam_search([PROMPTS[1]], beams)
    [answer] = tiny.generate([PROMPTS[0]], GREEDY, use_tqdm=False)
    core = engine(tiny, num_gpu_blocks=60)
    stream = tiny.stream(PROMPTS[0], GREEDY)
    next(stream)
    assert core.steps
    found = tiny.beam_search([PROMPTS[1]], beams)
    assert [s.tokens for s in found[0].sequences] == [s.tokens for s in expected[0].sequences]
    assert list(stream)[-1].outputs[0].token_ids == answer.outputs[0].token_ids


def test_a_step_that_fails_is_told_and_forgotten(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = engine(tiny)
    expected = [o.outputs[0].token_ids for o in tiny.generate(PROMPTS, GREEDY, use_tqdm=False)]
    failing_once(core, 3, monkeypatch)
    with pytest.raises(MemoryError, match="no room"):
        tiny.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert nothing_is_held(tiny) and not core.steps
    answers = [o.outputs[0].token_ids for o in tiny.generate(PROMPTS, GREEDY, use_tqdm=False)]
    assert answers == expected


def test_several_answers_when_blocks_run_out(tiny: LLM) -> None:
    """A prompt may lose its blocks while the step runs that its forks get their tokens from."""
    params = SamplingParams(temperature=1, seed=3, max_tokens=24, n=2, ignore_eos=True)
    seen = 0
    for num_cpu_blocks in (0, 8):
        for length in range(1, 9):
            prompts = [[3 + (i + length) % 9] * (length + 3 * i) for i in range(4)]
            changes = {"num_gpu_blocks": 16, "num_cpu_blocks": num_cpu_blocks, "max_num_seqs": 6}
            one_at_a_time, ahead = both(tiny, prompts, params, **changes)
            assert ahead == one_at_a_time
            seen += sum(len(r.preempted_req_ids) for r in tiny.llm_engine.step_trace)
    assert seen > 10


def failing_once(core: Any, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the step fail that is the `at`-th from now on."""
    execute, calls = core.executor.execute_model, iter(range(10**6))

    def failing(output: SchedulerOutput) -> Any:
        if next(calls) == at:
            raise MemoryError("no room")
        return execute(output)

    monkeypatch.setattr(core.executor, "execute_model", failing)


def test_what_nobody_waits_for_may_fail(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of an aborted request: others don't hear of it, nor find what it hasn't computed."""
    core = engine(tiny, is_async=False)
    longer = [*PROMPTS[0], 5, 5]
    [expected] = tiny.generate([longer], GREEDY, use_tqdm=False)
    core = engine(tiny)
    failing_once(core, 0, monkeypatch)
    stream = tiny.stream(PROMPTS[0], GREEDY)
    core.add(core.inputs.from_prompts([PROMPTS[0]], GREEDY)[0])
    core.advance()
    core.abort_requests(list(core.output_processor.parent_requests))
    del stream
    [answer] = tiny.generate([longer], GREEDY, use_tqdm=False)
    assert answer.outputs[0].token_ids == expected.outputs[0].token_ids


def test_beams_find_nothing_that_a_failed_step_has_promised(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = engine(tiny, num_gpu_blocks=60)
    failing_once(core, 0, monkeypatch)
    core.add_request("a", PROMPTS[0], GREEDY)
    core.step()
    with pytest.raises(RuntimeError, match="The step before this one has failed"):
        tiny.beam_search([[*PROMPTS[0], 5]], BeamSearchParams(3, 7))
    assert nothing_is_held(tiny)


def test_the_thread_takes_as_many_threads_as_its_caller(tiny: LLM) -> None:
    core, before, seen = engine(tiny), torch.get_num_threads(), []
    execute = core.executor.execute_model
    try:
        core.executor.execute_model = lambda output: (
            seen.append(torch.get_num_threads()) or execute(output)
        )
        for count in (1, 2):
            torch.set_num_threads(count)
            tiny.generate([[7, 8]], replace(GREEDY, max_tokens=1), use_tqdm=False)
    finally:
        core.executor.execute_model = execute
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_a_learners_scheduler_must_be_made_for_it(tiny: LLM) -> None:
    class Mine(Scheduler):
        pass

    class Ahead(AsyncScheduler):
        pass

    with pytest.raises(ValueError, match="Mine cannot schedule a step while another one runs"):
        tiny.new_engine({"async_scheduling": True}, scheduler_cls=Mine)
    with pytest.raises(ValueError, match="Ahead is an AsyncScheduler: create the LLM with"):
        tiny.new_engine({}, scheduler_cls=Ahead)
    core = tiny.new_engine({"async_scheduling": True}, scheduler_cls=Ahead)
    assert type(core.scheduler) is Ahead


@pytest.mark.parametrize(
    ("changes", "parts", "name"),
    [
        ({"speculative_config": SpeculativeConfig("ngram", 2)}, {}, "speculative_config"),
        ({}, {"kv_connector": PoolConnector(MemoryStore())}, "kv_connector"),
        ({}, {"kv_cache_class": ContiguousKVCache}, "kv_cache_class"),
        ({}, {"kv_cache_manager": lambda c: make_kv_cache_manager(c)}, "kv_cache_manager"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_combined_is_refused(
    tiny: LLM, changes: dict[str, Any], parts: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=f"does not go with {name}: .*Leave one of them out"):
        tiny.new_engine({"async_scheduling": True, **changes}, **parts)


def test_engines_that_share_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="does not go with enable_expert_parallel"):
        LLM(async_scheduling=True, enable_expert_parallel=True, data_parallel_size=2)
