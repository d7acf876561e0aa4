"""What lab 09 says of a group's grid: exercises 1 (a rule) and 12 (a design of one's own)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.parts import HALF, Parts, form, in_parts, mixed_groups, where

# Exercise 1

BITS = (4, 3, 2, 8, 5, 6, 7)


def draw_groups(c: Choices) -> Given:
    bits, sym = c.pick(BITS), c.pick((True, False))
    shape = [c.size(1, 4, 3) for _ in range(c.integer(0, 3))]
    return Given(mixed_groups(c, [*shape, c.size(1, 140)]), bits, sym)


def exact_params(group: list[float], bits: int, sym: bool) -> tuple[float, float]:
    """Scale, and zero before it is rounded, of one group, in plain Python numbers."""
    top = 2**bits - 1
    if sym:
        return max(abs(w) for w in group) * 2 / top or 1.0, 2.0 ** (bits - 1)
    low, high = min([*group, 0.0]), max([*group, 0.0])
    scale = (high - low) / top or 1.0
    return scale, -low / scale


def _exact(groups: Tensor, bits: int, sym: bool) -> Tensor:
    flat = groups.reshape(-1, groups.shape[-1]).tolist()
    pairs = [exact_params(group, bits, sym) for group in flat]
    return torch.tensor(pairs, dtype=torch.float64).view(*groups.shape[:-1], 2)


def params_by_hand(groups: Tensor, bits: int, sym: bool) -> Parts:
    scales, zeros = _exact(groups, bits, sym).unbind(-1)
    return scales.float(), zeros.round().float()


def _zeros(given: Given, expected: Parts, got: Parts) -> Tensor:
    """The nearest whole number; both, if the exact one lies between two."""
    exact, zeros = _exact(*given.args)[..., 1], got[1].double()
    return ~((zeros == zeros.round()) & ((zeros - exact).abs() <= HALF))


def params(
    groups: Tensor,
    bits: int,
    sym: bool,
    *,
    steps: tuple[int, int] = (-1, -1),
    with_zero: bool = True,
    rounding: Callable[[Tensor], Tensor] = torch.round,
    guard: float = 1.0,
    least: float = 0.0,
    magnitude: bool = True,
    middle: float = 0.0,
    dim: int | None = -1,
) -> Parts:
    """`find_params` with one switch per known mistake. It is never the oracle.

    `steps` is added to 2^bits to get the number of steps: symmetric, asymmetric. `guard` is the
    scale of a group of zeros. With `dim` None, each group has the range of the whole tensor.
    """
    low, high = groups.amin(-1), groups.amax(-1)
    if dim is None:
        low, high = low.min().expand_as(low), high.max().expand_as(high)
    if sym:
        span = 2 * (torch.maximum(high, -low) if magnitude else high)
    else:
        if with_zero:
            low, high = low.clamp(max=0), high.clamp(min=0)
        span = high - low
    scales = span / (2**bits + steps[0 if sym else 1])
    scales = scales.clamp(min=least) if least else torch.where(scales == 0, guard, scales)
    if sym:
        return scales, torch.full_like(scales, 2 ** (bits - 1) + middle)
    return scales, rounding(-low / scales)


def _but(**switches: Any) -> Callable[..., Parts]:
    return lambda groups, bits, sym: params(groups, bits, sym, **switches)


_STEPS = "How many gaps lie between 16 fence posts?"
_WIDE = "The symmetric range goes from -max|w| to +max|w|; it is 2 max|w| wide."
FIND_PARAMS = Contract(
    inputs=draw_groups,
    judge=Returns(params_by_hand, wrong=in_parts(("scales", "zeros"), zeros=_zeros)),
    passed="Symmetric and asymmetric, 2 to 8 bits, groups of zeros, of tiny and of huge weights, "
    "and groups all above or all below 0: each has the grid that it needs.",
    clauses={
        "form": Clause(
            "{says}", "One number per group: the shape of `groups` without its last dimension."
        ),
        "scales": Clause(
            "{says} A group's scale is the range that its codes cover, divided by the "
            "number of steps between them. Only a group of zeros has the scale 1.",
            "Which range do the codes cover here? It must hold 0.0.",
        ),
        "zeros": Clause(
            "{says} The zero is the code that is read back as 0.0: a whole number, the "
            "middle code if the grid is symmetric.",
            "How many steps is 0.0 above the lowest code?",
        ),
    },
    mistakes=(
        mistake(
            "The range is divided by 2^bits. Between 2^bits codes there are only 2^bits - 1 steps.",
            _STEPS,
            _but(steps=(0, 0)),
        ),
        mistake(
            "Your symmetric scale is max|w| / (2^(bits-1) - 1), as for signed codes -7..7. "
            "Here all 2^bits codes are used.",
            _WIDE,
            _but(steps=(-2, -1)),
        ),
        mistake(
            "Your symmetric scale is max|w| / 2^(bits-1), as for signed codes -8..8. There is "
            "one step fewer between the codes.",
            _WIDE,
            _but(steps=(0, -1)),
        ),
        mistake(
            "The asymmetric range does not include 0. Where all weights are above 0, or all "
            "below, the zero falls outside the codes, and 0 is not read back as 0.",
            "`.clamp(max=0)` and `.clamp(min=0)`.",
            _but(with_zero=False),
        ),
        mistake(
            "The zero is not rounded. It is stored as a code, so it must be a whole number.",
            "`torch.round`.",
            _but(rounding=lambda z: z),
        ),
        mistake(
            "The zero is cut off, not rounded to the nearest whole number.",
            "`torch.round`; `.int()`, `floor` and `trunc` all cut.",
            _but(rounding=torch.floor),
        ),
        mistake(
            "A group of zeros gets the scale 0, and weights are divided by the scale later.",
            "Where the range is 0, the scale is 1: `torch.where`.",
            _but(guard=0.0),
            _but(guard=0.0, rounding=torch.nan_to_num),
        ),
        mistake(
            "A smallest scale is set for all groups. It is wrong for a group of zeros, whose "
            "scale is 1, and for one of tiny weights.",
            "`torch.where` replaces zeros, and nothing else.",
            *(_but(least=least) for least in (1e-4, 1e-5, 1e-6, 1e-8)),
        ),
        mistake(
            "Your symmetric scale looks at the largest weight only. A negative one can be "
            "larger in magnitude.",
            "`.abs()` first.",
            _but(magnitude=False),
        ),
        mistake(
            "Your symmetric zero is one too small: 7 of 0..15.",
            "With 4 bits the zero is 8.",
            _but(middle=-1.0),
        ),
        mistake(
            "Every group has the range of the whole tensor. Each has a range of its own.",
            "Along which dimension lie the weights of a group?",
            _but(dim=None),
        ),
    ),
)

# Exercise 12

GAIN = {2: 0.7, 3: 0.9}  # of the error of exercise 1, at most; by bits


class Normal(Given):
    """Groups of normally distributed weights, of which the text promises a gain."""


def draw_own(c: Choices) -> Given:
    if c.rarely(3):
        generator = torch.Generator().manual_seed(c.integer(0, 9999))
        weights = torch.randn(c.integer(100, 140), 64, generator=generator)
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
    scales, zero = _exact(groups, bits, False).unbind(-1)
    both = [(zero + nudge).round().clamp(0, 2**bits - 1) for nudge in (-1e-3, 1e-3)]
    return torch.stack([squared_errors(groups, bits, scales, z) for z in both]).amax(0)


def _broken_promise(expected: Parts, got: Any, given: Given) -> Fault | None:
    """Any grid will do that can be stored, is never worse, and gains where it was promised."""
    fault = form(("scales", "zeros"), expected, got)
    if fault is not None:
        return fault
    groups, bits = given.args
    scales, zeros = got
    bad = ~((scales > 0) & scales.isfinite())
    if bad.any():
        return Fault("scales", "", "each above 0, and finite", scales, where("scales", bad))
    bad = ~((zeros == zeros.round()) & (zeros >= 0) & (zeros < 2**bits))
    if bad.any():
        return Fault("zeros", "", f"whole numbers, 0 to {2**bits - 1}", zeros, where("zeros", bad))
    before, mine = errors_of_the_range(groups, bits), squared_errors(groups, bits, scales, zeros)
    slack = 1e-9 * groups.double().square().sum(-1)
    worse = mine > 1.001 * before + slack
    if worse.any():
        place = tuple(worse.nonzero()[0].tolist())
        words = (f"a squared error of at most {before[place]:.5g}", f"{mine[place]:.5g}")
        return Fault(
            "worse",
            f"group {list(place)}" if place else "",
            None,
            float(mine[place] / before[place]),
            words=words,
        )
    share = float(mine.sum() / before.sum()) if isinstance(given, Normal) else 0.0
    if isinstance(given, Normal) and share > GAIN[bits]:
        words = (f"at most {GAIN[bits]:g} times the squared error of exercise 1", f"{share:.3f}")
        return Fault("gain", "", None, share, words=words)
    return None


def _of_range(groups: Tensor, bits: int) -> Parts:
    return params_by_hand(groups, bits, False)


def _clipped(share: float, **switches: Any) -> Callable[..., Parts]:
    """The same share of the range for all groups."""

    def fit(groups: Tensor, bits: int) -> Parts:
        scales, zeros = params(groups * share, bits, False, **switches)
        return torch.where((groups == 0).all(-1), 1.0, scales), zeros

    return fit


def _passed(function: Callable[..., Parts]) -> Passed:
    groups = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    rows = {}
    for bits in (2, 3, 4):
        scales, zeros = function(groups.clone(), bits)
        mine = squared_errors(groups, bits, scales, zeros).sum()
        rows[bits] = float(mine / errors_of_the_range(groups, bits).sum())
    shares = ", ".join(f"{share:.2f} times at {bits} bits" for bits, share in rows.items())
    return Passed(
        "Your grids can be stored, and no group is worse off. On 200 groups of normally "
        f"distributed weights, the squared error is {shares} that of the full range.",
        pictures.shares(rows),
        f"The squared error beside that of the full range: {shares}.",
    )


FIT_PARAMS = Contract(
    inputs=draw_own,
    judge=Returns(_of_range, wrong=_broken_promise),
    passed=_passed,
    clauses={
        "form": Clause("{says}", "The same shapes as in exercise 1, both float32."),
        "scales": Clause(
            "{says} One must be able to divide by a scale.",
            "What does your search give for a group of zeros?",
        ),
        "zeros": Clause(
            "{says} The zero is stored as a code, so that 0.0 is on the grid.",
            "When the range changes, the zero does, too.",
        ),
        "worse": Clause(
            "This group is worse off than with the grid of exercise 1. No group may be.",
            "Let each group choose by itself, and let the grid of exercise 1 "
            "be among the choices. Do you measure with codes that are clamped?",
        ),
        "gain": Clause(
            "On normally distributed weights, your grids gain too little.",
            "What does one large weight cost the others? Try grids that do not reach it.",
        ),
    },
    mistakes=(
        mistake(
            "These are the grids of the full range. They reach the largest weight, and are "
            "coarse for all others.",
            "Try grids that do not reach it.",
            _of_range,
        ),
        mistake(
            "All groups lose the same share of their range. Where the weights lie at both "
            "ends, that is a loss.",
            "Let each group choose by itself.",
            *(_clipped(share) for share in (0.9, 0.8, 0.75, 0.7, 0.6, 0.5)),
        ),
        mistake(
            "The grids are symmetric. In a group that lies on one side of 0, half of the codes "
            "are never used.",
            "Begin with the other one.",
            lambda g, b: params(g, b, True),
        ),
        mistake(
            "Your range does not include 0, so that the zero is no code.",
            "As in exercise 1.",
            _clipped(1.0, with_zero=False),
        ),
    ),
)
