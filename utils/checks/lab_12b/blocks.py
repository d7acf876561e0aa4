"""Blocks of four-bit floats with their scales: exercises 3 and 4.

An answer's codes are judged by its own scales, once those are right: where a scale isn't a power of
two, two right answers may round a weight between two codes to either.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12b.floats import E2M1, E4M3, nearest
from utils.checks.lab_12b.judging import Parts, at, far, first, form, wrong_number

FP4 = torch.tensor(E2M1.values(), dtype=torch.float64)
FP8 = E4M3.values()[: E4M3.last + 1]  # those that are not negative
# Largest magnitudes of a block, over a power of two; up to 1.75 stays below the next one.
LARGEST = (1.0, 1.25, 1.5, 1.71875, 1.75, 1.9375, 1.9921875)
NEAR = 1e-5  # of the largest FP4 number: what float32 may do to a quotient


def draw_weight(c: Choices, size: int) -> Given:
    """Blocks whose largest magnitudes differ; some blocks are zeros, some very small."""
    rows, blocks = c.size(1, 4, 3), c.size(1, 4, 3)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))

    def drawn(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    weight = drawn(-255, 256, rows, blocks, size) / 256
    weight.scatter_(-1, drawn(0, size, rows, blocks, 1), 1.0 - 2.0 * drawn(0, 2, rows, blocks, 1))
    tops = torch.tensor(LARGEST)[drawn(0, len(LARGEST), rows, blocks, 1)]
    powers = drawn(-6, 4, rows, blocks, 1) - 18 * (drawn(0, 6, rows, blocks, 1) == 0)
    weight *= tops * 2.0**powers * (drawn(0, 7, rows, blocks, 1) > 0)
    weight *= c.pick((1.0, 1.0, 0.05, 2.0**-30, 2.0**30)) * (not c.rarely(10))
    return Given(laid_out(weight.flatten(1), c.pick(LAYOUTS)))


def draw_mx(c: Choices) -> Given:
    return draw_weight(c, 32)


def draw_nv(c: Choices) -> Given:
    return draw_weight(c, 16)


def not_a_code(name: str, got: Tensor, last: int) -> Fault | None:
    """Of the first number that is no code at all."""
    place = first((got.long() < 0) | (got.long() > last))
    if place is None:
        return None
    mine = int(got[place])
    return Fault(f"{name}: range", at(name, place), None, mine, words=(f"0 to {last}", f"{mine}"))


def in_units(weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Each weight's scale, and how many of it the weight is; float64 [out, in]."""
    wide = scales.repeat_interleave(weight.shape[1] // scales.shape[1], 1)
    return wide, torch.where(wide > 0, weight.double() / wide, 0.0).clamp(-6, 6)


def right_codes(weight: Tensor, scales: Tensor) -> Tensor:
    """Of the nearest FP4 numbers, by looking at all of them; int64 [out, in]."""
    _, wanted = in_units(weight, scales)
    magnitudes = FP4[:8].tolist()
    places = [nearest(value, magnitudes) for value in wanted.flatten().tolist()]
    return torch.tensor(places).view(weight.shape) + 8 * (wanted < 0)


def wrong_elements(weight: Tensor, codes: Tensor, scales: Tensor, tie: bool) -> Fault | None:
    """The first code that isn't nearest to its weight over its scale; 0 where the scale is 0.

    Args:
        scales: float64 [out, blocks].
        tie: whether the even code is asked for, where two are equally near.
    """
    wide, wanted = in_units(weight, scales)
    found, right = FP4[codes.long()], FP4[right_codes(weight, scales)]
    off = (found - wanted).abs() - (right - wanted).abs()
    place = first((found != right) if tie else (off > 6 * NEAR))
    if place is None:
        return None
    expected, mine = float(right[place]) + 0.0, float(found[place])
    where = (
        f"{at('weight', place)} is {float(weight[place]):.6g}, its scale {float(wide[place]):.6g}"
    )
    clause = "codes: tie" if abs(float(off[place])) < NEAR else "codes"
    if float(wide[place]) == 0 or not weight[place]:
        clause = "codes: zeros"
    return Fault(clause, where, expected, mine, words=(f"a code of {expected:g}", f"{mine:g}"))


# Exercise 3


def exponent_of(largest: float) -> int:
    """Of the power of two that brings it to 4 or 6, found by trying."""
    [found] = (k for k in range(-90, 90) if 3.5 <= largest / 2.0**k < 7)
    return found


def mx_by_trying(weight: Tensor) -> Parts:
    largest = weight.double().unflatten(1, (-1, 32)).abs().amax(-1)
    powers = [exponent_of(x) if x else 0 for x in largest.flatten().tolist()]
    exponents = torch.tensor(powers).view(largest.shape)
    return right_codes(weight, 2.0 ** exponents.double()), exponents + 127


def wrong_mx(expected: Parts, got: Any, given: Given) -> Fault | None:
    names = ("codes", "scales")
    if fault := form(names, expected, got) or not_a_code("scales", got[1], 254):
        return fault
    [weight], (codes, scales) = given.args, got
    largest = weight.unflatten(1, (-1, 32)).abs().amax(-1)
    place = first((scales.long() != expected[1]) & (largest > 0))
    if place is not None:
        right, mine = int(expected[1][place]), int(scales[place])
        where = f"{at('scales', place)}; the block's largest magnitude is {float(largest[place]):g}"
        words = f"{right}, for 2^{right - 127}", f"{mine}, for 2^{mine - 127}"
        return Fault("scales", where, right, mine, words=words)
    powers = 2.0 ** (scales.double() - 127)
    return not_a_code("codes", codes, 15) or wrong_elements(weight, codes, powers, tie=True)


# Exercise 4


def global_of(weight: Tensor) -> float:
    top = float(weight.double().abs().max())
    return 448 * 6 / top if top else 1.0


def nv_by_trying(weight: Tensor) -> Parts:
    largest = weight.double().unflatten(1, (-1, 16)).abs().amax(-1) / 6 * global_of(weight)
    stored = torch.tensor([nearest(x, FP8) for x in largest.flatten().tolist()])
    stored = stored.view(largest.shape)
    scales = torch.tensor(FP8, dtype=torch.float64)[stored] / global_of(weight)
    return right_codes(weight, scales), stored, torch.tensor(global_of(weight))


def wrong_nv(expected: Parts, got: Any, given: Given) -> Fault | None:
    names = ("codes", "scales", "global_scale")
    if fault := form(names, expected, got):
        return fault
    [weight], (codes, scales, shared) = given.args, got
    if not weight.any():
        if not (float(shared) > 0 and math.isfinite(float(shared))):
            words = "a finite number above 0, for a weight of zeros", f"{float(shared):g}"
            return Fault("global_scale: zeros", "", None, float(shared), words=words)
    elif fault := wrong_number(
        "global_scale", names[2], expected[2], shared, far(shared, expected[2])
    ):
        return fault
    if fault := not_a_code("scales", scales, E4M3.last) or not_a_code("codes", codes, 15):
        return fault
    values = torch.tensor(FP8, dtype=torch.float64)
    wanted = weight.double().unflatten(1, (-1, 16)).abs().amax(-1) / 6 * global_of(weight)
    off = [(values[part.long()] - wanted).abs() for part in (scales, expected[1])]
    place = first(off[0] > off[1] + NEAR * wanted)
    if place is not None:
        right, mine = (int(part[place]) for part in (expected[1], scales))
        where = f"{at('scales', place)}, to stand for {float(wanted[place]):.6g}"
        wanted_code, came = (f"code {code}, for {FP8[code]:g}" for code in (right, mine))
        return Fault("scales", where, right, mine, words=(wanted_code, came))
    return wrong_elements(weight, codes, values[scales.long()] / global_of(weight), tie=False)
