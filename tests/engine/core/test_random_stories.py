"""Random stories: requests come, are aborted, share answers, run out of blocks, guess ahead.

Whatever happens, each gets the tokens it would get alone, and nothing leaks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.tiny_engines import Oracle, nothing_is_held, tiny_eagle, tiny_llama, tiny_medusa
from tests.scale import sized
from utils.engine import LLM, SamplingParams, SpeculativeConfig
from utils.engine.output_processor import RequestState

MAX_LEN = 48
# So little room that all happens: preemption, swapping, chunks, hits.
HARD = {
    "block_size": 3,
    "num_gpu_blocks": 17,
    "num_cpu_blocks": 6,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 10,
    "scheduling_policy": "priority",
    "enable_prefix_caching": True,
}


class World:
    """A tiny model, its oracle, and what guesses for it. Made once."""

    def __init__(self, folder: Path) -> None:
        self.oracle = Oracle(tiny_llama(folder / "target", seed=0))
        tiny_llama(folder / "draft", seed=1, layers=1)
        tiny_medusa(folder / "medusa", num_heads=3)
        tiny_eagle(folder / "eagle", self.oracle.model)
        self.llm = LLM(folder / "target", max_model_len=MAX_LEN, num_gpu_blocks_override=64)
        self.speculative = {
            "none": None,
            "ahead": None,  # by async scheduling
            "ngram": SpeculativeConfig("ngram", 4, prompt_lookup_min=1),
            "adaptive": SpeculativeConfig("ngram", 5, prompt_lookup_min=1, adaptive=True),
            "draft": SpeculativeConfig("draft_model", 3, model=folder / "draft"),
            "itself": SpeculativeConfig("draft_model", 4, model=folder / "target"),
            "medusa": SpeculativeConfig("medusa", 3, model=folder / "medusa"),
            "tree": SpeculativeConfig("medusa", model=folder / "medusa", tree_widths=(3, 2, 2)),
            "eagle": SpeculativeConfig("eagle", 3, model=folder / "eagle", adaptive=True),
            "eagle tree": SpeculativeConfig("eagle", model=folder / "eagle", tree_widths=(3, 2)),
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@st.composite
def stories(draw: st.DrawFn) -> dict:
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    max_num_seqs = draw(st.integers(1, 6))
    return {
        "block_size": block_size,
        "num_gpu_blocks": -(-MAX_LEN // block_size) + draw(st.integers(0, 30)),
        "num_cpu_blocks": draw(st.sampled_from([0, 4, 60])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.sampled_from([0, 1, 7, 60])),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "enable_prefix_caching": draw(st.booleans()),
    }


def play(world: World, method: str, config: dict, seed: int, num_requests: int = 14) -> int:
    """Play one story, checking every step. Returns how many steps it took."""
    rng = random.Random(seed)
    llm, oracle = world.llm, world.oracle
    engine = llm.llm_engine = llm.new_engine(
        changes={
            **config,
            "speculative_config": world.speculative[method],
            "async_scheduling": method == "ahead",
        }
    )
    trace = engine.step_trace = []
    stems = [[rng.randrange(3, 13) for _ in range(rng.randrange(1, 20))] for _ in range(3)]
    alive: dict[str, RequestState] = {}
    arrived = 0
    while arrived < num_requests or engine.has_unfinished_requests():
        while arrived < num_requests and rng.random() < 0.4:
            prompt = [*rng.choice(stems), *(rng.randrange(3, 13) for _ in range(rng.randrange(4)))]
            several = config["max_num_seqs"] >= 2 and rng.random() < 0.2
            sampled = several or rng.random() < 0.5
            params = SamplingParams(
                n=2 if several else 1,
                temperature=1.0 if sampled else 0.0,
                seed=rng.randrange(10**6) if sampled else None,
                max_tokens=rng.randrange(1, 25),
            )
            name = f"r{arrived}"
            engine.add_request(name, prompt, params, priority=rng.randrange(3))
            alive[name] = engine.output_processor.parent_requests[name]
            arrived += 1
        if alive and rng.random() < 0.05:
            engine.abort_request(rng.choice(list(alive)))
        before = {r.request_id for r in engine.scheduler.running if not r.is_finished}
        steps = len(trace)
        engine.step()
        if len(trace) > steps:
            check_step(trace[-1], config, before, whole=method != "ahead")
    assert nothing_is_held(llm)
    for state in (member for first in alive.values() for member in first.family):
        assert state.is_finished and state.request.is_finished
        params, answer = state.sampling_params, state.output_token_ids
        limit = params.max_tokens
        if state.finish_reason == "abort":
            limit = len(answer)
        own_seed = None if params.seed is None else params.seed + state.index
        assert oracle.explains(state.prompt_token_ids, answer, limit, own_seed), (
            method,
            config,
            seed,
            params,
        )
    return len(trace)


def check_step(record, config: dict, running_before: set[str], whole: bool) -> None:
    """What must hold in every step. `whole`: it ends before the next one is scheduled."""
    assert sum(t.num_new for t in record.tokens.values()) <= config["max_num_batched_tokens"]
    assert len(record.tokens) <= config["max_num_seqs"]
    assert all(t.num_new >= 1 for t in record.tokens.values())
    # Nobody who runs is left out, unless they lost their blocks.
    if whole:
        assert running_before <= set(record.tokens) | set(record.preempted_req_ids)
    for tokens in record.tokens.values():
        assert 0 <= tokens.num_draft < tokens.num_new or tokens.num_draft == 0
        assert tokens.num_sampled <= tokens.num_draft + 1
    assert record.start <= record.scheduled <= record.started <= record.executed
    assert record.executed <= record.processed <= record.end
    assert 0 < record.kv_cache_usage <= 1


METHODS = ["none", "ahead", "ngram", "adaptive", "draft", "itself", "medusa", "tree"]
METHODS += ["eagle", "eagle tree"]


@pytest.mark.parametrize("method", METHODS)
@settings(
    deadline=None,
    max_examples=sized(6, 12),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(config=stories(), seed=st.integers(0, 10**6))
def test_everyone_gets_the_tokens_they_would_get_alone(
    world: World, method: str, config: dict, seed: int
) -> None:
    play(world, method, config, seed)


def test_a_story_is_hard_enough(world: World) -> None:
    """One with all that can happen: preemption, swapping, chunks, hits, rejections, acceptance."""
    assert play(world, "draft", HARD, seed=1, num_requests=40) > 60
    engine = world.llm.llm_engine
    trace = engine.step_trace
    stats = engine.spec_decoding_stats
    assert sum(len(record.preempted_req_ids) for record in trace) >= 5
    assert sum(len(record.resumed_req_ids) for record in trace) >= 5
    assert any(t.num_new > 1 and t.num_sampled == 0 for r in trace for t in r.tokens.values())
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert engine.kv_cache_manager.prefix_cache_stats.hits > 0
