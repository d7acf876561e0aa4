"""What lab 09 says of codes: exercises 2 (weights to codes) and 3 (codes to weights)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts, rounded
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.quant import find_params


def _grid(out: int, groups: int, bits: int) -> tuple[Tensor, Tensor]:
    """Scales and zeros [out, groups] that all differ, so that a mix-up is seen."""
    number = torch.arange(out * groups).view(out, groups)
    return 0.1 + 0.05 * number.float(), ((7 * number + 3) % 2**bits).float()


def _codes_case(out: int, groups: int, size: int, bits: int) -> PartsCase:
    """Weights placed on known codes, less than half a step away; some are beyond both ends."""
    generator = torch.Generator().manual_seed(out + size)
    scales, zeros = _grid(out, groups, bits)
    aim = torch.randint(-3, 2**bits + 3, (out, groups, size), generator=generator)
    aim[..., 0], aim[..., 1] = 0, 2**bits - 1
    off = 0.8 * torch.rand(out, groups, size, generator=generator) - 0.4
    weight = ((aim + off - zeros[..., None]) * scales[..., None]).flatten(1)
    codes = aim.clamp(0, 2**bits - 1).flatten(1).to(torch.uint8)
    given = f"weight [{out}, {groups * size}], {groups} group(s) per output, bits={bits}"
    return PartsCase(given, (weight, scales, zeros, bits), (codes,))


_CODES_CASES = (
    PartsCase("weight [[-0.4, 0.0, 0.26, 9.0]], scales [[0.1]], zeros [[3.0]], bits=4",
              (torch.tensor([[-0.4, 0.0, 0.26, 9.0]]), torch.tensor([[0.1]]),
               torch.tensor([[3.0]]), 4),
              (torch.tensor([[0, 3, 6, 15]], dtype=torch.uint8),)),
    _codes_case(2, 2, 4, 4), _codes_case(4, 3, 8, 4), _codes_case(3, 2, 8, 3),
    _codes_case(2, 2, 8, 8),
)  # fmt: skip


def _spread(per_group: Tensor, width: int, tiled: bool = False) -> Tensor:
    """Values per group [out, groups] for each channel [out, width]; only neighbours are right."""
    times = width // per_group.shape[1]
    return per_group.repeat(1, times) if tiled else per_group.repeat_interleave(times, 1)


def _codes(
    w: Tensor, scales: Tensor, zeros: Tensor, bits: int, *, tiled: bool = False, sign: int = 1,
    rounding: Callable[[Tensor], Tensor] = torch.round, early: bool = False, low: int = 0,
    top: int = 0, clamp: bool = True,
) -> Tensor:  # fmt: skip
    s, z = _spread(scales, w.shape[1], tiled), _spread(zeros, w.shape[1], tiled)
    if early:
        codes = (w / s).round().clamp(0, 2**bits - 1) + z
    else:
        codes = rounding(w / s + sign * z)
        if clamp:
            codes = codes.clamp(low, 2**bits - 1 + top)
    return codes.to(torch.int64).to(torch.uint8)


_NEIGHBOURS = (
    "A group is neighbours: `repeat_interleave(size, dim=1)` repeats each value size times in a "
    "row, `repeat` tiles. Or `weight.unflatten(1, (-1, size))` and `scales[..., None]`."
)
_CODES_MISTAKES = (
    KnownMistake("The weights are clamped before the zero is added. Every weight below 0 then "
                 "becomes the zero.", "Round, add the zero, and clamp last.",
                 lambda w, s, z, b: _codes(w, s, z, b, early=True)),
    KnownMistake("Codes are cut off, not rounded to the nearest. The error doubles.",
                 "`torch.round`, before the conversion to uint8.",
                 lambda w, s, z, b: _codes(w, s, z, b, rounding=torch.floor)),
    KnownMistake("Codes are rounded up, not to the nearest.", "`torch.round`.",
                 lambda w, s, z, b: _codes(w, s, z, b, rounding=torch.ceil)),
    KnownMistake("Codes are not clamped. Weights beyond the grid wrap around.",
                 "`.clamp(0, 2**bits - 1)`, before the conversion to uint8.",
                 lambda w, s, z, b: _codes(w, s, z, b, clamp=False)),
    KnownMistake("Codes are clamped to 2^bits. The largest code is 2^bits - 1.",
                 "16 codes are 0 to 15.", lambda w, s, z, b: _codes(w, s, z, b, top=1)),
    KnownMistake("The largest code is never used: you clamp to 2^bits - 2.",
                 "16 codes are 0 to 15.", lambda w, s, z, b: _codes(w, s, z, b, top=-1)),
    KnownMistake("The smallest code is never used: you clamp from 1.", "16 codes are 0 to 15.",
                 lambda w, s, z, b: _codes(w, s, z, b, low=1)),
    KnownMistake("The scales and zeros are tiled: channel 1 gets those of group 1. A group is a "
                 "row of neighbours.", _NEIGHBOURS,
                 lambda w, s, z, b: _codes(w, s, z, b, tiled=True)),
    KnownMistake("The zero is subtracted. The weight 0 must get the code `zero`.",
                 "q = round(w / scale) + zero.", lambda w, s, z, b: _codes(w, s, z, b, sign=-1)),
    KnownMistake("The zero is left out. The weight 0 must get the code `zero`.",
                 "q = round(w / scale) + zero.", lambda w, s, z, b: _codes(w, s, z, b, sign=0)),
    KnownMistake("You multiply by the scale. A code counts steps: divide.",
                 "q = round(w / scale) + zero.",
                 lambda w, s, z, b: _codes(w, 1 / s, z, b)),
    KnownMistake("`bits` is ignored: you always clamp to 15.", "`2**bits - 1`.",
                 lambda w, s, z, b: _codes(w, s, z, 4)),
)  # fmt: skip


def _read(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    width = codes.shape[1]
    return (codes.double() - _spread(zeros, width)) * _spread(scales, width)


def _draw_codes(case: PartsCase, got: Parts) -> tuple[Figure, str]:
    weight, scales, zeros, _ = case.args
    expected, yours = (_read(codes, scales, zeros) for codes in (case.expected[0], got[0]))
    size = weight.shape[1] // scales.shape[1]
    title = "What is read back from the codes: error of each group"
    figure = pictures.group_errors(weight, expected, yours, size, title)
    return figure, "The error of each group: expected beside yours."


def judge_quantize(function: Callable[..., Tensor]) -> Passed:
    """Check `quantize(weight, scales, zeros, bits)`."""
    compare_parts(function, ("codes",), _CODES_CASES, _CODES_MISTAKES, _draw_codes)
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    with_outlier = weight.clone()
    with_outlier[2, 70] = 12.0
    errors = [_rounded_by(function, w) - w for w in (weight, with_outlier)]
    figure = pictures.group_errors(
        weight, weight + errors[0], weight + errors[1], 32,
        "One large weight makes the grid of its whole group coarse",
        names=("normally distributed weights", "one of them replaced by 12"),
    )  # fmt: skip
    return Passed(
        "Each weight has the nearest code of its own group's grid, and no code leaves the grid. "
        "The picture shows why groups are small: an outlier spoils only its own.",
        figure, "The error of each group: without an outlier, and with one.",
    )  # fmt: skip


def _rounded_by(function: Callable[..., Tensor], weight: Tensor) -> Tensor:
    """What a weight is read back as, from the learner's codes of 4 bits in groups of 32."""
    scales, zeros = find_params(weight.unflatten(1, (-1, 32)), 4, sym=True)
    return _read(function(weight, scales, zeros, 4), scales, zeros).float()


def _back_case(out: int, groups: int, size: int, bits: int = 4) -> PartsCase:
    generator = torch.Generator().manual_seed(out)
    scales, zeros = _grid(out, groups, bits)
    q = torch.randint(0, 2**bits, (out, groups * size), generator=generator).to(torch.uint8)
    expected = _read(q, scales, zeros).float()
    given = f"q [{out}, {groups * size}], {groups} group(s) per output, codes of {bits} bits"
    if q.numel() <= 8:
        given = f"q {q.tolist()}, scales {rounded(scales)}, zeros {zeros.tolist()}"
    return PartsCase(given, (q, scales, zeros.to(torch.uint8)), (expected,))


_BACK_CASES = (_back_case(1, 1, 4), _back_case(2, 2, 2), _back_case(3, 2, 8), _back_case(4, 3, 8),
               _back_case(3, 2, 8, bits=8))  # fmt: skip


def _back(q: Tensor, s: Tensor, z: Tensor, how: str, tiled: bool = False) -> Tensor:
    s, z = _spread(s, q.shape[1], tiled), _spread(z, q.shape[1], tiled)
    x, zero = q.float(), z.float()
    return {
        "right": (x - zero) * s, "wrapped": (q - z) * s, "scaled first": x * s - zero,
        "added": (x + zero) * s, "no zero": x * s, "divided": (x - zero) / s,
        "turned": (zero - x) * s, "int8": (q.to(torch.int8) - z.to(torch.int8)) * s,
    }[how]  # fmt: skip


def _back_mistake(says: str, look: str, how: str, tiled: bool = False) -> KnownMistake:
    return KnownMistake(says, look, lambda q, s, z: _back(q, s, z, how, tiled))


_RULE = "weight = (q - zero) * scale."
_BACK_MISTAKES = (
    _back_mistake("You subtract in uint8, where 3 - 5 is 254. Codes below the zero become huge.",
                  "Convert first: `q.float()`.", "wrapped"),
    _back_mistake("The zero is subtracted after the scaling. It counts codes, not weights.", _RULE,
                  "scaled first"),
    _back_mistake("The zero is added. The code `zero` must be read back as 0.", _RULE, "added"),
    _back_mistake("The zero is left out. The code `zero` must be read back as 0.", _RULE,
                  "no zero"),
    _back_mistake("You divide by the scale. The way back multiplies.", _RULE, "divided"),
    _back_mistake("The sign is wrong: zero - q.", _RULE, "turned"),
    _back_mistake("int8 ends at 127. Codes of 8 bits go to 255.", "Convert to float32.", "int8"),
    _back_mistake("The scales and zeros are tiled: channel 1 gets those of group 1. A group is a "
                  "row of neighbours.", _NEIGHBOURS, "right", tiled=True),
)  # fmt: skip


def judge_dequantize(function: Callable[..., Tensor]) -> str:
    """Check `dequantize(q, scales, zeros)`."""

    def picture(case: PartsCase, got: Parts) -> tuple[Any, str]:
        size = case.args[0].shape[1] // case.args[1].shape[1]
        title = "Distance from the weights that the codes stand for, per group"
        return (
            pictures.group_errors(case.expected[0], case.expected[0], got[0], size, title),
            "The error of each group: expected (none) beside yours.",
        )

    compare_parts(function, ("weight",), _BACK_CASES, _BACK_MISTAKES, picture)
    return "Codes above and below the zero are read back as the weights that they stand for."
