"""What lab 10 calls right is what others do, and its inputs reach the corners."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from utils.checks import lab_10
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_10 import answers, layers, models, near
from utils.pipeline.studies import lora


def test_the_loss_is_that_of_transformers():
    model = TinyModel().hf
    ids = torch.randint(0, 32, (2, 7))
    labels = ids.masked_fill(torch.rand(2, 7) < 0.4, -100)
    with torch.no_grad():
        out = model(ids, labels=labels)
    assert torch.allclose(lab_10.token_by_token(out.logits, labels).float(), out.loss)


def test_the_right_layer_is_the_courses_own_which_is_held_against_peft():
    base = nn.Linear(6, 4)
    theirs = lora.LoRALinear(copy.deepcopy(base), 2, 6)
    ours = answers.LoRALinear(base, 2, 6)
    with torch.no_grad():
        theirs.lora_B.normal_()
        ours.lora_A.copy_(theirs.lora_A), ours.lora_B.copy_(theirs.lora_B)
    x = torch.randn(5, 6)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert near.beside(base(x), x, *models.ab(ours), 6).fits(theirs(x))
    trained = sum(t.numel() for t in models.ab(theirs))
    assert lab_10.bytes_of_all(0, 4, [(6, 4)], 2) == 16 * trained
    ours.merge(), theirs.merge()
    assert torch.allclose(base.weight, theirs.base_layer.weight, atol=1e-6)


def test_gradients_are_those_of_autograd_through_the_merged_matrix():
    base, x, a, b = (torch.randn(s).double() for s in ((5, 4), (5, 6), (2, 6), (4, 2)))
    given = [t.requires_grad_() for t in (x, a, b)]
    above = near.pulled(base)
    (base + x @ (1.5 * b @ a).T).backward(above)
    for wanted, mine in zip(near.gradients(0 * x, x, above, a, b, 3), given, strict=True):
        assert torch.allclose(wanted.value.double(), mine.grad, atol=1e-5)


@pytest.mark.parametrize("dtype", near.HALVES)
def test_a_weight_that_is_rounded_twice_is_seen(dtype):
    weight, a, b = torch.randn(20, 30).to(dtype), torch.randn(2, 30), torch.randn(20, 2) / 10
    once = (weight.float() + 2 * b @ a).to(dtype)
    twice = weight + (2 * b @ a).to(dtype)
    assert layers.rounded_once(once, weight, a, b, 4)
    assert not layers.rounded_once(twice, weight, a, b, 4)


def test_memory_is_found_wherever_it_is():
    def holds(numbers: torch.Tensor) -> object:
        return lambda: numbers

    layer, numbers = nn.Linear(2, 2), torch.zeros(1000)
    before = layers.held_bytes(layer)
    layer.weight.kept = numbers  # type: ignore[attr-defined]
    assert layers.held_bytes(layer) == before + 4000
    for held in (holds(numbers), functools.partial(max, numbers.numpy()), [numbers, numbers[3:]]):
        layer.held = held  # type: ignore[assignment]
        assert 4000 <= layers.held_bytes(layer) - before <= 8000
    del layer.weight.kept  # type: ignore[attr-defined]
    layer.held = [float(i) for i in range(1000)]  # type: ignore[assignment]
    assert layers.held_bytes(layer) == before + 8000


def test_the_inputs_reach_the_corners():
    losses = [given.args for given in sample(lab_10.draw_loss, 150)]
    assert {x.dtype for x, _ in losses} == {torch.float32, torch.bfloat16, torch.float16}
    assert max(y.shape[1] for _, y in losses) > 64 < 65_536 < max(x.shape[2] for x, _ in losses)
    assert any((y[:, 0] != -100).any() for _, y in losses)
    texts = [given.args for given in sample(lab_10.draw_texts, 150)]
    assert any(not p for p, _, _ in texts) and any(not a for _, a, _ in texts)
    assert any(e in p for p, _, e in texts)
    forwards = [given.args for given in sample(lab_10.draw_forward, 150)]
    assert {x.dim() for _, x, *_ in forwards} == {1, 2, 3, 4}
    assert any(base.dtype != x.dtype for base, x, *_ in forwards)
    cases = sample(models.draw_case, 100)
    assert max(name.count(".") for case in cases for name in case.model) == models.DEEPEST - 1
    assert any("lora_" in name for case in cases for name in case.target_modules)
    assert {case.dtype for case in cases} == {torch.float32, torch.bfloat16}
    assert {case.mode for case in cases} == set(models.MODES)
    runs = sample(models.draw_run, 80)
    assert {run.trained for run in runs} == set(models.PARTS)
    assert {run.parameter_groups for run in runs} == {1, 2}
