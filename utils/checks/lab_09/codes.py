"""What lab 09 says of codes: exercises 2 (weights to codes) and 3 (codes to weights)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.grid import BITS
from utils.checks.lab_09.parts import HALF, Parts, far, in_parts, spread
from utils.quant import find_params

# Exercise 2


def draw_grid(c: Choices, bits: int) -> tuple[Tensor, Tensor, int]:
    """Scales and zeros [out, groups] that all differ, and the size of a group."""
    out, groups, size = c.size(1, 6), c.size(1, 6), c.size(1, 70)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    scales = (1 + torch.randint(0, 40, (out, groups), generator=generator)) / 4
    scales *= c.pick((1.0, 1.0, 1e-6, 1e4))
    zeros = torch.randint(0, 2**bits, (out, groups), generator=generator).float()
    return scales, zeros, size


def draw_weight(c: Choices) -> Given:
    """Weights near known codes; some between two, some beyond both ends, a few far beyond."""
    bits = c.pick(BITS)
    scales, zeros, size = draw_grid(c, bits)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    shape = (*scales.shape, size)
    aim = torch.randint(-3, 2**bits + 3, shape, generator=generator)
    off = torch.randint(-5, 6, shape, generator=generator) / 10
    steps = aim + off - zeros[..., None]
    far_out = torch.rand(shape, generator=generator) < c.pick((0.0, 0.1))
    times = torch.where(far_out, c.pick((1e5, 1e12)), 1.0)  # the second is beyond any int32
    weight = (steps * times * scales[..., None]).flatten(1)
    tensors = (laid_out(t, c.pick(LAYOUTS)) for t in (weight, scales, zeros))
    return Given(*tensors, bits)


def _steps(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """Where each weight lies among the codes, in float64, between the ends."""
    size = weight.shape[1] // scales.shape[1]
    group = torch.arange(weight.shape[1]) // size
    steps = weight.double() / scales.double()[:, group] + zeros.double()[:, group]
    return steps.clamp(0, 2**bits - 1)


def nearest_codes(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    return _steps(weight, scales, zeros, bits).round().to(torch.uint8)


def _not_nearest(given: Given, expected: Parts, got: Parts) -> Tensor:
    return (got[0].double() - _steps(*given.args)).abs() > HALF


def _codes(
    w: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bits: int,
    *,
    tiled: bool = False,
    sign: int = 1,
    rounding: Callable[[Tensor], Tensor] = torch.round,
    early: bool = False,
    top: int = 0,
    clamp: bool = True,
    power: int = 1,
    late: bool = False,
) -> Tensor:
    s, z = spread(scales, w.shape[1], tiled) ** power, spread(zeros, w.shape[1], tiled)
    if early:
        codes = (w / s).round().clamp(0, 2**bits - 1) + z
    else:
        codes = rounding(w / s + sign * z) if late else rounding(w / s) + sign * z
        if clamp:
            codes = codes.clamp(0, 2**bits - 1 + top)
    return codes.to(torch.int64).to(torch.uint8)


def _but(**switches: Any) -> Callable[..., Tensor]:
    return lambda *args: _codes(*args, **switches)


_NEIGHBOURS = (
    "A group is neighbours: `repeat_interleave(size, dim=1)` repeats each value size times in a "
    "row, `repeat` tiles. Or give the weight a dimension for the groups."
)


def read(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    width = codes.shape[1]
    return (codes.double() - spread(zeros, width)) * spread(scales, width)


def _draw_codes(given: Given, expected: Parts, got: Parts) -> tuple[Figure, str]:
    weight, scales, zeros, _ = given.args
    right, yours = (read(codes, scales, zeros) for codes in (expected[0], got[0]))
    size = weight.shape[1] // scales.shape[1]
    title = "What is read back from the codes: error of each group"
    figure = pictures.group_errors(weight, right, yours, size, title)
    return figure, "The error of each group: expected beside yours."


def _outlier(function: Callable[..., Tensor]) -> Passed:
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    with_outlier = weight.clone()
    with_outlier[2, 70] = 12.0
    errors = [_rounded_by(function, w) - w for w in (weight, with_outlier)]
    figure = pictures.group_errors(
        weight,
        weight + errors[0],
        weight + errors[1],
        32,
        "One large weight makes the grid of its whole group coarse",
        names=("normally distributed weights", "one of them replaced by 12"),
    )
    return Passed(
        "Each weight has the nearest code of its own group's grid, and no code leaves the grid. "
        "The picture shows why groups are small: an outlier spoils only its own.",
        figure,
        "The error of each group: without an outlier, and with one.",
    )


def _rounded_by(function: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """What a weight is read back as, from the learner's codes of 4 bits in groups of 32."""
    scales, zeros = find_params(weight.unflatten(1, (-1, 32)), 4, sym=True)
    return read(function(weight.clone(), scales, zeros, 4), scales, zeros).float()


QUANTIZE = Contract(
    inputs=draw_weight,
    judge=Returns(nearest_codes, wrong=in_parts(("codes",), _draw_codes, codes=_not_nearest)),
    passed=_outlier,
    clauses={
        "form": Clause("{says}", "uint8, in the shape of `weight`."),
        "codes": Clause(
            "{says} Each weight gets the nearest code of its own group's grid; beyond "
            "the grid, the code at that end.",
            "How many steps is the weight away from 0.0, and which code is 0.0?",
        ),
    },
    mistakes=(
        mistake(
            "The weights are clamped before the zero is added. Every weight below 0 then "
            "becomes the zero.",
            "Clamp last.",
            _but(early=True),
        ),
        mistake(
            "Codes are cut off, not rounded to the nearest. The error doubles.",
            "`torch.round`, before the conversion to uint8.",
            _but(rounding=torch.floor),
            _but(rounding=torch.floor, late=True),
        ),
        mistake(
            "Codes are not clamped. Weights beyond the grid wrap around.",
            "`.clamp`, before the conversion to uint8.",
            _but(clamp=False),
        ),
        mistake(
            "Codes are clamped to 2^bits. The largest code is one less.",
            "16 codes are 0 to 15.",
            _but(top=1),
        ),
        mistake(
            "The largest code is never used: you clamp to 2^bits - 2.",
            "16 codes are 0 to 15.",
            _but(top=-1),
        ),
        mistake(
            "The scales and zeros are tiled: channel 1 gets those of group 1. A group is a "
            "row of neighbours.",
            _NEIGHBOURS,
            _but(tiled=True),
        ),
        mistake(
            "The zero is subtracted. The weight 0 must get the code `zero`.",
            "Which code is the weight 0?",
            _but(sign=-1),
        ),
        mistake(
            "The zero is left out. The weight 0 must get the code `zero`.",
            "Which code is the weight 0?",
            _but(sign=0),
        ),
        mistake(
            "You multiply by the scale. A code counts steps: divide.",
            "How many steps of this size fit into the weight?",
            _but(power=-1),
        ),
        mistake(
            "`bits` is ignored: you always clamp to 15.",
            "2 bits have 4 codes.",
            lambda w, s, z, b: _codes(w, s, z, 4),
        ),
    ),
)

# Exercise 3


def draw_codes(c: Choices) -> Given:
    bits = c.pick(BITS)
    scales, zeros, size = draw_grid(c, bits)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    shape = (len(scales), scales.shape[1] * size)
    q = torch.randint(0, 2**bits, shape, generator=generator).to(torch.uint8)
    zeros = zeros.to(c.pick((torch.uint8, torch.float32)))
    return Given(*(laid_out(t, c.pick(LAYOUTS)) for t in (q, scales, zeros)))


def read_back(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Group by group, in float64."""
    size = q.shape[1] // scales.shape[1]
    groups = [
        (part.double() - zeros[:, [g]].double()) * scales[:, [g]].double()
        for g, part in enumerate(q.split(size, dim=1))
    ]
    return torch.cat(groups, dim=1).float()


def _off(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Beside the number itself, a hundredth of a percent of a step is nothing."""
    return far(got[0], expected[0], 1e-4 * spread(given.args[1], got[0].shape[1]).double())


def _back(q: Tensor, s: Tensor, z: Tensor, how: str, tiled: bool = False) -> Tensor:
    s, z = spread(s, q.shape[1], tiled), spread(z, q.shape[1], tiled)
    x, zero = q.float(), z.float()
    return {
        "right": (x - zero) * s,
        "wrapped": (q - z) * s,
        "scaled first": x * s - zero,
        "added": (x + zero) * s,
        "no zero": x * s,
        "divided": (x - zero) / s,
        "int8": (q.to(torch.int8) - z.to(torch.int8)) * s,
    }[how]


def _backwards(how: str, tiled: bool = False) -> Callable[..., Tensor]:
    return lambda q, s, z: _back(q, s, z, how, tiled)


DEQUANTIZE = Contract(
    inputs=draw_codes,
    judge=Returns(read_back, wrong=in_parts(("weight",), weight=_off)),
    passed="Codes of 2 to 8 bits, above and below the zero, are read back as the weights that they "
    "stand for, with zeros of both types.",
    clauses={
        "form": Clause("{says}", "float32, in the shape of `q`."),
        "weight": Clause(
            "{says} A code stands for as many steps as it is above the zero of its group.",
            "Which code is read back as 0.0, and what is one code more?",
        ),
    },
    mistakes=(
        mistake(
            "You subtract in uint8, where 3 - 5 is 254. Codes below the zero become huge.",
            "Convert first.",
            _backwards("wrapped"),
        ),
        mistake(
            "The zero is subtracted after the scaling. It counts codes, not weights.",
            "Turn around what exercise 2 does, last step first.",
            _backwards("scaled first"),
        ),
        mistake(
            "The zero is added. The code `zero` must be read back as 0.",
            "Turn around what exercise 2 does, last step first.",
            _backwards("added"),
        ),
        mistake(
            "The zero is left out. The code `zero` must be read back as 0.",
            "Turn around what exercise 2 does, last step first.",
            _backwards("no zero"),
        ),
        mistake(
            "You divide by the scale. The way back multiplies.",
            "Turn around what exercise 2 does, last step first.",
            _backwards("divided"),
        ),
        mistake(
            "int8 ends at 127. Codes of 8 bits go to 255.",
            "Convert to float32.",
            _backwards("int8"),
        ),
        mistake(
            "The scales and zeros are tiled: channel 1 gets those of group 1. A group is a "
            "row of neighbours.",
            _NEIGHBOURS,
            _backwards("right", tiled=True),
        ),
    ),
)
