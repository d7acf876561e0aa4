"""GPTQ: quantize one input channel after another, and let the later ones make up for the error.

Rounding channel i of a weight W changes the layer's output W x. The channels that are not yet
rounded can be shifted to undo most of that change. How much of it falls on which channel depends
on how the inputs vary together: on the Hessian H = 2 X^T X / n of the squared output error.

With the upper Cholesky factor U of the inverse, H^-1 = U^T U, row i of U says it all:

    error_i  = (w_i - rounded w_i) / U_ii
    w_j     -= error_i * U_ij             for all j > i

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022, https://arxiv.org/abs/2210.17323 (algorithm 1; the formula without Cholesky:
section 2, Optimal Brain Quantization). Group-aware order: Gafni et al., "Dual Precision
Quantization", 2025, https://arxiv.org/abs/2505.14638
"""

from __future__ import annotations

import torch
from torch import Tensor

from utils.quant.rtn import QuantizedWeight, check_weight, find_params, to_codes

DAMP_PERCENT = 0.05


@torch.no_grad()
def gptq(
    weight: Tensor,
    hessian: Tensor,
    *,
    bits: int = 4,
    group_size: int = 64,
    sym: bool = True,
    desc_act: bool = False,
    act_group_aware: bool = False,
    damp_percent: float = DAMP_PERCENT,
    block_size: int = 128,
) -> QuantizedWeight:
    """Quantize a linear layer's weight so that its output on the calibration inputs changes little.

    Args:
        weight: [out, in], finite. Not changed.
        hessian: [in, in], see `InputStats.hessian`. Its scale does not matter.
        bits, group_size, sym: see `rtn`.
        desc_act: act-order: channels with the largest inputs first, while most others can still
            make up for them. Groups are then formed in that order, so `g_idx` is needed.
        act_group_aware: act-order that keeps groups together: within groups, and between them.
        damp_percent: share of the mean of H's diagonal that is added to the diagonal. Without
            it, H can have no inverse (fewer tokens than channels).
        block_size: channels after which the later ones are updated ("lazy blocks"). It changes
            speed, not the result.

    Raises:
        ValueError: bad arguments (see `rtn`), a Hessian of another width, not finite or not
            positive definite, or both act-orders at once.
    """
    group_size = check_weight(weight, bits, group_size)
    hessian = _check_hessian(weight, hessian)
    if desc_act and act_group_aware:
        raise ValueError("desc_act and act_group_aware are two different orders. Choose one.")
    diagonal = hessian.diagonal()
    dead = diagonal == 0  # channels that were never active: any value does
    diagonal[dead] = 1
    order = column_order(diagonal, group_size, desc_act, act_group_aware)
    # Transposed, [in, out]: one input channel of all outputs is one row, contiguous in memory.
    w = weight.float().t().masked_fill(dead[:, None], 0)[order].contiguous()
    u = inverse_cholesky(hessian[order][:, order], damp_percent)
    block_size = _fit_block(block_size, group_size)

    q, scales, zeros = torch.empty_like(w), [], []
    for start in range(0, len(w), block_size):
        end = min(start + block_size, len(w))
        errors = torch.empty_like(w[start:end])
        for i in range(start, end):
            if i % group_size == 0:  # the grid of a group: from its weights as they are by now
                scale, zero = find_params(w[i : i + group_size].t(), bits, sym)
                scales.append(scale)
                zeros.append(zero)
            q[i] = to_codes(w[i], scale, zero, bits)
            errors[i - start] = (w[i] - (q[i] - zero) * scale) / u[i, i]
            w[i + 1 : end].addr_(u[i, i + 1 : end], errors[i - start], alpha=-1)
        w[end:] -= u[start:end, end:].t() @ errors  # all later channels, once per block

    return _in_natural_order(q, scales, zeros, order, group_size, bits, desc_act)


def inverse_cholesky(hessian: Tensor, damp_percent: float) -> Tensor:
    """The upper triangular U with U^T U = (H + damping)^-1, float32 [in, in].

    Raises:
        ValueError: H is not positive definite, even with this damping.
    """
    damped = hessian.clone()
    damped.diagonal().add_(damp_percent * hessian.diagonal().mean())
    lower, info = torch.linalg.cholesky_ex(damped)
    if info == 0:
        upper, info = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if info != 0 or not torch.isfinite(upper).all():
        raise ValueError(
            f"The Hessian has no Cholesky factor with {damp_percent=}. Use more calibration "
            "tokens than the layer has input channels, or more damping (0.05 is usual, 0.1 a lot)."
        )
    return upper


def column_order(
    diagonal: Tensor, group_size: int, desc_act: bool = False, act_group_aware: bool = False
) -> Tensor:
    """The order in which channels are quantized, int64 [in]; H's diagonal measures activity."""
    if desc_act:
        return diagonal.argsort(descending=True, stable=True)
    channels = torch.arange(len(diagonal), device=diagonal.device)
    if not act_group_aware:
        return channels
    groups = diagonal.view(-1, group_size)
    inside = groups.argsort(dim=1, descending=True, stable=True)  # [groups, group]
    between = groups.amax(dim=1).argsort(descending=True, stable=True)
    return channels.view(-1, group_size).gather(1, inside)[between].flatten()


def _in_natural_order(
    q: Tensor,
    scales: list[Tensor],
    zeros: list[Tensor],
    order: Tensor,
    group_size: int,
    bits: int,
    desc_act: bool,
) -> QuantizedWeight:
    inverse = order.argsort()
    g_idx = torch.arange(len(q), device=q.device)[inverse] // group_size  # of each channel
    scale, zero = torch.stack(scales, dim=1), torch.stack(zeros, dim=1)  # [out, groups]
    if not desc_act:  # groups are neighbours: number them as they stand
        numbers = g_idx[::group_size]
        scale, zero, g_idx = scale[:, numbers], zero[:, numbers], g_idx.sort().values
    codes = q[inverse].t().contiguous().to(torch.uint8)
    return QuantizedWeight(codes, scale, zero.to(torch.uint8), g_idx.to(torch.int32), bits)


def _fit_block(block_size: int, group_size: int) -> int:
    """The largest block up to `block_size` that no group begins inside of and reaches beyond.

    So a group's weights are all up to date when its grid is chosen.
    """
    if block_size < 1:
        raise ValueError(f"{block_size=}: expected at least 1.")
    if group_size <= block_size:
        return block_size // group_size * group_size
    return max(size for size in range(1, block_size + 1) if group_size % size == 0)


def _check_hessian(weight: Tensor, hessian: Tensor) -> Tensor:
    width = weight.shape[1]
    if hessian.shape != (width, width):
        raise ValueError(
            f"A weight with {width} input channels needs a Hessian of [{width}, {width}]; got "
            f"{list(hessian.shape)}. Was it collected at another layer?"
        )
    if not torch.isfinite(hessian).all():
        raise ValueError(
            "The Hessian is not finite: the calibration inputs overflowed or hold nan. Run the "
            "calibration in float32 or bfloat16, and check the model."
        )
    return hessian.float().clone()
