"""Products of 8-bit integers, and channels that are shifted before: exercises 5 and 6."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12b.judging import Parts, far, first, form, wrong_number

OFF = 0.4  # of a step, at most, between a drawn number and its code: nothing is in the middle


def seeded(c: Choices) -> torch.Generator:
    return torch.Generator().manual_seed(c.integer(0, 9999))


# Exercise 5


def rows_near_codes(c: Choices, rows: int, width: int) -> Tensor:
    """Numbers near known codes; the largest of a row has the code 127 or -127."""
    generator = seeded(c)
    codes = torch.randint(-126, 127, (rows, width), generator=generator).double()
    codes += (torch.rand(rows, width, generator=generator).double() * 2 - 1) * OFF
    signs = torch.randint(0, 2, (rows, 1), generator=generator) * 2.0 - 1
    ends = torch.randint(0, width, (rows, 1), generator=generator)
    codes.scatter_(1, ends, 127 * signs.double())
    scales = 2.0 ** torch.randint(-12, 1, (rows, 1), generator=generator) * c.pick((1.0, 1.1))
    nothing = torch.randint(0, 8, (rows, 1), generator=generator) == 0
    return (codes * scales * ~nothing).float()


def draw_layer(c: Choices) -> Given:
    tokens, out, width = c.size(1, 6, 3), c.size(1, 6, 3), c.size(1, 40)
    if c.rarely(8):
        width = c.integer(300, 1200)
    sides = rows_near_codes(c, tokens, width), rows_near_codes(c, out, width)
    return Given(*(laid_out(side, c.pick(LAYOUTS)) for side in sides))


def eight_bit_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales, in float64, row by row."""
    scales = [max(map(abs, row)) / 127 or 1.0 for row in rows.double().tolist()]
    steps = torch.tensor(scales, dtype=torch.float64)[:, None]
    return (rows.double() / steps).round(), steps


def product_by_columns(inputs: Tensor, weight: Tensor) -> Parts:
    """The sums in float64, which holds whole numbers of 53 bits."""
    (x, x_steps), (w, w_steps) = eight_bit_rows(inputs), eight_bit_rows(weight)
    sums = sum((x[:, [i]] * w[:, i] for i in range(x.shape[1])), torch.zeros(1).double())
    return sums.int(), (sums * x_steps * w_steps.flatten()).float()


def wrong_product(expected: Parts, got: Any, given: Given) -> Fault | None:
    if fault := form(("sums", "outputs"), expected, got):
        return fault
    off = got[0].long() != expected[0].long()
    if fault := wrong_number("sums", "sums", expected[0], got[0], off):
        return fault
    off = far(got[1], expected[1])
    return wrong_number("outputs", "outputs", expected[1], got[1], off)


# Exercise 6


def draw_channels(c: Choices) -> Given:
    """Loud and quiet channels on both sides; some that are silent."""
    tokens, out, width = c.size(1, 8, 3), c.size(1, 8, 3), c.size(1, 20)
    generator = seeded(c)
    sides = []
    for rows in (tokens, out):
        strength = 4.0 ** torch.randint(-3, 4, (width,), generator=generator)
        side = (torch.randn(rows, width, generator=generator) * 100).round() / 100 * strength
        silent = torch.randint(0, 9, (width,), generator=generator) == 0
        sides.append(laid_out(side * ~silent, c.pick(LAYOUTS)))
    return Given(*sides, c.pick((0.5, 0.0, 1.0, 0.75, 0.3)))


def channel_by_channel(inputs: Tensor, weight: Tensor, alpha: float) -> Parts:
    x, w = inputs.double().clone(), weight.double().clone()
    for j in range(x.shape[1]):
        loud, heavy = (max(float(side[:, j].abs().max()), 1e-5) for side in (x, w))
        factor = loud**alpha * heavy**alpha / heavy
        x[:, j] /= factor
        w[:, j] *= factor
    return x.float(), w.float()


def wrong_shift(expected: Parts, got: Any, given: Given) -> Fault | None:
    """Whether the product is as before, and then whether the factors are the ones asked for."""
    names = ("inputs", "weight")
    if fault := form(names, expected, got):
        return fault
    inputs, weight, _ = given.args
    x, w = (part.double() for part in got)
    exact, mine = inputs.double() @ weight.double().T, x @ w.T
    size = inputs.double().abs() @ weight.double().abs().T  # sums can cancel
    off = ~((mine - exact).abs() <= 1e-4 * size)
    if fault := wrong_number("product", "(inputs @ weight.T)", exact, mine, off):
        return fault
    for name, right, part in zip(names, expected, got, strict=True):
        mask = far(part, right)
        place = first(mask)
        if place is not None:
            more = f", which was {float(dict(zip(names, given.args, strict=False))[name][place]):g}"
            return wrong_number("factors", name, right, part, mask, more)
    return None
