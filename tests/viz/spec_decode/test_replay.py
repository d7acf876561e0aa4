"""Known answers: hits, their shuffling, and engines that must write the same."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, RejectionSampler, SpeculativeConfig
from utils.viz.spec_decode.clock import run
from utils.viz.spec_decode.draws import count_draws
from utils.viz.spec_decode.replay import (
    WRONG,
    KnownAnswer,
    count_tokens_per_pass,
    known_answers,
    race_over,
    shuffle_hits,
    times_as_fast,
    weights_per_guess,
)

PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [6, 7, 6, 7, 6]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, Path]:
    folder = tmp_path_factory.mktemp("target")
    tiny_llama(folder, seed=0, vocab_size=120)
    draft = tmp_path_factory.mktemp("draft")
    tiny_llama(draft, seed=1, vocab_size=120)
    return LLM(folder, max_model_len=128, num_gpu_blocks_override=100), draft


def test_known_guesses_are_those_of_the_engine(tiny: tuple[LLM, Path]) -> None:
    llm, folder = tiny
    spec = SpeculativeConfig("draft_model", num_speculative_tokens=1, model=folder)
    _, engine = run(llm, PROMPTS[:1], spec, max_tokens=12)
    drafter = engine.drafter.proposer
    known = known_answers(llm, drafter, PROMPTS, max_tokens=12)
    assert [one.prompt for one in known] == PROMPTS and len(known[0].answer) == 12
    # With one guess per pass, a pass gives two tokens where the guess is a hit.
    place = passes = 0
    for one in known:
        place = 1
        while place < len(one.answer):
            place += 2 if one.hits[place] and place < len(one.answer) - 1 else 1
            passes += 1
    assert count_tokens_per_pass(llm, known, spec) == pytest.approx(22 / passes)
    config = drafter.model.config
    layers = sum(
        weight.numel() for name, weight in drafter.model.named_parameters() if "proj" in name
    )
    assert weights_per_guess(drafter) == layers + config.vocab_size * config.hidden_size


def test_a_changed_answer_is_noticed(tiny: tuple[LLM, Path]) -> None:
    llm, _ = tiny
    spec = SpeculativeConfig("ngram", num_speculative_tokens=3, prompt_lookup_min=1)
    [answer], _ = run(llm, PROMPTS[:1], max_tokens=8)
    right = KnownAnswer(PROMPTS[0], answer, answer)
    engines, price = race_over(llm, [right], {"copy": spec}, sizes=[1, 4])
    assert price(1) > 0 and min(price(1), price(4)) <= price(2) <= max(price(1), price(4))
    assert list(engines) == ["none", "copy"] and times_as_fast(engines, "none") == 1
    other = KnownAnswer(PROMPTS[0], [*answer[:-1], answer[-1] + 1], answer)
    with pytest.raises(AssertionError, match="changed an answer"):
        race_over(llm, [other], {"copy": spec}, sizes=[1])
    with pytest.raises(AssertionError, match="changed an answer"):
        count_tokens_per_pass(llm, [other], spec)


def test_shuffling_keeps_the_number_of_hits() -> None:
    known = [KnownAnswer([1], [5, 6, 7, 8], [5, 6, 0, 0]), KnownAnswer([2], [9, 9], [9, 0])]
    orders = [shuffle_hits(known, Random(seed)) for seed in range(20)]
    for order in orders:
        assert [one.answer for one in order] == [one.answer for one in known]
        assert sum(hit for one in order for hit in one.hits) == 3
        assert all(
            guess in (token, WRONG)
            for one in order
            for guess, token in zip(one.guesses, one.answer, strict=True)
        )
    assert len({tuple(order[0].hits) for order in orders}) > 3


def test_counted_draws_are_those_of_the_target() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2, 0]), torch.tensor([0.2, 0.5, 0.1, 0.2])
    counts, accepted = count_draws(RejectionSampler(), p, q, 4000)
    assert counts.sum() == 4000 and counts[3] == 0
    assert torch.allclose(counts / 4000, p, atol=0.04)
    assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.04)
