"""The oracles of lab 07, held against vLLM, the engine, theory and tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_07 import costs, learners_engine, one_token, proposals, sampled_engine
from utils.checks.lab_07.sampler import many_steps
from utils.checks.lab_07.sampler.dice import Dice, runs
from utils.checks.lab_07.sampler.laws import Step, draw_step, exact_law
from utils.checks.lab_07.sampler.sampling import ByItsLaw
from utils.checks.lab_07.tree_masks import seen
from utils.checks.lab_07.tree_walks import draw_walk, longest_right_path
from utils.checks.lab_07.verification import draw_verification, kept
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.drafter import choose_num_speculative_tokens, expected_tokens
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.engine.spec_decode.tree import follow_tree


def test_the_engine_agrees_on_all_inputs():
    for tokens, low, high, k in (inputs.args for inputs in sample(proposals.draw_lookup, 150)):
        assert proposals.followed(tokens, low, high, k) == NgramProposer(low, high).propose(
            tokens, k
        )
    for draft, target in (inputs.args for inputs in sample(draw_verification, 150)):
        assert kept(draft, target) == RejectionSampler().greedy(draft, target)
    for a, k in (inputs.args for inputs in sample(costs.draw_rate, 150)):
        assert costs.mean_tokens(a, k) == pytest.approx(expected_tokens(a, k), rel=1e-9)
    for situation in sample(costs.draw_situation, 150):
        assert costs.best_number(*situation.args) == choose_num_speculative_tokens(*situation.args)
    for tokens, parents, target in (inputs.args for inputs in sample(draw_walk, 150)):
        assert longest_right_path(tokens, parents, target) == follow_tree(tokens, parents, target)
        assert torch.equal(seen(parents), tree_attention_mask(parents))


def test_the_inputs_reach_the_corners():
    texts = [inputs.args for inputs in sample(proposals.draw_lookup, 150)]
    assert any(not text for text, *_ in texts)
    assert any(len(text) > 2000 for text, *_ in texts)
    assert any(max(text, default=0) > 65_535 for text, *_ in texts)
    assert any(low > len(text) for text, low, *_ in texts)
    guesses = [inputs.args for inputs in sample(one_token.draw_guess, 150)]
    assert any(p[token] == 0 and u == 0 for token, p, _, u in guesses)
    assert any(0 < q[token] < 1e-5 for token, _, q, _ in guesses)
    assert any(p[token] == q[token] and u > 0.999 for token, p, q, u in guesses)
    rows = [inputs.args for inputs in sample(one_token.draw_two_rows, 150)]
    assert any((p - q).clamp(min=0).sum() < 1e-5 for p, q in rows)
    assert all((p - q).clamp(min=0).sum() > 0 and len(p) == len(q) for p, q in rows)
    assert all(abs(float(row.double().sum()) - 1) < 1e-6 for pair in rows for row in pair)
    steps = sample(draw_step, 150)
    assert {0, 1, 2, 3} < {len(step.draft_token_ids) for step in steps}
    assert any(step.draft_probs is None and step.draft_token_ids for step in steps)
    assert any(max(step.draft_token_ids, default=0) > 65_535 for step in steps)
    assert max(len(inputs.args[1]) for inputs in sample(draw_walk, 150)) > 64


rows = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)


@given(st.lists(rows, min_size=2, max_size=3), st.data())
@settings(max_examples=60)
def test_the_exact_law_gives_the_targets_distribution_for_drawn_and_for_certain_guesses(p, data):
    p = torch.tensor([[weight / sum(row) for weight in row] for row in p])
    q = [data.draw(rows) for _ in p[1:]]
    q = torch.tensor([[weight / sum(row) for weight in row] for row in q])

    def first_token(draft, draft_probs):
        law = exact_law(Step(list(draft), draft_probs, p, 4))
        assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-6)
        return [sum(share for o, share in law.items() if o[0] == token) for token in range(3)]

    drawn = np.zeros(3)
    for draft in itertools.product(range(3), repeat=len(q)):
        probability = math.prod(float(row[token]) for row, token in zip(q, draft, strict=True))
        if probability:
            drawn += probability * np.array(first_token(draft, q))
        np.testing.assert_allclose(first_token(draft, None), p[0], atol=1e-6)
    np.testing.assert_allclose(drawn, p[0], atol=1e-6)


def test_the_dice_walk_every_way_and_their_shares_sum_to_one():
    generator = torch.Generator()
    dice, weights = Dice(generator, 4), torch.tensor([0.0, 0.25, 0.75])

    def run():
        with dice:
            u = torch.rand((), generator=generator).item()
            return u, torch.multinomial(weights, 1, generator=generator).item() if u < 0.5 else 0

    got = dict(runs(dice, run, 100))
    assert got == pytest.approx(
        {
            (0.125, 1): 0.0625,
            (0.125, 2): 0.1875,
            (0.375, 1): 0.0625,
            (0.375, 2): 0.1875,
            (0.625, 0): 0.25,
            (0.875, 0): 0.25,
        }
    )
    assert not dice.unknown
    with dice:
        torch.randn(2, generator=generator)
        torch.rand(2, generator=torch.Generator())
    assert dice.unknown
    assert dice.foreign


def test_a_sampler_that_cannot_be_scripted_is_judged_by_what_comes():
    def as_it_should(draft, q, p, generator):
        generator.get_state()
        torch.randn(1, generator=generator)
        return RejectionSampler().sample(draft, q, p, generator)

    def always_the_best(draft, q, p, generator):
        torch.randn(1, generator=generator)
        return [int(p[0].argmax())]

    judge, faults = ByItsLaw(), []
    for step in sample(draw_step, 60):
        assert judge.fault(as_it_should, step, judge.expect(step)) is None
        faults.append(judge.fault(always_the_best, step, judge.expect(step)))
    assert any(fault is not None and fault.clause == "law" for fault in faults)


def test_the_chi_square_test_knows_the_tables():
    # counts, expected: statistics 3.841 (1 degree of freedom) and 11.345 (3): 5 % and 1 %
    off = math.sqrt(3.841459 * 50 / 2)
    assert many_steps.chi_square_p([50 + off, 50 - off], [50, 50]) == pytest.approx(0.05, rel=1e-4)
    off = math.sqrt(11.344867 * 25 / 4)
    counts = [25 + off, 25 - off, 25 + off, 25 - off]
    assert many_steps.chi_square_p(counts, [25] * 4) == pytest.approx(0.01, rel=1e-4)
    assert many_steps.chi_square_p([10, 20, 30], [10, 20, 30]) == pytest.approx(1.0)
    assert many_steps.too_far({1: 300, 2: 700}, {1: 500.0, 2: 500.0})
    assert not many_steps.too_far({1: 480, 2: 515, 3: 5}, {1: 500.0, 2: 498.0, 3: 2.0})


def test_a_right_sampler_passes_with_any_seed(monkeypatch):
    monkeypatch.setattr(many_steps, "STEPS", 2000)
    manual_seed = torch.Generator.manual_seed
    for shift in range(6):

        class Shifted(torch.Generator):
            def manual_seed(self, seed, shift=shift):
                manual_seed(self, seed + 100 * shift)
                return self

        monkeypatch.setattr(torch, "Generator", Shifted)
        many_steps.judge(RejectionSampler().sample)


def test_the_tiny_models_law_is_a_distribution():
    law = sampled_engine.exact_answers()
    assert len(law) == 5**sampled_engine.CHECKED
    assert math.isclose(math.fsum(law.values()), 1.0, rel_tol=1e-5)


def test_steps_are_predicted_from_the_text_alone():
    predicted_steps = learners_engine.predicted_steps
    # 2 from the prompt's step; 3 4 5 6 guessed, 7 the bonus; 8 1 guessed, and nothing is left
    assert predicted_steps([1, 2, 3, 4, 5, 6, 7, 8, 1], [2, 3, 4, 5, 6, 7, 8, 1]) == 3
    assert predicted_steps([1, 2], [3, 4, 5, 6]) == 4  # nothing repeats
    assert predicted_steps([1, 2], [3]) == 1
