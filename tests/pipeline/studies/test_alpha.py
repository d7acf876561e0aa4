"""What lesson 10 says about alpha: the first step's gain, and which learning rate alpha is like."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.pipeline.studies.lora import LoRALinear

WIDTH = 128
RATE = 1e-4


def layer_and_loss(r: int, lora_alpha: float, seed: int = 0) -> tuple[LoRALinear, Tensor, Tensor]:
    """A layer to train, its inputs, and the outputs of another layer, which it is to imitate."""
    torch.manual_seed(seed)
    layer, other = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
    inputs = torch.randn(64, WIDTH)
    with torch.no_grad():
        return LoRALinear(layer, r, lora_alpha), inputs, other(inputs)


def trained(
    r: int, lora_alpha: float, steps: int, rates: tuple[float, float] = (RATE, RATE), seed: int = 0
) -> tuple[Tensor, float]:
    """The update after some steps of Adam, with one rate for A and one for B, and the gain."""
    layer, inputs, wanted = layer_and_loss(r, lora_alpha, seed)
    # Adam's eps only guards against a division by zero; here it would be the one thing that sees
    # the scale of a gradient.
    matrices = (layer.lora_A, layer.lora_B)
    groups = [{"params": [m], "lr": rate} for m, rate in zip(matrices, rates, strict=True)]
    adam = torch.optim.AdamW(groups, weight_decay=0, eps=1e-30)
    first = F.mse_loss(layer(inputs), wanted).item()
    for _ in range(steps):
        adam.zero_grad()
        F.mse_loss(layer(inputs), wanted).backward()
        adam.step()
    return layer.delta_weight().detach(), first - F.mse_loss(layer(inputs), wanted).item()


def mean_of_first_step(r: int, lora_alpha: float) -> tuple[float, float]:
    """Size and gain of the first step, over seeds."""
    runs = [trained(r, lora_alpha, steps=1, seed=seed) for seed in range(32)]
    sizes = torch.tensor([update.norm() for update, _ in runs])
    return sizes.mean().item(), sum(gain for _, gain in runs) / len(runs)


@pytest.mark.parametrize("r", [16, 64])
def test_at_one_alpha_a_larger_rank_makes_a_shorter_first_step_that_gains_as_much(r: int) -> None:
    size, gain = mean_of_first_step(1, 4)
    larger_size, larger_gain = mean_of_first_step(r, 4)
    assert larger_size == pytest.approx(size / r**0.5, rel=0.2)
    assert larger_gain == pytest.approx(gain, rel=0.1)


def test_with_alpha_by_the_root_of_r_the_first_steps_gain_grows() -> None:
    _, gain = mean_of_first_step(1, 4)
    _, larger_gain = mean_of_first_step(16, 4 * 16**0.5)
    assert larger_gain == pytest.approx(4 * gain, rel=0.1)


def test_half_the_alpha_is_half_the_rate_of_b_alone() -> None:
    half_alpha, _ = trained(8, 8, steps=100)
    half_b, _ = trained(8, 16, steps=100, rates=(RATE, RATE / 2))
    half_both, _ = trained(8, 16, steps=100, rates=(RATE / 2, RATE / 2))
    assert torch.equal(half_b, half_alpha)
    assert (half_both - half_alpha).norm() > 0.1 * half_alpha.norm()


def test_in_the_first_step_half_of_both_rates_is_the_same() -> None:
    half_alpha, _ = trained(8, 8, steps=1)
    half_both, _ = trained(8, 16, steps=1, rates=(RATE / 2, RATE / 2))
    assert torch.equal(half_both, half_alpha)
