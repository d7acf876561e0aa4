"""Confidence intervals: against published values, and against samples drawn from known truths."""

from __future__ import annotations

import math

import pytest
import torch

from utils.pipeline.confidence import Z, loss_interval, ratio_interval, share_interval


def wilson_by_search(right: int, total: int) -> tuple[float, float]:
    """The definition: the shares p for which |right / total - p| is within Z standard errors."""
    shares = torch.linspace(0, 1, 1_000_001, dtype=torch.float64)
    agree = (right / total - shares).abs() <= Z * (shares * (1 - shares) / total).sqrt()
    inside = shares[agree | (shares == right / total)]
    return inside.min().item(), inside.max().item()


@pytest.mark.parametrize(("right", "total"), [(0, 10), (3, 10), (110, 120), (120, 120), (1, 1)])
def test_share_interval_is_wilsons(right: int, total: int) -> None:
    assert share_interval(right, total) == pytest.approx(wilson_by_search(right, total), abs=3e-6)


def test_loss_interval_is_wald_of_counts_with_a_half_added() -> None:
    """Cells both right, lost, won, both wrong: 100, 12, 3, 5, and one half more in each."""
    cells = [100.5, 12.5, 3.5, 5.5]
    total = sum(cells)
    shares = [cell / total for cell in cells]
    mean = shares[1] - shares[2]
    variance = sum(s * (x - mean) ** 2 for s, x in zip(shares, (0, 1, -1, 0), strict=True))
    half = 1.96 * math.sqrt(variance / total)
    assert loss_interval(12, 3, 120) == pytest.approx((mean - half, mean + half), abs=1e-12)


@pytest.mark.parametrize("loss", [0.0, 0.05, 0.12])
def test_the_true_loss_lies_inside_in_19_of_20_samples(loss: float) -> None:
    """120 messages at a time: 3 % won by luck, the loss and 3 % more lost."""
    generator = torch.Generator().manual_seed(0)
    chances = torch.tensor([loss + 0.03, 0.03, 0.94 - loss])
    draws = torch.multinomial(chances, 2000 * 120, replacement=True, generator=generator)
    samples = draws.view(2000, 120)
    inside = 0
    for sample in samples:
        low, high = loss_interval(int((sample == 0).sum()), int((sample == 1).sum()), 120)
        inside += low <= loss <= high
    assert 0.93 <= inside / 2000 <= 0.985


def test_intervals_stay_in_range_and_mirror() -> None:
    assert loss_interval(0, 0, 1)[1] <= 1
    assert loss_interval(5, 9, 50) == pytest.approx(
        tuple(-x for x in loss_interval(9, 5, 50)[::-1])
    )


@pytest.mark.parametrize(("right", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_shares(right: int, total: int) -> None:
    with pytest.raises(ValueError, match="expected 0 <= right <= total"):
        share_interval(right, total)


@pytest.mark.parametrize("counts", [(-1, 0, 5), (0, -1, 5), (3, 3, 5), (0, 0, 0)])
def test_impossible_losses(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="together are at most"):
        loss_interval(*counts)


def test_ratio_interval_is_that_of_the_mean_difference() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(4096, generator=generator) * 6
    ratio, low, high = ratio_interval(reference + 0.1, reference)
    assert ratio == pytest.approx(math.exp(0.1), rel=1e-5)  # perplexities differ by that factor
    assert high - low < 1e-4  # what is hard for both cancels
    noise = 0.5 * torch.randn(4096, generator=generator)
    ratio, low, high = ratio_interval(reference + noise, reference)
    assert math.log(high / low) == pytest.approx(2 * Z * 0.5 / 64, rel=0.2)
    assert low < ratio < high
    assert ratio_interval(reference + noise, reference) == (ratio, low, high)  # the same draws


def test_ratio_interval_leaves_out_what_fills_no_block() -> None:
    reference = torch.zeros(100)
    losses = reference.clone()
    losses[96:] = 50
    assert ratio_interval(losses, reference) == (1, 1, 1)


def test_ratio_interval_holds_the_truth_although_neighbours_depend() -> None:
    """Differences that stay alike for about five tokens; the truth is 1. Token by token, too
    narrow."""
    generator = torch.Generator().manual_seed(1)
    inside = {1: 0, 32: 0}
    for _ in range(200):
        drawn = torch.randn(2052, generator=generator)
        noise = drawn.unfold(0, 5, 1).mean(1)
        for block in inside:
            _, low, high = ratio_interval(noise, torch.zeros(2048), block=block, draws=400)
            inside[block] += low <= 1 <= high
    assert 0.9 < inside[32] / 200 < 0.98
    assert inside[1] / 200 < 0.8


def test_ratio_interval_refuses_other_tokens() -> None:
    with pytest.raises(ValueError, match="same tokens"):
        ratio_interval(torch.zeros(100), torch.zeros(99))
    with pytest.raises(ValueError, match="two blocks"):
        ratio_interval(torch.zeros(40), torch.zeros(40))
