"""What lab 07 calls right, held against the engine, vLLM's sampler, theory and tables."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.labs.bug_zoo.lab_07 import Proposer, Verifier, by_gumbel_max
from utils.checks import lab_07
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_07 import answers, laws, learners_engine, lookups, many_steps
from utils.checks.lab_07.dice import Dice, runs
from utils.checks.lab_07.sampling import BY_ITS_LAW
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.drafter import choose_num_speculative_tokens, expected_tokens
from utils.engine.spec_decode.ngram_proposer import NgramProposer

RIGHT = lab_07.followed, lab_07.kept


def test_the_engine_agrees_on_all_inputs():
    for tokens, low, high, k in (inputs.args for inputs in sample(lookups.draw_lookup, 150)):
        engines = NgramProposer(low, high).propose(tokens, k)
        assert lookups.followed(tokens, low, high, k) == engines
    for draft, target in (inputs.args for inputs in sample(lab_07.draw_verification, 150)):
        assert lab_07.kept(draft, target) == RejectionSampler().greedy(draft, target)
    for a, k in (inputs.args for inputs in sample(lab_07.draw_rate, 150)):
        assert lab_07.mean_tokens(a, k) == pytest.approx(expected_tokens(a, k), rel=1e-9)
    for situation in sample(lab_07.draw_situation, 150):
        assert lab_07.best_number(*situation.args) == choose_num_speculative_tokens(*situation.args)


def test_the_inputs_reach_the_corners():
    texts = [inputs.args for inputs in sample(lookups.draw_lookup, 150)]
    assert any(not text for text, *_ in texts)
    assert any(len(text) > 2000 for text, *_ in texts)
    assert any(max(text, default=0) > 65_535 for text, *_ in texts)
    assert any(low > len(text) for text, low, *_ in texts)
    guesses = [inputs.args for inputs in sample(lab_07.draw_guess, 300)]
    assert any(p[token] == 0 and u == 0 for token, p, _, u in guesses)
    assert any(0 < p[token] / q[token] < 1e-11 and u == 0 for token, p, q, u in guesses)
    assert any(p[token] == q[token] and u > 0.999 for token, p, q, u in guesses)
    rows = [inputs.args for inputs in sample(lab_07.draw_two_rows, 100)]
    left = [(p - q).clamp(min=0) for p, q in rows]
    assert any(0 < residual.max() < 1e-7 for residual in left)
    assert any(residual.sum() < 2e-6 for residual in left)
    assert all(residual.sum() > 0 for residual in left)
    assert all(abs(float(row.double().sum()) - 1) < 1e-6 for pair in rows for row in pair)
    steps = sample(laws.draw_step, 100)
    assert {0, 1, 2, 3} < {len(step.draft_token_ids) for step in steps}
    assert any(step.draft_probs is None and step.draft_token_ids for step in steps)
    assert any(max(step.draft_token_ids, default=0) > 65_535 for step in steps)


rows = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)


@given(st.lists(rows, min_size=2, max_size=3), st.data())
@settings(max_examples=60)
def test_the_exact_law_gives_the_targets_distribution_for_drawn_and_for_certain_guesses(p, data):
    p = torch.tensor([[weight / sum(row) for weight in row] for row in p])
    q = [data.draw(rows) for _ in p[1:]]
    q = torch.tensor([[weight / sum(row) for weight in row] for row in q])

    def first_token(draft, draft_probs):
        law = laws.exact_law(laws.Step(list(draft), draft_probs, p, 4))
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
    low = {(u, token): share / 4 for u in (0.125, 0.375) for token, share in ((1, 0.25), (2, 0.75))}
    assert got == pytest.approx({**low, (0.625, 0): 0.25, (0.875, 0): 0.25})
    assert not dice.unknown
    with dice:
        torch.rand(2, generator=generator)
        torch.rand(2, generator=torch.Generator())
    assert dice.unknown
    assert dice.foreign


def test_a_sampler_that_cannot_be_scripted_is_judged_by_what_comes():
    def always_the_best(draft, q, p, generator):
        torch.randn(1, generator=generator)
        return [int(p[0].argmax())]

    faults = []
    for step in sample(laws.draw_step, 25):
        law = BY_ITS_LAW.expect(step)
        assert BY_ITS_LAW.fault(by_gumbel_max, step, law) is None
        faults.append(BY_ITS_LAW.fault(always_the_best, step, law))
    assert any(fault is not None and fault.clause == "law" for fault in faults)


def test_the_chi_square_test_knows_the_tables():
    # counts, expected: statistics 3.841 (1 degree of freedom) and 11.345 (3): 5 % and 1 %
    off = math.sqrt(3.841459 * 50 / 2)
    p = many_steps.chi_square_p([50 + off, 50 - off], [50, 50])
    assert p == pytest.approx(0.05, rel=1e-4)
    off = math.sqrt(11.344867 * 25 / 4)
    counts = [25 + off, 25 - off, 25 + off, 25 - off]
    assert many_steps.chi_square_p(counts, [25] * 4) == pytest.approx(0.01, rel=1e-4)
    assert many_steps.chi_square_p([10, 20, 30], [10, 20, 30]) == pytest.approx(1.0)
    assert many_steps.too_far({1: 300, 2: 700}, {1: 500.0, 2: 500.0})
    assert not many_steps.too_far({1: 480, 2: 515, 3: 5}, {1: 500.0, 2: 498.0, 3: 2.0})


def test_a_right_sampler_passes_with_any_seed(monkeypatch):
    manual_seed = torch.Generator.manual_seed
    for shift in range(4):

        class Shifted(torch.Generator):
            def manual_seed(self, seed, shift=shift):
                manual_seed(self, seed + 100 * shift)
                return self

        monkeypatch.setattr(torch, "Generator", Shifted)
        many_steps.experiment(RejectionSampler().sample)


def test_a_sampler_that_fails_once_in_a_while_is_the_learners_fault():
    dice = random.Random(1)

    def fails(*arguments):
        if dice.random() < 1e-3:
            raise RuntimeError("once in a while")
        return RejectionSampler().sample(*arguments)

    feedback = lab_07.rejection_sample(fails)
    assert feedback.status == "failed"
    assert "once in a while" in feedback.headline


def test_a_wrong_distribution_comes_with_its_picture():
    with pytest.raises(Mismatch, match="too often or too seldom") as caught:
        many_steps.experiment(lambda draft, q, p, g: answers.rejection_sample(draft, None, p, g))
    assert len(caught.value.figure.axes) == 3


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("name", ["propose", "greedy", "sample"])
def test_the_last_exercise_names_a_part_that_is_not_written(name):
    parts = Proposer(), Verifier()
    setattr(parts[name != "propose"], name, stub)
    assert lab_07.engine(lambda: parts).status == "not written yet"


def test_the_last_exercise_looks_at_what_the_sampler_is_made_of():
    names = {"is_accepted": lambda *_: True, "Proposer": Proposer, "Verifier": Verifier}
    source = """
def sample(draft, draft_probs, target_probs, generator):
    return [*draft, 0] if is_accepted() else []


def my_parts():
    return Proposer(), Verifier(sample=sample)
"""
    exec(source, names)
    feedback = lab_07.engine(names["my_parts"])
    assert feedback.headline.startswith("Exercise 3 is not right yet. ")


def test_in_the_engine_each_answer_is_compared():
    class Forgetful(Proposer):
        def propose(self, token_ids, num_speculative_tokens):
            return [] if 7 in token_ids else super().propose(token_ids, num_speculative_tokens)

    watched = learners_engine.Watched(Forgetful(), Verifier(sample=lambda *_: [1]), *RIGHT)
    assert watched.propose([1, 2, 3, 1, 2], 2) == [3, 1]
    with pytest.raises(Mismatch, match="In the engine, your proposer"):
        watched.propose([7, 1, 2, 3, 1, 2], 1)
    with pytest.raises(Mismatch, match="In the engine, your sampler"):
        watched.sample([0], None, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.Generator())


def test_the_tiny_models_law_is_a_distribution():
    law = learners_engine.exact_answers()
    assert len(law) == 5**learners_engine.CHECKED
    assert math.isclose(math.fsum(law.values()), 1.0, rel_tol=1e-5)


def test_steps_are_predicted_from_the_text_alone():
    def steps(prompt, answer):
        return learners_engine.predicted_steps(prompt, answer, *RIGHT)

    # 2 from the prompt's step; 3 4 5 6 guessed, 7 the bonus; 8 1 guessed, and nothing is left
    assert steps([1, 2, 3, 4, 5, 6, 7, 8, 1], [2, 3, 4, 5, 6, 7, 8, 1]) == 3
    assert steps([1, 2], [3, 4, 5, 6]) == 4  # nothing repeats
    assert steps([1, 2], [3]) == 1
