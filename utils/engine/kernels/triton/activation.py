"""SwiGLU's gate."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(out, gate_up, size: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside)
    # Rounded once between silu and the product, as PyTorch does.
    silu = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * size + column, silu * up, mask=inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """As `llama.silu_and_mul`: [T, 2 * I] -> [T, I]."""
    tokens, twice = gate_up.shape
    size = twice // 2
    out = gate_up.new_empty(tokens, size)
    _silu_and_mul_kernel[(tokens, triton.cdiv(size, BLOCK))](out, gate_up, size, BLOCK)
    return out
