"""One weight, merged and rounded once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.lab_11.adapters import Config, dtype_of, exact_delta

FAR = 4  # roundings of the sizes that go into a sum: what is farther off is another sum


class Rounded:
    """The right sum, before and after rounding, and how far float32 may be from it.

    Args of the constructor: weight [out, in] (or [in, out]), A [r, in], B [out, r], config.
    """

    def __init__(self, weight: Tensor, a: Tensor, b: Tensor, config: Config) -> None:
        self.exact = weight.double() + exact_delta(a, b, config)
        self.nearest = self.exact.to(weight.dtype)
        sizes = exact_delta(a.abs(), b.abs(), config | {"lora_alpha": abs(config["lora_alpha"])})
        sizes += weight.double().abs()
        # Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1.
        self.slack = (config["r"] + 8) * torch.finfo(torch.float32).eps * sizes
        self.sizes, self.coarsest = sizes, max(torch.finfo(t.dtype).eps for t in (weight, a, b))

    def farther(self, got: Tensor) -> Tensor:
        """Where `got` is farther from the exact sum than the nearest number of its dtype is."""
        best = (self.nearest.double() - self.exact).abs()
        return ~((got.double() - self.exact).abs() <= best + self.slack)

    def __repr__(self) -> str:
        return f"{dtype_of(self.nearest)} {list(self.nearest.shape)}"


@torch.no_grad()
def in_float64(
    weight: Tensor, A: Tensor, B: Tensor, config: Config, what: str = "The merged weight"
) -> Rounded:
    """The right sum.

    Raises:
        ValueError: a number of it is not finite; its text names that number.
    """
    rounded = Rounded(weight, A, B, config)
    if (odd := ~rounded.nearest.isfinite()).any():
        place = tuple(int(i) for i in odd.nonzero()[0])
        number, dtype = float(rounded.exact[place]), dtype_of(weight)
        raise ValueError(
            f"{what} would hold {number:.6g} at {list(place)}, which is not finite in {dtype}"
        )
    return rounded


def not_rounded_once(expected: Rounded, got: Any) -> tuple[str, str] | None:
    """A clause, and what is wrong with a merged weight in one sentence; None if nothing is."""
    right = expected.nearest
    if not isinstance(got, Tensor):
        return "form", f"Expected a tensor, not a {type(got).__name__}."
    if got.dtype != right.dtype:
        return "dtype", f"The dtype is {dtype_of(got)}, but the weight's is {dtype_of(right)}."
    if got.shape != right.shape:
        return "shape", f"The shape is {list(got.shape)}; expected {list(right.shape)}."
    if got.requires_grad:
        return "grad", "The result needs a gradient, because it belongs to the graph of A and B."
    if not (off := expected.farther(got)).any():
        return None
    place = tuple(int(i) for i in off.nonzero()[0])
    number, exact, best = (float(t[place]) for t in (got, expected.exact, right))
    coarse = FAR * expected.coarsest * expected.sizes
    near = bool(((got.double() - expected.exact).abs() <= coarse).all())
    says = (
        f"The number at {list(place)} is {number:.6g}; the exact sum is {exact:.8g}, and "
        f"the nearest {dtype_of(right)} is {best:.6g}."
    )
    return ("rounding" if near else "number"), says
