"""Half-written answers, answers that fail in the engine only, and the pictures."""

from __future__ import annotations

import random

import pytest
import torch

from tests.labs.bug_zoo.lab_07 import Proposer, Verifier
from utils.checks import lab_07
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_07 import learners_engine, pictures
from utils.checks.lab_07.sampler import many_steps
from utils.checks.lab_07.tree_masks import seen
from utils.engine.sample.rejection_sampler import RejectionSampler


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("name", [n for n, c in vars(lab_07).items() if hasattr(c, "max_points")])
def test_a_stub_is_not_written_yet(name):
    assert getattr(lab_07, name)(stub).status == "not written yet"


def test_a_sampler_whose_parts_are_stubs_is_told_so_not_that_it_is_wrong():
    def sample(draft, draft_probs, target_probs, generator):
        if draft:
            stub()
        return RejectionSampler().sample(draft, draft_probs, target_probs, generator)

    feedback = lab_07.rejection_sample(sample)
    assert feedback.status == "not written yet"
    assert "`stub`" in feedback.headline


class Missing(Proposer, Verifier):
    def __init__(self, name):
        Verifier.__init__(self)
        setattr(self, name, stub)


@pytest.mark.parametrize("name", ["propose", "greedy", "sample"])
def test_the_last_exercise_names_a_part_that_is_not_written(name):
    feedback = lab_07.engine(lambda: (Missing(name), Missing(name)))
    assert feedback.status == "not written yet"


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
    assert feedback.headline == "Exercise 3 is not right yet. Every guess is accepted."


def test_in_the_engine_each_answer_is_compared_and_the_text_is_shortened():
    class Forgetful(Proposer):
        def propose(self, token_ids, num_speculative_tokens):
            return [] if 7 in token_ids else super().propose(token_ids, num_speculative_tokens)

    watched = learners_engine._Watched(Forgetful(), Verifier())
    assert watched.propose([1, 2, 3, 1, 2], 2) == [3, 1]
    with pytest.raises(Mismatch, match="In the engine") as caught:
        watched.propose([5, 6, 7, 8, 1, 2, 3, 4, 1, 2], 1)
    assert dict(caught.value.details)["Input"] == "token_ids [7, 1, 2, 1, 2], num_speculative_" + (
        "tokens 1"
    )
    with pytest.raises(Mismatch, match="your sampler"):
        wrong = learners_engine._Watched(Proposer(), Verifier(sample=lambda *_: [1]))
        wrong.sample([0], None, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.Generator())


def test_a_sampler_that_fails_once_in_a_while_is_the_learners_fault():
    dice = random.Random(1)

    def sample(*arguments):
        if dice.random() < 1e-3:
            raise RuntimeError("once in a while")
        return RejectionSampler().sample(*arguments)

    feedback = lab_07.rejection_sample(sample)
    assert feedback.status == "failed"
    assert "once in a while" in feedback.headline


def test_the_pictures_show_what_they_compare():
    figure = pictures.distributions(
        [("token 0", [0.5, 0.5], [0.2, 0.8], [0.3, 0.7]), ("token 1", None, [1, 0], [0.9, 0.1])],
        "a title",
    )
    titles = [ax.get_title(loc="left") + ax.get_title() for ax in figure.axes]
    assert titles == ["token 0", "token 1"]  # on the side that the style says
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == [
        "draft's probability",
        "target's probability: expected",
        "yours: share of what came",
    ]
    assert [len(ax.patches) for ax in figure.axes] == [6, 4]
    heights = [round(bar.get_height(), 3) for bar in figure.axes[1].patches]
    assert heights == [1, 0, 0.9, 0.1]

    mask = seen([-1, -1])
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
        many_steps.judge(resample)
    assert len(caught.value.figure.axes) == 3
