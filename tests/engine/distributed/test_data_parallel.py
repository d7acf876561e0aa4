"""Two engines that share the requests: the same answers, and none lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.distributed.test_layouts import PROMPTS, SETTINGS, answers
from utils.engine import LLM, BeamSearchParams, SamplingParams


@pytest.fixture(scope="module")
def spread(folder: Path) -> Iterator[LLM]:
    llm = LLM(folder, data_parallel_size=2, **SETTINGS)
    yield llm
    llm.shutdown()


@pytest.mark.parametrize(
    "params", [{}, dict(temperature=1.0, seed=4, n=2, max_tokens=9), dict(logprobs=1, max_tokens=1)]
)
def test_answers_are_those_of_one_engine(alone, spread, params):
    assert answers(spread, **params) == answers(alone, alone.new_engine(), **params)


def test_outputs_are_whole(alone, spread):
    """Texts, reasons and log probabilities too, not token ids alone."""
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2)
    alone.llm_engine = alone.new_engine()
    got, want = (llm.generate(PROMPTS, params, use_tqdm=False) for llm in (spread, alone))
    for a, b in zip(got, want, strict=True):
        (one,), (two,) = a.outputs, b.outputs
        assert (one.text, one.finish_reason) == (two.text, two.finish_reason)
        assert [list(step) for step in one.logprobs] == [list(step) for step in two.logprobs]


def test_each_replica_has_a_prefix_cache_of_its_own(spread):
    """Two equal prompts, one after the other, go to the same idle replica; two at a time do not."""
    prompt = [3, 4, 5, 6, 7, 8, 9, 10, 11]
    params = SamplingParams(temperature=0, max_tokens=2)
    assert spread.reset_prefix_cache()
    before = spread.prefix_cache_stats.hits
    spread.generate([prompt, prompt], params, use_tqdm=False)
    assert spread.prefix_cache_stats.hits == before
    spread.generate([prompt, prompt], params, use_tqdm=False)
    assert spread.prefix_cache_stats.hits == before + 16
    assert spread.reset_prefix_cache()


def test_a_stream_that_is_left_gives_its_place_back(alone, spread):
    stream = spread.stream(
        PROMPTS[0], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    )
    next(stream)
    stream.close()
    assert not spread.llm_engine.has_unfinished_requests()
    assert answers(spread) == answers(alone, alone.new_engine())


def test_beam_search_is_refused_with_the_reason(spread):
    with pytest.raises(ValueError, match="data_parallel_size"):
        spread.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=2, max_tokens=3))


def test_replicas_of_several_ranks_each(folder, alone):
    llm = LLM(folder, data_parallel_size=2, tensor_parallel_size=2, **SETTINGS)
    assert answers(llm) == answers(alone, alone.new_engine())
    llm.shutdown()
