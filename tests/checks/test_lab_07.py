"""The checks of lab 07 beyond the bug zoo: their oracles, half-written answers, the pictures."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.checks import lab_07
from utils.checks.kit.runner import Mismatch, NotWritten
from utils.checks.lab_07 import learners_engine, pictures, sampling
from utils.checks.lab_07.costs import best_by_brute_force, expected_by_brute_force
from utils.checks.lab_07.proposals import accepted_by_brute_force, found_by_brute_force
from utils.checks.lab_07.sampler_cases import CASES, MISTAKES, exact_law, flawed
from utils.checks.lab_07.sampling import TRIES, _of_mistake, chi_square_p
from utils.checks.lab_07.trees import mask_by_brute_force, path_by_brute_force
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.drafter import choose_num_speculative_tokens, expected_tokens
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.engine.spec_decode.tree import follow_tree

# The oracles


def test_the_lookup_by_brute_force_is_vllms():
    ngram = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer")
    dice = random.Random(1)
    for _ in range(500):
        tokens = [dice.randrange(3) for _ in range(dice.randint(1, 14))]
        shortest = dice.randint(1, 3)
        longest, k = dice.randint(shortest, 4), dice.randint(1, 5)
        vllms = ngram._find_longest_matched_ngram_and_propose_tokens(
            np.array(tokens, dtype=np.int32), shortest, longest, 1000, k
        )
        assert found_by_brute_force(tokens, shortest, longest, k) == vllms.tolist()
        assert NgramProposer(shortest, longest).propose(tokens, k) == vllms.tolist()


rows = st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any)


@given(st.lists(rows, min_size=2, max_size=3), st.data())
@settings(deadline=None, max_examples=60)
def test_the_exact_law_gives_the_targets_distribution_for_drawn_and_for_certain_guesses(p, data):
    p = [tuple(weight / sum(row) for weight in row) for row in p]
    q = [data.draw(rows) for _ in p[1:]]
    q = [tuple(weight / sum(row) for weight in row) for row in q]

    def first_token(draft, draft_probs):
        law = exact_law(draft, draft_probs, tuple(p))
        assert math.isclose(sum(law.values()), 1.0)
        return [sum(share for o, share in law.items() if o[0] == token) for token in range(3)]

    drawn = np.zeros(3)
    for draft in itertools.product(range(3), repeat=len(q)):
        probability = math.prod(row[token] for row, token in zip(q, draft, strict=True))
        if probability:
            drawn += probability * np.array(first_token(draft, tuple(q)))
        np.testing.assert_allclose(first_token(draft, None), p[0], atol=1e-9)
    np.testing.assert_allclose(drawn, p[0], atol=1e-9)


def test_each_outcome_of_a_case_is_frequent_enough_to_be_seen():
    for case in CASES:
        law = exact_law(case.draft_token_ids, case.draft_probs, case.target_probs)
        assert min(law.values()) >= 0.0999
        dice = random.Random(1)
        arguments = (case.draft_token_ids, case.draft_probs, case.target_probs, dice)
        assert {flawed(*arguments) for _ in range(TRIES)} == law.keys()


def test_no_two_mistakes_with_different_words_look_the_same():
    seen = {}
    for number, (_, says, _) in enumerate(MISTAKES):
        signature = tuple(_of_mistake(number, place) for place in range(len(CASES)))
        assert seen.setdefault(signature, says) == says
    right = tuple(
        frozenset(exact_law(c.draft_token_ids, c.draft_probs, c.target_probs)) for c in CASES
    )
    assert right not in seen


def test_the_chi_square_test_knows_the_tables():
    # counts, expected: statistics 3.841 (1 degree of freedom) and 11.345 (3): 5 % and 1 %
    off = math.sqrt(3.841459 * 50 / 2)
    assert chi_square_p([50 + off, 50 - off], [50, 50]) == pytest.approx(0.05, rel=1e-4)
    off = math.sqrt(11.344867 * 25 / 4)
    counts = [25 + off, 25 - off, 25 + off, 25 - off]
    assert chi_square_p(counts, [25] * 4) == pytest.approx(0.01, rel=1e-4)
    assert chi_square_p([10, 20, 30], [10, 20, 30]) == pytest.approx(1.0)


def test_a_right_sampler_passes_with_any_seed(monkeypatch):
    monkeypatch.setattr(sampling, "SAMPLES", 2000)
    manual_seed = torch.Generator.manual_seed
    for shift in range(8):

        class Shifted(torch.Generator):
            def manual_seed(self, seed, shift=shift):
                manual_seed(self, seed + 100 * shift)
                return self

        monkeypatch.setattr(torch, "Generator", Shifted)
        sampling.judge_rejection_sample(RejectionSampler().sample)


trees = st.lists(st.integers(0, 100), max_size=9).map(
    lambda numbers: [number % (i + 1) - 1 for i, number in enumerate(numbers)]
)


@given(trees, st.data())
@settings(deadline=None)
def test_trees_by_brute_force_are_the_engines(parents, data):
    assert torch.equal(mask_by_brute_force(parents), tree_attention_mask(parents))
    # siblings differ: token = number among the siblings, in base 3 of small vocabulary
    tokens = [parents[:i].count(parent) for i, parent in enumerate(parents)]
    target = data.draw(st.lists(st.integers(0, 2), min_size=len(parents) + 1,
                                max_size=len(parents) + 1))  # fmt: skip
    assert path_by_brute_force(tokens, parents, target) == follow_tree(tokens, parents, target)


@given(st.lists(st.integers(0, 2), max_size=5), st.data())
def test_greedy_verification_by_brute_force_is_the_engines(draft, data):
    target = data.draw(st.lists(st.integers(0, 2), min_size=len(draft) + 1,
                                max_size=len(draft) + 1))  # fmt: skip
    assert accepted_by_brute_force(draft, target) == RejectionSampler().greedy(draft, target)


@given(st.floats(0, 1), st.integers(0, 6), st.sampled_from([0.03, 0.1, 0.4, 1.5]))
def test_the_engine_counts_and_chooses_as_brute_force_does(rate, k, cost):
    assert expected_by_brute_force(rate, k) == pytest.approx(expected_tokens(rate, k))
    mine, engines = best_by_brute_force(rate, k, cost), choose_num_speculative_tokens(rate, k, cost)
    if mine != engines:  # rounding decides between equals
        gains = [expected_tokens(rate, n) / (1 + n * cost) for n in (mine, engines)]
        assert gains[0] == pytest.approx(gains[1])


def test_the_tiny_models_law_is_a_distribution():
    law = learners_engine._exact_law()
    assert len(law) == 5**learners_engine.CHECKED
    assert math.isclose(math.fsum(law.values()), 1.0, rel_tol=1e-5)


def test_steps_are_predicted_from_the_text_alone():
    # 2 from the prompt's step; 3 4 5 6 guessed, 7 the bonus; 8 1 guessed, and nothing is left
    assert (
        learners_engine.predicted_steps([1, 2, 3, 4, 5, 6, 7, 8, 1], [2, 3, 4, 5, 6, 7, 8, 1]) == 3
    )
    assert learners_engine.predicted_steps([1, 2], [3, 4, 5, 6]) == 4  # nothing repeats
    assert learners_engine.predicted_steps([1, 2], [3]) == 1


# Half-written answers


def stub(*_):
    raise NotImplementedError


def test_a_sampler_whose_parts_are_stubs_is_told_so_not_that_it_is_wrong():
    def sample(draft, draft_probs, target_probs, generator):
        if draft:
            stub()
        return RejectionSampler().sample(draft, draft_probs, target_probs, generator)

    feedback = lab_07.rejection_sample(sample)
    assert feedback.status == "not written yet"
    assert "`stub`" in feedback.headline


@pytest.mark.parametrize("name", [n for n, c in vars(lab_07).items() if hasattr(c, "max_points")])
def test_a_stub_is_not_written_yet(name):
    assert getattr(lab_07, name)(stub).status == "not written yet"


class Parts:
    def __init__(self, missing):
        self.missing = missing

    def propose(self, *_):
        return stub() if self.missing == "propose" else []

    def greedy(self, *_):
        return stub() if self.missing == "greedy" else [1]

    def sample(self, draft_token_ids, draft_probs, target_probs, generator):
        rejected = float(target_probs[0, 1]) == 0.0
        if self.missing == "sample" or (self.missing == "recovered_probs" and rejected):
            stub()
        return [1]


@pytest.mark.parametrize("missing", ["propose", "greedy", "sample", "recovered_probs"])
def test_the_last_exercise_names_a_part_that_is_not_written(missing):
    learners_engine.rehearse(lambda: (Parts(""), Parts("")))  # all are there
    with pytest.raises(NotWritten, match="stub"):
        learners_engine.rehearse(lambda: (Parts(missing), Parts(missing)))


def test_a_sampler_that_fails_once_in_a_while_is_the_learners_fault():
    dice = random.Random(1)

    def sample(*arguments):
        if dice.random() < 1e-3:
            raise RuntimeError("once in a while")
        return RejectionSampler().sample(*arguments)

    feedback = lab_07.rejection_sample(sample)
    assert feedback.status == "failed"
    assert "once in a while" in feedback.headline


# The pictures


def test_the_pictures_show_what_they_compare():
    figure = pictures.distributions(
        [("token 0", [0.5, 0.5], [0.2, 0.8], [0.3, 0.7]), ("token 1", None, [1, 0], [0.9, 0.1])],
        "a title",
    )
    titles = [ax.get_title(loc="left") + ax.get_title() for ax in figure.axes]
    assert titles == ["token 0", "token 1"]  # on the side that the style says
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["draft's probability", "target's probability: expected",
                     "yours: share of what came"]  # fmt: skip
    assert [len(ax.patches) for ax in figure.axes] == [6, 4]
    heights = [round(bar.get_height(), 3) for bar in figure.axes[1].patches]
    assert heights == [1, 0, 0.9, 0.1]

    mask = mask_by_brute_force([-1, -1])
    yours = mask.clone()
    yours[2, 1] = True
    figure = pictures.masks(mask, yours, ["last", "0", "1"])
    crosses = [[text.get_position() for text in ax.texts] for ax in figure.axes]
    assert crosses == [[], [(1, 2)]]  # column 1, row 2


def test_a_wrong_distribution_comes_with_its_picture():
    def resample(draft, draft_probs, target_probs, generator):
        token = int(torch.multinomial(target_probs[0].sqrt(), 1, generator=generator))
        if not draft or token != draft[0]:
            return [token]
        return [token, *resample(draft[1:], None, target_probs[1:], generator)]

    with pytest.raises(Mismatch) as caught:
        sampling._judge_statistics(resample)
    assert len(caught.value.figure.axes) == 3
