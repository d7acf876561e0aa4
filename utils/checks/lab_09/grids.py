"""A group's grid, and its codes: exercises 1 to 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import picture
from utils.checks.lab_09.parts import (
    BITS,
    HALF,
    MANY,
    Parts,
    far,
    form,
    mixed_groups,
    placed,
    seeded,
    sizes,
    spread,
    where,
)
from utils.quant import find_params

# Exercise 1: the grid of a group


def draw_groups(c: Choices) -> Given:
    bits, sym = c.pick(BITS), c.pick((True, False))
    first = [c.size(1, 4, 3) for _ in range(c.integer(0, 3))]
    if first and c.rarely(12):
        first = [c.integer(*MANY)]
    return Given(mixed_groups(c, [*first, c.size(1, 140)]), bits, sym)


def exact_params(group: list[float], bits: int, sym: bool) -> tuple[float, float]:
    """Scale, and zero before it is rounded, of one group, in plain Python numbers."""
    top = 2**bits - 1
    if sym:
        return max(abs(w) for w in group) * 2 / top or 1.0, 2.0 ** (bits - 1)
    low, high = min([*group, 0.0]), max([*group, 0.0])
    scale = (high - low) / top or 1.0
    return scale, -low / scale


def exact(groups: Tensor, bits: int, sym: bool) -> Tensor:
    flat = groups.reshape(-1, groups.shape[-1]).tolist()
    pairs = [exact_params(group, bits, sym) for group in flat]
    return torch.tensor(pairs, dtype=torch.float64).view(*groups.shape[:-1], 2)


def params_by_hand(groups: Tensor, bits: int, sym: bool) -> Parts:
    found, zeros = exact(groups, bits, sym).unbind(-1)
    return found.float(), zeros.round().float()


def wrong_zeros(given: Given, expected: Parts, got: Parts) -> Tensor:
    """The nearest whole number is right; both, if the exact one lies between two."""
    right, zeros = exact(*given.args)[..., 1], got[1].double()
    return ~((zeros == zeros.round()) & ((zeros - right).abs() <= HALF))


# Exercise 2: weights to codes


def draw_grid(c: Choices, bits: int) -> tuple[Tensor, Tensor, int, torch.Generator]:
    """Scales and zeros [out, groups] that all differ, and the size of a group."""
    (out, groups, size), generator = sizes(c, 6, 6, 70), seeded(c)
    steps = (1 + torch.randint(0, 40, (out, groups), generator=generator)) / 4
    zeros = torch.randint(0, 2**bits, (out, groups), generator=generator).float()
    return steps * c.pick((1.0, 1.0, 1e-6, 1e4)), zeros, size, generator


def draw_weight(c: Choices) -> Given:
    """Weights near known codes; some between two, some beyond both ends, a few far beyond."""
    bits = c.pick(BITS)
    steps, zeros, size, generator = draw_grid(c, bits)
    shape = (*steps.shape, size)
    aim = torch.randint(-3, 2**bits + 3, shape, generator=generator)
    off = torch.randint(-5, 6, shape, generator=generator) / 10
    far_out = torch.rand(shape, generator=generator) < c.pick((0.0, 0.1))
    # The second number is beyond any int32, the third beyond any int64.
    times = torch.where(far_out, c.pick((1e5, 1e12, 1e21)), 1.0)
    weight = ((aim + off - zeros[..., None]) * times * steps[..., None]).flatten(1)
    return Given(*placed(c, weight, steps, zeros), bits)


def steps_of(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """Where each weight lies among the codes, in float64, between the ends."""
    group = torch.arange(weight.shape[1]) // (weight.shape[1] // scales.shape[1])
    steps = weight.double() / scales.double()[:, group] + zeros.double()[:, group]
    return steps.clamp(0, 2**bits - 1)


def nearest_codes(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    return steps_of(weight, scales, zeros, bits).round().to(torch.uint8)


def not_nearest(given: Given, expected: Parts, got: Parts) -> Tensor:
    return (got[0].double() - steps_of(*given.args)).abs() > HALF


def draw_errors(given: Given, expected: Parts, got: Parts) -> tuple[Figure | None, str]:
    weight, *grid, _ = given.args
    return picture.both_errors(weight, (expected[0], *grid), (got[0], *grid))


def praise_codes(answer: Callable[..., Tensor]) -> Passed:
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    with_outlier = weight.clone()
    with_outlier[2, 70] = 12.0
    errors = []
    for one in (weight, with_outlier):
        grid = find_params(one.unflatten(1, (-1, 32)), 4, sym=True)
        errors.append(picture.read(answer(one.clone(), *grid, 4), *grid) - one)
    figure = picture.group_errors(
        weight,
        [weight + error for error in errors],
        32,
        "One large weight makes the grid of its whole group coarse",
        ("normally distributed weights", "one of them replaced by 12"),
    )
    return Passed(
        "Each weight has the nearest code of its own group's grid, and no code leaves the grid. "
        "The picture shows why groups are small: an outlier spoils only its own group.",
        figure,
        "The error of each group: without an outlier, and with one.",
    )


# Exercise 3: codes to weights


def draw_codes(c: Choices) -> Given:
    bits = c.pick(BITS)
    steps, zeros, size, generator = draw_grid(c, bits)
    shape = (len(steps), steps.shape[1] * size)
    q = torch.randint(0, 2**bits, shape, generator=generator).to(torch.uint8)
    return Given(*placed(c, q, steps, zeros.to(c.pick((torch.uint8, torch.float32)))))


def read_back(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Group by group, in float64."""
    groups = [
        (part.double() - zeros[:, [g]].double()) * scales[:, [g]].double()
        for g, part in enumerate(q.split(q.shape[1] // scales.shape[1], dim=1))
    ]
    return torch.cat(groups, dim=1).float()


def off_the_grid(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Beside the number itself, a hundredth of a percent of a step is nothing."""
    return far(got[0], expected[0], 1e-4 * spread(given.args[1], got[0].shape[1]).double())


# Exercise 4: a grid of one's own

GAINS = {2: 0.7, 3: 0.9}  # of the error of exercise 1, at most; by bits


class Normal(Given):
    """Groups of normally distributed weights, of which the text promises a gain."""


def draw_own(c: Choices) -> Given:
    if c.rarely(3):
        weights = torch.randn(c.integer(100, 140), 64, generator=seeded(c))
        return Normal(weights * c.pick((1.0, 0.02, 1e4)), c.pick((2, 3)))
    shape = [c.size(1, 4, 3) for _ in range(c.integer(0, 2))]
    return Given(mixed_groups(c, [*shape, c.size(1, 70)]), c.pick(BITS))


def squared_errors(groups: Tensor, bits: int, scales: Tensor, zeros: Tensor) -> Tensor:
    """What rounding to the nearest code of this grid loses, per group, in float64."""
    w, s, z = groups.double(), scales.double()[..., None], zeros.double()[..., None]
    codes = (torch.round(w / s) + z).clamp(0, 2**bits - 1)
    return ((codes - z) * s - w).square().sum(-1)


def errors_of_the_range(groups: Tensor, bits: int) -> Tensor:
    """With the asymmetric grid of exercise 1; the larger error, where two zeros are right."""
    found, zero = exact(groups, bits, False).unbind(-1)
    both = [(zero + nudge).round().clamp(0, 2**bits - 1) for nudge in (-1e-3, 1e-3)]
    return torch.stack([squared_errors(groups, bits, found, z) for z in both]).amax(0)


def broken_promise_of_grids(expected: Parts, got: Any, given: Given) -> Fault | None:
    """Any grid will do that can be stored, is never worse, and gains where it was promised."""
    if fault := form(("scales", "zeros"), expected, got):
        return fault
    (groups, bits), (found, zeros) = given.args, got
    bad = ~((found > 0) & found.isfinite())
    if bad.any():
        return Fault("scales", "", "each above 0, and finite", found, where("scales", bad))
    bad = ~((zeros == zeros.round()) & (zeros >= 0) & (zeros < 2**bits))
    if bad.any():
        return Fault("zeros", "", f"whole numbers, 0 to {2**bits - 1}", zeros, where("zeros", bad))
    before, mine = errors_of_the_range(groups, bits), squared_errors(groups, bits, found, zeros)
    worse = mine > 1.001 * before + 1e-9 * groups.double().square().sum(-1)
    if worse.any():
        place = tuple(worse.nonzero()[0].tolist())
        at = f"group {list(place)}" if place else ""
        words = (f"a squared error of at most {before[place]:.5g}", f"{mine[place]:.5g}")
        return Fault("worse", at, None, float(mine[place] / before[place]), words=words)
    share = float(mine.sum() / before.sum()) if isinstance(given, Normal) else 0.0
    if share > GAINS.get(bits, 1.0):
        words = (f"at most {GAINS[bits]:g} times the squared error of exercise 1", f"{share:.3f}")
        return Fault("gain", "", None, share, words=words)
    return None


def praise_grids(answer: Callable[..., Parts]) -> Passed:
    groups, shares = torch.randn(200, 64, generator=torch.Generator().manual_seed(0)), {}
    for bits in (2, 3, 4):
        mine = squared_errors(groups, bits, *answer(groups.clone(), bits)).sum()
        shares[f"{bits} bits"] = float(mine / errors_of_the_range(groups, bits).sum())
    says = ", ".join(f"{share:.2f} with {bits}" for bits, share in shares.items())
    title, label = "A grid that gives up the largest weights", "squared error"
    return Passed(
        "Your grids can be stored, and no group is worse off. The squared error on 200 groups of "
        f"normally distributed weights, beside that of the full range (1): {says}.",
        picture.one_chart(
            4.4,
            [*shares],
            {"": [*shares.values()]},
            title,
            label,
            digits="%.2f",
            whole="full range",
        ),
        f"The squared error beside that of the full range: {says}.",
    )
