"""Engines race fairly, and their clocks count what they should."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, SpeculativeConfig
from utils.viz.engine.step_time import decoding
from utils.viz.spec_decode import clock
from utils.viz.spec_decode.clock import (
    StepParts,
    decode_steps,
    guess_seconds,
    pass_seconds,
    race,
    run,
    seconds_per_token,
    step_parts,
)
from utils.viz.spec_decode.drafts import same_keys, slots_of_steps

GUESSES = SpeculativeConfig("ngram", num_speculative_tokens=3, prompt_lookup_min=1)
PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [6, 7, 6, 7, 6]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, seed=0, vocab_size=120)
    return LLM(folder, max_model_len=128, num_gpu_blocks_override=100)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_race_gives_the_answers_of_each_alone(tiny: LLM, batch: int) -> None:
    engines, written = race(tiny, PROMPTS, {"copy": GUESSES}, batch, max_tokens=12)
    plain, _ = run(tiny, PROMPTS, max_tokens=12)
    guessed, engine = run(tiny, PROMPTS, GUESSES, batch, max_tokens=12)
    assert written == {"none": plain, "copy": plain} and guessed == plain
    assert len(engine.step_trace) == len(engines["copy"].step_trace)
    assert engines["copy"].spec_decoding_stats.num_drafts > 0


def test_clocks_count_decode_steps_only(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks with each reading: a step takes 4 ticks, of which guesses take 1."""
    # Each engine's first step is its prompt's. Had it counted, it would be 1000 times as long.
    of_prompts = 2 * 5
    ticks = itertools.chain(range(0, 1000 * of_prompts, 1000), itertools.count(1000 * of_prompts))
    monkeypatch.setattr("utils.engine.llm_engine.perf_counter", partial(next, ticks))
    engines, _ = race(tiny, PROMPTS[:1], {"copy": GUESSES}, max_tokens=12)
    assert len(decode_steps(engines["none"])) == 11  # the prompt's step gives one token, too
    assert [engine.step_trace[0].end >= 4000 for engine in engines.values()] == [True, True]
    assert seconds_per_token(engines["none"]) == 4
    assert seconds_per_token(engines["copy"]) == 4 * len(decode_steps(engines["copy"])) / 11
    assert [guess_seconds(engine) for engine in engines.values()] == [1, 1]
    for engine in engines.values():
        parts = step_parts(engine)
        assert parts.drafting == 1 and parts.verification + parts.drafting + parts.rest == 4
    assert str(StepParts(0.02, 0.003, 0.0004)) == "verification 20.0, drafting 3.0, rest 0.4 ms"


def test_a_pass_of_each_size_takes_time(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "BEFORE", 64)
    seconds = pass_seconds(tiny, [1, 4, 30], repeats=1)
    assert len(seconds) == 3 and min(seconds) > 0


def test_slots_hold_the_confirmed_keys(tiny: LLM) -> None:
    steps, engine, request = slots_of_steps(tiny, "w3 w4 w5 w3 w4 w5 w3", 3, GUESSES)
    confirmed = request.all_token_ids[: request.num_computed_tokens]
    blocks = engine.kv_cache_manager.get_block_ids("A")
    assert len(steps) == 3 and steps[-1].start + steps[-1].num_kept == len(confirmed)
    assert same_keys(tiny.model, engine.kv_cache, confirmed, blocks)
    with torch.inference_mode():
        engine.kv_cache.keys[0, blocks[0], 1] += 1
    assert not same_keys(tiny.model, engine.kv_cache, confirmed, blocks)


def test_decoding_requests_are_all_under_way(tiny: LLM) -> None:
    engine = decoding(tiny, 3, PROMPTS)
    assert len(engine.scheduler.running) == 3 and not engine.scheduler.waiting
    assert all(len(request.output_token_ids) >= 2 for request in engine.scheduler.running)
