"""A product with weights of 4 bits, which are read as they lie in a GPTQ checkpoint.

A decode step reads every weight once and computes little with it, so a quarter of the bytes can be
four times as fast. Weights become 16-bit numbers in registers, just before they are multiplied.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gptq_matmul_kernel(
    out,
    x,
    qweight,
    qzeros,
    scales,
    tokens,
    inputs: tl.constexpr,
    outputs: tl.constexpr,
    group_size: tl.constexpr,
    zero_offset: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_column = column < outputs
    place = tl.arange(0, depth)
    total = tl.zeros([rows, columns], tl.float32)
    for begin in range(0, inputs, depth):
        k = begin + place
        part = tl.load(
            x + row[:, None] * inputs + k[None, :],
            mask=(row < tokens)[:, None] & (k < inputs)[None, :],
            other=0.0,
        )
        # Eight rows of the matrix lie in one int32, the first in the lowest four bits.
        packed = tl.load(
            qweight + (k // 8)[:, None] * outputs + column[None, :],
            mask=(k < inputs)[:, None] & is_column[None, :],
            other=0,
        )
        quantized = (packed >> ((k % 8) * 4)[:, None]) & 15
        group = begin // group_size
        zero = tl.load(qzeros + group * (outputs // 8) + column // 8, mask=is_column, other=0)
        zero = ((zero >> ((column % 8) * 4)) & 15) + zero_offset
        scale = tl.load(scales + group * outputs + column, mask=is_column, other=0.0)
        weight = (quantized - zero[None, :]).to(tl.float32) * scale.to(tl.float32)[None, :]
        total += tl.dot(part, weight.to(part.dtype), input_precision=precision)
    tl.store(
        out + row[:, None] * outputs + column[None, :],
        total.to(out.dtype.element_ty),
        mask=(row < tokens)[:, None] & is_column[None, :],
    )


def gptq_matmul(
    x: Tensor,
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    group_size: int,
    zero_offset: int = 1,
) -> Tensor:
    """`x @ weight.T`, with the weight dequantized on the way.

    Args:
        x: [T, in]
        qweight: int32 [in / 8, out], `qzeros` int32 [groups, out / 8] and `scales` float16
            [groups, out], as `utils.quant.packing.pack_gptq` makes them.
        group_size: neighbouring inputs that share a scale and a zero; at least 16, or all of them.
        zero_offset: 1 for checkpoint_format "gptq", 0 for "gptq_v2".

    Returns:
        [T, out]

    Raises:
        ValueError: the shapes do not belong together, or groups are smaller than 16.
    """
    tokens, inputs = x.shape
    outputs = qweight.shape[1]
    depth = min(64, group_size & -group_size)  # the largest power of 2 that divides a group
    if len(qweight) * 8 != inputs or len(scales) != -(-inputs // group_size) or depth < 16:
        raise ValueError(
            f"A weight of {list(qweight.shape)} packed numbers and {len(scales)} groups of "
            f"{group_size} does not fit inputs of {inputs}. Expected {inputs // 8} rows, and "
            f"groups whose size is a multiple of 16."
        )
    rows = min(64, max(16, triton.next_power_of_2(tokens)))
    columns = 32
    out = x.new_empty(tokens, outputs)
    grid = (triton.cdiv(tokens, rows), triton.cdiv(outputs, columns))
    _gptq_matmul_kernel[grid](
        out,
        x.contiguous(),
        qweight,
        qzeros,
        scales,
        tokens,
        inputs,
        outputs,
        group_size,
        zero_offset,
        rows,
        columns,
        depth,
        "ieee" if x.dtype == torch.float32 else "tf32",
    )
    return out
