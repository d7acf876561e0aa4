"""Names, defaults and checks of the public classes are those of the installed vLLM."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import utils.engine as engine
from utils.engine import SamplingParams

vllm_sampling_params = pytest.importorskip("vllm.sampling_params")
vllm_outputs = pytest.importorskip("vllm.outputs")
VLLMValidationError = pytest.importorskip("vllm.exceptions").VLLMValidationError
NAN, INF = float("nan"), float("inf")

ARGUMENTS: list[dict[str, Any]] = [
    *({"temperature": value} for value in (0, 0.0, 0.001, 1, 2.0, 2.01, -0.1, NAN, INF)),
    *({"top_p": value} for value in (0.0, 0.001, 0.5, 1.0, 1.01, -0.5, NAN)),
    *({"top_k": value} for value in (-2, -1, 0, 1, 50, 10**6, 1.5)),
    *({"min_p": value} for value in (0.0, 0.5, 1.0, 1.01, -0.01, NAN)),
    *({"max_tokens": value} for value in (None, 1, 0, -1, 10**6)),
    *({"min_tokens": value} for value in (0, 5, 16, 17, -1)),
    {"min_tokens": 17, "max_tokens": 17},
    {"min_tokens": 17, "max_tokens": None},
    *({"logprobs": value} for value in (None, 0, 1, 20, -1, -2, True)),
    *({"stop": value} for value in (None, "", "x", [], ["a", "b"], ["a", ""])),
    *({"stop_token_ids": value} for value in (None, [], [1, 2], ["a"], [1.5], [3, 3])),
    *({"seed": value} for value in (None, 0, 7, -1)),
    *({"n": value} for value in (1, 0, -1)),
    {"temperature": 0, "n": 2},
    {"temperature": 0, "top_p": 0.0},
    {"temperature": 0, "top_k": -5},
    {"ignore_eos": True},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_accepts_and_rejects_what_vllm_does(arguments: dict[str, Any]) -> None:
    try:
        expected = vllm_sampling_params.SamplingParams(**arguments)
    except VLLMValidationError:
        with pytest.raises(ValueError, match=list(arguments)[-1]):
            SamplingParams(**arguments)
        return
    ours = SamplingParams(**arguments)
    for field in fields(SamplingParams):
        assert getattr(ours, field.name) == getattr(expected, field.name), field.name


def test_the_table_has_both_kinds() -> None:
    rejected = 0
    for arguments in ARGUMENTS:
        try:
            vllm_sampling_params.SamplingParams(**arguments)
        except VLLMValidationError:
            rejected += 1
    assert 20 <= rejected <= len(ARGUMENTS) - 20


@pytest.mark.parametrize(
    "arguments",
    [{"n": 2.0}, {"max_tokens": 2.5}, {"min_tokens": 0.5}, {"seed": "x"}, {"stop": [1]}],
    ids=str,
)
def test_what_only_we_refuse(arguments: dict[str, Any]) -> None:
    """Of wrong types vLLM complains later, or not at all."""
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SamplingParams(**arguments)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (engine.SamplingParams, vllm_sampling_params.SamplingParams),
        (engine.RequestOutput, vllm_outputs.RequestOutput),
        (engine.CompletionOutput, vllm_outputs.CompletionOutput),
    ],
)
def test_field_names_are_vllms(ours: type, theirs: type) -> None:
    names = set(inspect.signature(theirs).parameters)
    assert {field.name for field in fields(ours)} <= names


def test_other_names_are_vllms() -> None:
    from vllm import LLM
    from vllm.logprobs import Logprob
    from vllm.v1.metrics.stats import RequestStateStats
    from vllm.v1.request import Request, RequestStatus

    assert {f.name for f in fields(engine.Logprob)} <= {f.name for f in fields(Logprob)}
    # vLLM keeps the first token's time and the last one's, and counts; we keep all, for the plots.
    ours = {name for name in dir(engine.RequestMetrics()) if name.endswith(("_ts", "_time"))}
    assert {f.name for f in fields(RequestStateStats)} >= ours - {"token_ts", "queue_time"}
    assert set(engine.RequestStatus.__members__) <= set(RequestStatus.__members__)
    for method in ("generate", "chat", "get_tokenizer"):
        ours = inspect.signature(getattr(engine.LLM, method)).parameters
        assert set(ours) <= set(inspect.signature(getattr(LLM, method)).parameters)
    source = inspect.getsource(Request)
    assert all(f"self.{n}" in source for n in ("num_computed_tokens", "sampling_params"))


def test_names_of_the_paged_engine_are_vllms() -> None:
    from vllm.v1.core import block_pool, kv_cache_manager, kv_cache_utils
    from vllm.v1.core.sched import output, scheduler
    from vllm.v1.engine import llm_engine, output_processor
    from vllm.v1.metrics import stats

    def methods(cls: type) -> set[str]:
        return {name for name, value in vars(cls).items() if callable(value) and name[0] != "_"}

    # What vLLM's V1 does not have: forks and swapping were taken out; it iterates otherwise.
    ours_alone = {
        engine.KVCacheManager: {
            "fork",
            "is_swapped_out",
            "swap_out",
            "swap_in",
            "move_slots",
            "take_block_copies",
            "forget_everything",
        },
        engine.BlockPool: {"forget_contents", "reset"},
        engine.OutputProcessor: {"forget_everything"},
        engine.Scheduler: {"abort_requests", "forget_requests", "handle_invalid_blocks"},
        engine.LLMEngine: {
            "add",
            "advance",
            "abort_requests",
            "abort_in_core",
            "forget_everything",
        },
    }
    for ours, theirs in (
        (engine.FreeKVCacheBlockQueue, kv_cache_utils.FreeKVCacheBlockQueue),
        (engine.BlockPool, block_pool.BlockPool),
        (engine.KVCacheManager, kv_cache_manager.KVCacheManager),
        (engine.Scheduler, scheduler.Scheduler),
        (engine.LLMEngine, llm_engine.LLMEngine),
        (engine.OutputProcessor, output_processor.OutputProcessor),
    ):
        assert methods(ours) - set(dir(theirs)) == ours_alone.get(ours, set()), ours
    for name in ("get_hash_fn_by_name", "get_request_block_hasher", "hash_block_tokens"):
        assert callable(getattr(engine, name))
    assert hasattr(kv_cache_utils, "hash_block_tokens")
    assert hasattr(kv_cache_utils, "get_request_block_hasher")
    attributes = {f.name for f in fields(kv_cache_utils.KVCacheBlock)} | {"block_hash"}
    assert {field.name for field in fields(engine.KVCacheBlock)} <= attributes
    scheduled = {f.name for f in fields(output.SchedulerOutput)}
    for name in ("num_scheduled_tokens", "total_num_scheduled_tokens", "preempted_req_ids"):
        assert name in scheduled and hasattr(engine.SchedulerOutput([]), name)
    assert {"requests", "queries", "hits"} <= {f.name for f in fields(stats.PrefixCacheStats)}


def test_beam_search_names_are_vllms() -> None:
    from vllm.sampling_params import BeamSearchParams

    theirs = set(inspect.signature(BeamSearchParams).parameters)
    assert {field.name for field in fields(engine.BeamSearchParams)} <= theirs


def test_options_of_the_llm_are_vllms() -> None:
    from vllm.engine.arg_utils import EngineArgs

    theirs = {field.name for field in fields(EngineArgs)}
    assert {field.name for field in fields(engine.EngineArgs)} - theirs == {
        "device",
        "kernels",
        "swap_space",
        "upcycle",
        "parallel_ops",
        "rank_timeout",
        "ops",
        "kv_cache_class",
        "kv_cache_manager",
        "sampler",
        "rejection_sampler",
        "proposer",
        "kv_connector",
        "kv_events",
    }
