"""Prices are taken of each size alike, and a race keeps the steps whose seats are all taken."""

from __future__ import annotations

import pytest

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, SamplingParams, SpeculativeConfig
from utils.viz.spec_decode.clock import decode_steps, run
from utils.viz.spec_decode.prices import PassPrices, fastest_passes, gained_per_pass, priced_race

GUESSES = SpeculativeConfig("ngram", num_speculative_tokens=3, prompt_lookup_min=1)
PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [6, 7, 6, 7, 6], [8, 9]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, seed=0, vocab_size=120)
    return LLM(folder, max_model_len=128, num_gpu_blocks_override=100)


def test_sizes_take_turns_and_others_lie_between(tiny: LLM) -> None:
    prices = PassPrices(tiny, [4, 1], before=64)
    for _ in range(5):
        prices.time_next()
    assert [len(seconds) for seconds in prices.seconds.values()] == [3, 2]
    prices.seconds = {1: [2.0, 9.0, 3.0], 4: [6.0]}
    assert [prices(n) for n in (1, 3, 4)] == [3.0, 5.0, 6.0]


def test_the_fastest_pass_of_each_size(tiny: LLM) -> None:
    seconds = fastest_passes(tiny, [1, 4, 30], repeats=2)
    assert len(seconds) == 3 and min(seconds) > 0


def test_a_race_keeps_the_steps_whose_seats_are_all_taken(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prices = PassPrices(tiny, [2, 8], before=64)
    engines, written = priced_race(tiny, PROMPTS, {"copy": GUESSES}, 2, params, prices)
    plain, _ = run(tiny, PROMPTS, max_tokens=12)
    assert written == {"none": plain, "copy": plain}
    for engine in engines.values():
        assert decode_steps(engine)
        assert all(len(step.tokens) == 2 for step in engine.step_trace)
    assert all(prices.seconds.values())
    assert gained_per_pass(engines["none"]) == 1 < gained_per_pass(engines["copy"])
