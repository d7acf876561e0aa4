"""RMSNorm, and with it the sum that comes before it."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm_kernel(
    out, x, residual, weight, eps, hidden: tl.constexpr, padded: tl.constexpr, adds: tl.constexpr
):
    """One program for each token: its vector lies in registers from the first read to the write."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, padded)
    inside = column < hidden
    vector = tl.load(x + row * hidden + column, mask=inside, other=0.0)
    if adds:
        vector += tl.load(residual + row * hidden + column, mask=inside, other=0.0)
        tl.store(residual + row * hidden + column, vector, mask=inside)
    vector32 = vector.to(tl.float32)
    variance = tl.sum(vector32 * vector32, axis=0) / hidden
    scaled = (vector32 * tl.rsqrt(variance + eps)).to(vector.dtype)
    tl.store(out + row * hidden + column, tl.load(weight + column, mask=inside) * scaled, inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `llama.rms_norm`: [T, hidden]."""
    return _run(torch.empty_like(x), x.contiguous(), None, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to `residual`, in place, and return the norm of the sum: [T, hidden] each.

    A sum and a norm read the same vector. One kernel for both saves a write and a read of it.
    """
    return _run(torch.empty_like(x), x, residual, weight, eps)


def _run(out: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    tokens, hidden = x.shape
    padded = triton.next_power_of_2(hidden)
    options: dict[str, Any] = {"num_warps": min(8, max(1, padded // 256))}
    _rms_norm_kernel[(tokens,)](
        out,
        x,
        residual if residual is not None else x,
        weight,
        eps,
        hidden,
        padded,
        residual is not None,
        **options,
    )
    return out
