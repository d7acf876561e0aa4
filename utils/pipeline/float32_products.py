"""Products of bfloat16 matrices on CPUs without instructions for them (see `fast_dtype`).

PyTorch multiplies them there several times slower than float32. Products of bfloat16 numbers add up
in float32 anyway, so the result is the same; only the order of the sums may differ.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from utils.profiles import fast_dtype

_linear = functional.linear


def in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, in the type of x; the product is float32.

    Args:
        x: [..., in]
        weight: [out, in]
        bias: [out]
    """
    bias = None if bias is None else bias.float()
    return _linear(x.float(), weight.float(), bias).to(x.dtype)


def multiply_in_float32() -> None:
    """Let this process's linear layers do so, where that is faster. Others are left alone."""
    if fast_dtype() != "float32":
        return

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        slow = x.dtype == weight.dtype == torch.bfloat16 and x.device.type == "cpu"
        return (in_float32 if slow else _linear)(x, weight, bias)

    functional.linear = linear  # type: ignore[assignment]
