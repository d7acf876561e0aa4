"""Floating-point numbers of 8 and 4 bits: FP8 (E4M3 and E5M2) and FP4 (E2M1).

A code is a sign bit, then exponent bits E, then mantissa bits M:

    E > 0:  value = ± 2^(E - bias) * (1 + M / 2^m)      a normal number
    E = 0:  value = ± 2^(1 - bias) * M / 2^m            a subnormal one; zero is among them

Within one exponent the values are evenly spaced, and with each exponent the spacing doubles.

Open Compute Project, "OCP 8-bit Floating Point Specification", revision 1.0, 2023; and
"OCP Microscaling Formats (MX) Specification", version 1.0, 2023, section 5.3 (E2M1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FloatFormat:
    """A small floating-point format.

    Attributes:
        name: as the field writes it, such as "E4M3".
        exponent_bits, mantissa_bits: besides them there is one sign bit.
        bias: subtracted from the stored exponent.
        max: the largest finite value.
        has_inf: whether the last exponent is kept for infinities and NaN, as in IEEE 754.
        has_nan: whether any code is NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    has_inf: bool = False
    has_nan: bool = True

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    def decode(self, codes: Tensor) -> Tensor:
        """The values of codes; float32, in the shape of `codes`.

        Args:
            codes: integers from 0 to 2^bits - 1.
        """
        codes = codes.long()
        sign = 1.0 - 2.0 * (codes >> (self.bits - 1))
        exponent = (codes >> self.mantissa_bits) & (2**self.exponent_bits - 1)
        mantissa = codes & (2**self.mantissa_bits - 1)
        fraction = (exponent > 0) + mantissa / 2**self.mantissa_bits
        values = sign * torch.ldexp(fraction, exponent.clamp(min=1) - self.bias)
        last = exponent == 2**self.exponent_bits - 1
        if self.has_inf:
            values[last & (mantissa == 0)] *= torch.inf
            values[last & (mantissa > 0)] = torch.nan
        elif self.has_nan:
            values[last & (mantissa == 2**self.mantissa_bits - 1)] = torch.nan
        return values

    def encode(self, values: Tensor) -> Tensor:
        """The code of the nearest value; of two equally near ones, the code that is even.

        Values beyond the largest one become the largest one ("saturate"); NaN isn't expected.

        Args:
            values: any shape, floating point.

        Returns:
            uint8, in the shape of `values`.
        """
        size = values.float().abs().clamp(max=self.max)
        # The exponent of each value, and the distance of two neighbors at that exponent.
        exponent = torch.frexp(size.clamp(min=2.0 ** (1 - self.bias))).exponent - 1
        steps = torch.ldexp(size, self.mantissa_bits - exponent).round()  # ties to even
        # Codes count neighbors, so rounding up to the next power of two needs no special case.
        code = steps.int() + ((exponent - (1 - self.bias)) << self.mantissa_bits)
        code += torch.signbit(values).int() << (self.bits - 1)
        return code.to(torch.uint8)

    def round(self, values: Tensor) -> Tensor:
        """The nearest value of the format to each value; float32, in the same shape."""
        return self.decode(self.encode(values))


E4M3 = FloatFormat("E4M3", 4, 3, bias=7, max=448.0)
E5M2 = FloatFormat("E5M2", 5, 2, bias=15, max=57344.0, has_inf=True)
E2M1 = FloatFormat("E2M1", 2, 1, bias=1, max=6.0, has_nan=False)
