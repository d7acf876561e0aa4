"""Codes of small floats and their values: exercises 1 and 2.

The values are those of `ml_dtypes`, and the nearest one is found by looking at all of them.
tests/checks/lab_12b holds both against torch and the course's own formats.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12b.judging import at, first, form


class Small(NamedTuple):
    """A small float format without infinities."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_nan: bool
    in_ml_dtypes: type

    @property
    def last(self) -> int:
        """The code of the largest number."""
        return 2 ** (self.exponent_bits + self.mantissa_bits) - 1 - self.has_nan

    def values(self) -> list[float]:
        """Of all codes."""
        codes = np.arange(2 ** (1 + self.exponent_bits + self.mantissa_bits), dtype=np.uint8)
        found: list[float] = codes.view(self.in_ml_dtypes).astype(np.float64).tolist()
        return found


FORMATS = (
    Small("E2M1", 2, 1, False, ml_dtypes.float4_e2m1fn),
    Small("E4M3", 4, 3, True, ml_dtypes.float8_e4m3fn),
    Small("E2M3", 2, 3, False, ml_dtypes.float6_e2m3fn),
    Small("E3M2", 3, 2, False, ml_dtypes.float6_e3m2fn),
)
E2M1, E4M3, *_ = FORMATS


@functools.cache
def table(exponent_bits: int, mantissa_bits: int) -> list[float]:
    """The values of a format's codes."""
    [of] = (f for f in FORMATS if f[1:3] == (exponent_bits, mantissa_bits))
    return of.values()


def in_bits(code: int, exponent_bits: int, mantissa_bits: int) -> str:
    """Sign, exponent and mantissa with a gap between them."""
    digits = f"{code:0{1 + exponent_bits + mantissa_bits}b}"
    return f"{digits[0]} {digits[1 : 1 + exponent_bits]} {digits[1 + exponent_bits :]}"


def shaped(c: Choices, numbers: list[Any], dtype: torch.dtype) -> Tensor:
    """In any shape, and anywhere in memory."""
    made = torch.tensor(numbers, dtype=dtype)
    shapes: tuple[tuple[int, ...], ...] = ((-1,), (-1,), (1, -1), (-1, 1, 1))
    if len(numbers) % 2 == 0:
        shapes += ((2, -1), (-1, 2))
    return laid_out(made.reshape(c.pick(shapes)), c.pick(LAYOUTS))


# Exercise 1


def draw_codes(c: Choices) -> Given:
    """Some codes of a format, or all of them."""
    small = c.pick(FORMATS)
    top = 2 ** (1 + small.exponent_bits + small.mantissa_bits) - 1
    codes = c.some(lambda: c.integer(0, top), 1, 12)
    if c.rarely(5):
        codes = list(range(top + 1))
    return Given(shaped(c, codes, torch.uint8), *small[1:4])


def looked_up(codes: Tensor, exponent_bits: int, mantissa_bits: int, has_nan: bool) -> Tensor:
    return torch.tensor(table(exponent_bits, mantissa_bits))[codes.long()]


def wrong_values(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """The first number that isn't the same, the sign of zero included."""
    if fault := form(("values",), expected, got):
        return fault
    same = (got == expected) & (torch.signbit(got) == torch.signbit(expected))
    place = first(~(same | got.isnan() & expected.isnan()))
    if place is None:
        return None
    codes, *bits = given.args
    right, mine, code = float(expected[place]), float(got[place]), int(codes[place])
    either_nan = math.isnan(right) or math.isnan(mine)
    clause = "nan" if either_nan else "zero" if right == mine else "values"
    where = f"codes{list(place)} is {code}, in bits {in_bits(code, *bits[:2])}"
    return Fault(clause, where, right, mine, words=(f"{right:g}", f"{mine:.6g}"))


# Exercise 2


def draw_values(c: Choices) -> Given:
    """Numbers of a format, others between two of them, many in the middle; some too large."""
    small = c.pick(FORMATS)
    known = small.values()

    def value() -> float:
        code = c.integer(0, small.last)
        step = known[code + 1] - known[code] if code < small.last else known[code] / 8
        anywhere = c.integer(0, 4096) / 4096
        part = c.pick((0.0, 0.25, 0.75, anywhere, 0.5 + 2**-12, 0.5 - 2**-12, 0.5, 0.5))
        size = known[code] + part * step
        if c.rarely(8):
            size = known[small.last] * c.pick((1.25, 2.0, 1000.0, 1e20))
        elif c.rarely(12):
            size *= 2.0**-40
        return size * c.pick((1.0, -1.0))

    values = c.some(value, 1, 12)
    return Given(shaped(c, values, torch.float32), *small[1:3], known[small.last])


def nearest(value: float, magnitudes: list[float]) -> int:
    """The place of the nearest one; of two equally near ones, the even place."""
    size = min(abs(value), magnitudes[-1])
    return min(range(len(magnitudes)), key=lambda i: (abs(magnitudes[i] - size), i % 2))


def searched(values: Tensor, exponent_bits: int, mantissa_bits: int, largest: float) -> Tensor:
    known = table(exponent_bits, mantissa_bits)
    magnitudes = known[: known.index(largest) + 1]
    half = 2 ** (exponent_bits + mantissa_bits)
    codes = [
        nearest(value, magnitudes) + half * (math.copysign(1, value) < 0)
        for value in values.flatten().tolist()
    ]
    return torch.tensor(codes, dtype=torch.uint8).view(values.shape)


def wrong_codes(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """The first code that is wrong, by what kind of number it should stand for."""
    if fault := form(("codes",), expected, got):
        return fault
    place = first(got.long() != expected.long())
    if place is None:
        return None
    values, exponent_bits, mantissa_bits, largest = given.args
    known = table(exponent_bits, mantissa_bits)
    value, right, mine = float(values[place]), int(expected[place]), int(got[place])

    def told(code: int) -> str:
        if not 0 <= code < len(known):
            return f"{code}, which is no code of {int(math.log2(len(known)))} bits"
        return f"{code}, in bits {in_bits(code, exponent_bits, mantissa_bits)}: {known[code]:g}"

    clause = "codes"
    if 0 <= mine < len(known):
        off = [abs(abs(known[code]) - abs(value)) for code in (right, mine)]
        if abs(right - mine) == len(known) // 2:
            clause = "sign"
        elif abs(value) > largest:
            clause = "largest"
        elif off[0] == off[1]:
            clause = "tie"
    where = f"{at('values', place)} is {value:.9g}"
    return Fault(clause, where, right, mine, words=(told(right), told(mine)))
