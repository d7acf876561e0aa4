"""One right answer for each exercise of lab 09, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.checks.lab_09.scales import output_error
from utils.quant import create_dynamic_map, create_normal_map


def find_params(groups: Tensor, bits: int, sym: bool) -> tuple[Tensor, Tensor]:
    top = 2**bits - 1
    low = groups.amin(-1).clamp(max=0)
    high = groups.amax(-1).clamp(min=0)
    if sym:
        high = groups.abs().amax(-1)
        low = -high
    scales = (high - low) / top
    scales = torch.where(scales > 0, scales, 1.0)
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if sym else torch.round(-low / scales)
    return scales, zeros


def quantize(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    size = weight.shape[1] // scales.shape[1]
    scale = scales.repeat_interleave(size, dim=1)  # [out, in]
    zero = zeros.repeat_interleave(size, dim=1)
    q = torch.round(weight / scale) + zero
    return q.clamp(0, 2**bits - 1).to(torch.uint8)


def dequantize(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    size = q.shape[1] // scales.shape[1]
    zero = zeros.float().repeat_interleave(size, dim=1)
    return (q.float() - zero) * scales.repeat_interleave(size, dim=1)


def checkpoint_bytes(
    linear_shapes: list[tuple[int, int]], num_other_params: int, bits: int, group_size: int
) -> float:
    num_weights = sum(out * width for out, width in linear_shapes)
    bits_per_weight = bits + (16 + bits) / group_size
    return num_weights * bits_per_weight / 8 + 2 * num_other_params


def quantize_blockwise(values: Tensor, levels: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    flat = values.flatten()
    missing = -len(flat) % blocksize
    blocks = torch.nn.functional.pad(flat, (0, missing)).view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = blocks / torch.where(absmax > 0, absmax, 1.0)[:, None]
    codes = (scaled[..., None] - levels).abs().argmin(-1)  # [blocks, blocksize]
    return codes.flatten()[: len(flat)].view(values.shape).to(torch.uint8), absmax


def double_quantize(absmax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    offset = absmax.mean()
    codes, nested_absmax = quantize_blockwise(absmax - offset, create_dynamic_map(), 256)
    return codes, nested_absmax, offset


def dequantize_nf4(
    codes: Tensor, absmax_codes: Tensor, nested_absmax: Tensor, offset: Tensor, blocksize: int
) -> Tensor:
    nested = nested_absmax.repeat_interleave(256)[: len(absmax_codes)]
    absmax = create_dynamic_map()[absmax_codes.long()] * nested + offset  # [blocks]
    levels = create_normal_map()[codes.flatten().long()]
    return (levels * absmax.repeat_interleave(blocksize)).view(codes.shape)


def prepare(weight: Tensor, inputs: Tensor, damp_percent: float) -> tuple[Tensor, Tensor]:
    hessian = 2 * inputs.T @ inputs / len(inputs)
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())
    return weight.masked_fill(dead, 0), hessian


def gptq(
    weight: Tensor, upper: Tensor, bits: int, group_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    w = weight.clone()
    codes = torch.zeros_like(w)
    scales, zeros = [], []
    for i in range(w.shape[1]):
        if i % group_size == 0:
            scale, zero = find_params(w[:, i : i + group_size], bits, sym=True)  # [out]
            scales.append(scale)
            zeros.append(zero)
        codes[:, i] = (torch.round(w[:, i] / scale) + zero).clamp(0, 2**bits - 1)
        read_back = (codes[:, i] - zero) * scale
        error = (w[:, i] - read_back) / upper[i, i]
        w[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    return codes.to(torch.uint8), torch.stack(scales, 1), torch.stack(zeros, 1)


def search_scales(weight: Tensor, inputs: Tensor, bits: int, group_size: int) -> Tensor:
    magnitude = inputs.abs().mean(0)
    magnitude = magnitude / magnitude.max().clamp(min=1e-30)
    tried = [magnitude.clamp(min=1e-4) ** (step / 10) for step in range(10)]
    errors = [output_error(weight, inputs, s, bits, group_size) for s in tried]
    least = min(errors)
    best = tried[errors.index(least)]
    for channel in range(len(best)):
        for factor in (0.7, 0.85, 1.2, 1.4):
            s = best.clone()
            s[channel] *= factor
            error = output_error(weight, inputs, s, bits, group_size)
            if error < least:
                best, least = s, error
    return best


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_layer(q: Tensor, zeros: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    order = range(8) if layout == "gptq" else AWQ_ORDER
    shifts = 4 * torch.arange(8)

    def pack(rows: Tensor) -> Tensor:
        eight = rows.long().unflatten(-1, (-1, 8))[..., list(order)]
        return (eight << shifts).sum(-1).to(torch.int32)

    if layout == "gptq":
        return pack(q).T, pack(zeros.T.long() - 1)
    return pack(q.T), pack(zeros.T)


def fit_params(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    top = 2**bits - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    shares = 1 - torch.arange(20).view(-1, *[1] * low.dim()) / 30  # of the range; the first is all
    scales = shares * (high - low) / top  # [shares, ...]
    scales = torch.where(scales > 0, scales, 1.0)
    zeros = torch.round(-shares * low / scales)
    s, z = scales[..., None], zeros[..., None]
    read_back = ((torch.round(groups / s) + z).clamp(0, top) - z) * s
    errors = (read_back - groups).square().sum(-1)  # [shares, ...]
    best = errors.argmin(0, keepdim=True)
    return scales.gather(0, best)[0], zeros.gather(0, best)[0]
