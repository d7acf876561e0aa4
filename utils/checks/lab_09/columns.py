"""What GPTQ begins with, and its columns: exercises 9 and 10.

An answer is followed column by column, in float64, with the codes that it chose: two right answers
may round 2.5 steps to 2 or to 3. tests/checks/lab_09 holds this against elimination, which needs no
Cholesky factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import picture
from utils.checks.lab_09.parts import BITS, Parts, far, form, placed, seeded, sizes
from utils.quant import InputStats, inverse_cholesky, relative_error, rtn

NAMES = ("codes", "scales", "zeros")
HALF = 0.5 + 0.01  # steps; float32 adds up errors over the columns


# Exercise 9: what GPTQ begins with


def draw_inputs(c: Choices) -> Given:
    """Few tokens and many; channels that are dead, weak, strong, or cancel to 0."""
    tokens, width = sizes(c, 70, 40)
    tokens = c.integer(2049, 2200) if c.rarely(16) else tokens
    inputs = tensor(c, (tokens, width), layouts=("contiguous",))
    if c.rarely(2):
        kinds = torch.randint(0, 6, (width,), generator=seeded(c))
        inputs *= torch.tensor([1.0, 1.0, 0.0, 0.0, 1e-5, 1e3])[kinds]
    if c.rarely(5):
        inputs[:, 0] = (-1.0) ** torch.arange(tokens)  # its sum is 0, if tokens are even
    if c.rarely(5):
        inputs[0] = 0.0  # a token of zeros kills no channel
    weight = tensor(c, (c.size(1, 6), width))
    return Given(weight, *placed(c, inputs), c.pick((0.0, 0.05, 0.01, 0.1, 1.0)))


def ready_by_hand(weight: Tensor, inputs: Tensor, damp_percent: float) -> Parts:
    """Some tokens at a time, in float64."""
    n, width = inputs.shape
    hessian = torch.zeros(width, width, dtype=torch.float64)
    for tokens in inputs.double().split(7):
        hessian += (tokens[:, :, None] * tokens[:, None]).sum(0) * 2 / n
    ready = weight.clone()
    for channel in range(width):
        if not inputs[:, channel].any():
            ready[:, channel] = 0
            hessian[channel, channel] = 1
    damping = damp_percent * sum(hessian.diagonal().tolist()) / width
    for channel in range(width):
        hessian[channel, channel] += damping
    return ready, hessian.float()


def wrong_hessian(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Sums of products can cancel: what float32 knows of them depends on the two channels."""
    size = given.args[1].double().square().mean(0).sqrt()
    return far(got[1], expected[1], 1e-5 * size[:, None] * size)


# Exercise 10: column by column


def correlated(tokens: int, width: int, generator: torch.Generator) -> Tensor:
    """Inputs that vary together, as those of a real layer do, and not all equally strongly."""
    mixing = torch.randn(width, width, generator=generator) + 0.8
    strength = torch.linspace(0.3, 2.0, width)[torch.randperm(width, generator=generator)]
    return torch.randn(tokens, width, generator=generator) @ mixing * strength / width**0.5


def draw_columns(c: Choices) -> Given:
    """One column and many, one group and many; Hessians of any size, some without correlation."""
    group_size, groups, out = c.size(1, 10), c.size(1, 4), c.size(1, 6)
    if c.rarely(12):  # beyond blocks of 64 and 128
        group_size = c.pick((16, 1, 72))
        groups, out = c.integer(145, 190) // group_size, c.pick((1, 3, 130))
    width = group_size * groups
    weight, generator = tensor(c, (out, width)), seeded(c)
    inputs, kind = correlated(4 * width, width, generator), c.pick(("some", "some", "all", "none"))
    if kind == "all":  # the channels are nearly one: quiet ones move far for the loud ones' errors
        inputs = 0.1 * inputs + inputs[:, :1] * inputs[0]
    hessian = InputStats.of(inputs).hessian
    if kind == "none":  # no error reaches another column
        hessian = hessian.diagonal().diag()
    hessian.diagonal().add_(0.05 * hessian.diagonal().mean())
    if c.rarely(4):  # columns of 0, and a whole group of them
        weight[:, c.integer(0, width - 1)] = 0
        empty = group_size * c.integer(0, groups - 1)
        weight[:, empty : empty + group_size * c.integer(0, 1)] = 0
    upper = inverse_cholesky(hessian * c.pick((1.0, 1.0, 1e-4, 1e4)), 0.0)
    return Given(weight, *placed(c, upper), c.pick(BITS), group_size)


def followed(
    weight: Tensor, upper: Tensor, bits: int, group_size: int, codes: Tensor | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Of each column: its number, its group's scale, and its place among the codes.

    The later columns move by the error of `codes`, or of the nearest ones.
    """
    w, u = weight.double().clone(), upper.double()
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    for i in range(w.shape[1]):
        if i % group_size == 0:
            scale = 2 * w[:, i : i + group_size].abs().amax(1) / top
            scale[scale == 0] = 1.0
        place = (w[:, i] / scale + middle).clamp(0, top)
        yield i, scale, place
        chosen = place.round() if codes is None else codes[:, i].double()
        error = (w[:, i] - (chosen - middle) * scale) / u[i, i]
        w[:, i + 1 :] -= error[:, None] * u[i, i + 1 :]


def in_float64(weight: Tensor, upper: Tensor, bits: int, group_size: int) -> Parts:
    """For the form of an answer, and its picture: `wrong_column` follows its own codes."""
    columns = [*followed(weight, upper, bits, group_size)]
    codes = torch.stack([place.round() for _, _, place in columns], 1).to(torch.uint8)
    scales = torch.stack([scale for _, scale, _ in columns[::group_size]], 1).float()
    return codes, scales, torch.full_like(scales, 2 ** (bits - 1))


def wrong_column(expected: Parts, got: Any, given: Given) -> Fault | None:
    """The first column whose scale, zero or code is wrong; the columns before it are right."""
    if fault := form(NAMES, expected, got):
        return fault
    weight, upper, bits, group_size = given.args
    codes, scales, zeros = (part.double() for part in got)
    middle = torch.tensor(2.0 ** (bits - 1)).expand(len(weight))
    for i, scale, place in followed(weight, upper, bits, group_size, codes):
        group = i // group_size
        allowed = 1e-3 * scale + 1e-6 * weight.abs().amax(1)
        for name, right, mine, off in (
            ("scales", scale, scales[:, group], allowed),
            ("zeros", middle, zeros[:, group], 0.0),
            ("codes", place, codes[:, i], HALF),
        ):
            far = ~((mine - right).abs() <= off)
            if not far.any():
                continue
            row, at = int(far.nonzero()[0]), i if name == "codes" else group
            right = right.round() if name == "codes" else right
            told = tuple(f"`{name}[{row}, {at}]` = {float(t[row]):.5g}" for t in (right, mine))
            return Fault(
                name,
                f"output {row}, {'column' if name == 'codes' else 'group'} {at}",
                float(right[row]),
                float(mine[row]),
                words=(told[0], told[1]),
                picture=lambda: _draw(given, expected, got),
            )
    return None


def _draw(given: Given, expected: Parts, got: Parts) -> tuple[Figure | None, str]:
    return picture.both_errors(given.args[0], expected, got)


def praise_columns(answer: Callable[..., Parts]) -> Passed:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 64, generator=generator)
    stats = InputStats.of(correlated(256, 64, generator))
    nearest = rtn(weight, bits=3, group_size=16).dequantize()
    upper = inverse_cholesky(stats.hessian, 0.05)
    yours = picture.read(*answer(weight.clone(), upper, 3, 16))
    before, after = (relative_error(weight, back.float(), stats) for back in (nearest, yours))
    moved = (yours - weight).square().mean() / (nearest - weight).square().mean()
    title, names = "With GPTQ, most groups of weights are further off", ("rounding", "your GPTQ")
    return Passed(
        "Right column by column, up to 190 columns. On a layer of 8 x 64 weights with 3 bits, the "
        f"error of the *weights* is {moved:.1f} times that of rounding, and the error of the "
        f"*outputs* is only {after / before:.2f} times that of rounding.",
        picture.group_errors(weight, [nearest, yours], 16, title, names),
        "The error of each group: rounding on the left, your GPTQ on the right.",
    )
