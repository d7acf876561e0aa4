"""What lab 10 calls right is what others do, and its inputs reach the corners."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_10 import (
    counts,
    layer,
    layer_mistakes,
    low_rank_update,
    one_step,
    switching,
    what_is_learned,
    whole_model,
)
from utils.pipeline.studies import lora


def test_the_loss_is_that_of_transformers():
    model = TinyModel().hf
    ids = torch.randint(0, 32, (2, 7))
    labels = ids.masked_fill(torch.rand(2, 7) < 0.4, -100)
    with torch.no_grad():
        out = model(ids, labels=labels)
    assert torch.allclose(what_is_learned.token_by_token(out.logits, labels).float(), out.loss)


def test_the_right_layer_is_the_courses_own_which_is_held_against_peft():
    base = nn.Linear(6, 4)
    theirs = lora.LoRALinear(copy.deepcopy(base), 2, 6)
    ours = layer_mistakes.RightLayer(base, 2, 6)
    with torch.no_grad():
        theirs.lora_B.normal_()
        ours.lora_A.copy_(theirs.lora_A), ours.lora_B.copy_(theirs.lora_B)
    x, ab = torch.randn(5, 6), (ours.lora_A.detach(), ours.lora_B.detach())
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    wanted = low_rank_update.wanted_forward(x, base.weight.detach(), *ab, 6)
    assert torch.allclose(wanted.output.value + base.bias, theirs(x), atol=1e-5)
    assert counts.trained_numbers([(6, 4)], 2) == sum(t.numel() for t in ab)
    ours.merge(), theirs.merge()
    assert torch.allclose(base.weight, theirs.base_layer.weight, atol=1e-6)


@pytest.mark.parametrize("dtype", low_rank_update.HALVES)
def test_a_weight_that_is_rounded_twice_is_seen(dtype):
    weight, a, b = torch.randn(20, 30).to(dtype), torch.randn(2, 30), torch.randn(20, 2) / 10
    once = (weight.float() + 2 * b @ a).to(dtype)
    twice = weight + (2 * b @ a).to(dtype)
    assert low_rank_update.rounded_once(once, weight, a, b, 4)
    assert not low_rank_update.rounded_once(twice, weight, a, b, 4)


def test_the_inputs_reach_the_corners():
    losses = [given.args for given in sample(what_is_learned.draw_loss, 150)]
    assert {x.dtype for x, _ in losses} == {torch.float32, torch.bfloat16, torch.float16}
    assert max(y.shape[1] for _, y in losses) > 64 < 65_536 < max(x.shape[2] for x, _ in losses)
    assert any((y[:, 0] != -100).any() for _, y in losses)
    texts = [given.args for given in sample(what_is_learned.draw_texts, 150)]
    assert any(not p for p, _, _ in texts)
    assert any(not a for _, a, _ in texts)
    assert any(e in p for p, _, e in texts)
    assert any(max([*p, *a, e]) > 65_535 for p, a, e in texts)
    forwards = [given.args for given in sample(low_rank_update.draw_forward, 150)]
    assert {x.dim() for x, *_ in forwards} == {1, 2, 3, 4}
    assert sum(alpha == low_rank_update.FINE for *_, alpha in forwards) > 15
    built = [b.shape[0] * a.shape[1] > 4 * (a.numel() + b.numel()) for _, _, a, b, _ in forwards]
    assert sum(built) > 10
    stories = sample(layer.draw_story, 150)
    assert {s.base for s in stories} == set(layer.BASES)
    assert any(s.wide for s in stories)
    assert {kind for s in stories for kind, _ in s.steps} == set(layer.STEPS)
    cases = sample(whole_model.draw_case, 150)
    assert {len(case.trees) for case in cases} == {1, 2}
    assert any(not case.targets for case in cases)
    runs = sample(one_step.draw_run, 80)
    assert {run.part for run in runs} == set(one_step.PARTS)
    assert {run.optimizer for run in runs} == set(one_step.OPTIMIZERS)
    switches = sample(switching.draw_story, 100)
    assert {s.num_layers for s in switches} == {1, 2}


def test_the_simplest_inputs_are_small():
    given = low_rank_update.draw_forward(Choices())
    assert isinstance(given, Given)
    assert [t.numel() for t in given.args[:4]] == [1, 1, 1, 1]


def test_only_a_product_of_a_and_b_counts_as_built():
    x, w, a, b = torch.randn(3, 40), torch.randn(50, 40), torch.randn(2, 40), torch.randn(50, 2)
    given = Given(x, w, a, b, 4.0)
    beside = lambda x, w, a, b, s: x.float() @ w.float().T + s / 2 * (x @ a.T @ b.T)  # noqa: E731
    inside = lambda x, w, a, b, s: torch.einsum("or,ri,bi->bo", b, a, x) + x @ w.T  # noqa: E731
    assert low_rank_update.builds_the_product(beside, given) is None
    assert low_rank_update.builds_the_product(inside, given) is not None
