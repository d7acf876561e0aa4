"""Wrong and right answers to lab 09, each as a learner might write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils import quant
from utils.quant.nf4 import quantize_blockwise as librarys_blockwise
from utils.quant.rtn import QuantizedWeight, group_index, to_codes

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 find_params


@right("find_params")
def librarys_params(groups, bits, sym):
    return quant.find_params(groups, bits, sym)


@right("find_params")
def params_with_min_and_max(groups, bits, sym):
    top = 2**bits - 1
    if sym:
        scales = groups.abs().max(dim=-1).values * (2 / top)
        scales[scales == 0] = 1
        return scales, torch.ones_like(scales) * 2 ** (bits - 1)
    zero = torch.zeros(())
    low, high = torch.minimum(groups.min(-1).values, zero), torch.maximum(groups.max(-1)[0], zero)
    scales = (high - low) / top
    scales[scales == 0] = 1
    return scales, torch.clamp((0 - low) / scales, 0, top).round()


def grid(groups, bits, sym, low, high, steps, zero=None):
    scales = (high - low) / steps
    scales = torch.where(scales > 0, scales, 1.0)
    return scales, torch.full_like(scales, zero) if sym else torch.round(-low / scales)


def limits(groups, sym):
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    size = groups.abs().amax(-1)
    return (-size, size) if sym else (low, high)


@wrong("find_params", "divided by 2^bits.")
def sixteen_steps(groups, bits, sym):
    return grid(groups, bits, sym, *limits(groups, sym), 2**bits, 2 ** (bits - 1))


@wrong("find_params", "max|w| / (2^(bits-1) - 1)")
def signed_sevens(groups, bits, sym):
    if not sym:
        return quant.find_params(groups, bits, sym)
    scales = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)
    return torch.where(scales > 0, scales, 1.0), torch.full_like(scales, 2 ** (bits - 1))


@wrong("find_params", "max|w| / 2^(bits-1)")
def signed_eights(groups, bits, sym):
    if not sym:
        return quant.find_params(groups, bits, sym)
    scales = groups.abs().amax(-1) / 2 ** (bits - 1)
    return torch.where(scales > 0, scales, 1.0), torch.full_like(scales, 2 ** (bits - 1))


@wrong("find_params", "does not include 0")
def range_without_zero(groups, bits, sym):
    if sym:
        return quant.find_params(groups, bits, sym)
    low, high = groups.amin(-1), groups.amax(-1)
    return grid(groups, bits, sym, low, high, 2**bits - 1)


@wrong("find_params", "not rounded")
def zero_not_rounded(groups, bits, sym):
    scales, zeros = quant.find_params(groups, bits, sym)
    return scales, zeros if sym else -groups.amin(-1).clamp(max=0) / scales


@wrong("find_params", "cut off")
def zero_cut_off(groups, bits, sym):
    scales, zeros = quant.find_params(groups, bits, sym)
    return scales, zeros if sym else (-groups.amin(-1).clamp(max=0) / scales).int().float()


@wrong("find_params", "scale 0")
def nothing_for_zeros(groups, bits, sym):
    low, high = limits(groups, sym)
    scales = (high - low) / (2**bits - 1)
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if sym else torch.round(-low / scales)
    return scales, zeros


@wrong("find_params", "largest weight only")
def forgets_the_magnitude(groups, bits, sym):
    if not sym:
        return quant.find_params(groups, bits, sym)
    scales = 2 * groups.amax(-1) / (2**bits - 1)
    return torch.where(scales == 0, 1.0, scales), torch.full_like(scales, 2 ** (bits - 1))


@wrong("find_params", "7 of 0..15")
def middle_by_integer_division(groups, bits, sym):
    scales, zeros = quant.find_params(groups, bits, sym)
    return scales, torch.full_like(zeros, (2**bits - 1) // 2) if sym else zeros


@wrong("find_params", "zero is 0")
def signed_zero(groups, bits, sym):
    scales, zeros = quant.find_params(groups, bits, sym)
    return scales, torch.zeros_like(zeros) if sym else zeros


@wrong("find_params", "wrong sign")
def sign_of_the_zero(groups, bits, sym):
    scales, zeros = quant.find_params(groups, bits, sym)
    return scales, zeros if sym else -zeros


@wrong("find_params", "whole tensor")
def one_range_for_all(groups, bits, sym):
    scales, zeros = quant.find_params(groups.flatten(), bits, sym)
    return scales.expand(groups.shape[:-1]).clone(), zeros.expand(groups.shape[:-1]).clone()


@wrong("find_params", "`bits` is ignored")
def always_four(groups, bits, sym):
    return quant.find_params(groups, 4, sym)


@wrong("find_params", "always use the asymmetric")
def never_symmetric(groups, bits, sym):
    return quant.find_params(groups, bits, False)


@wrong("find_params", "expected the tensors `scales`, `zeros`")
def scales_only(groups, bits, sym):
    return quant.find_params(groups, bits, sym)[0]


@wrong("find_params", "one range, and one scale")
def one_number_for_all(groups, bits, sym):
    low, high = groups.min().clamp(max=0), groups.max().clamp(min=0)
    if sym:
        high = groups.abs().max()
        low = -high
    scale = (high - low) / (2**bits - 1)
    scale = torch.where(scale > 0, scale, 1.0)
    return scale, torch.full_like(scale, 2 ** (bits - 1)) if sym else torch.round(-low / scale)


@wrong("find_params", "gets the scale 1e-05")
def a_tiny_scale_for_zeros(groups, bits, sym):
    low, high = limits(groups, sym)
    scales = ((high - low) / (2**bits - 1)).clamp(min=1e-5)
    return scales, torch.full_like(scales, 2 ** (bits - 1)) if sym else torch.round(-low / scales)


# 2 quantize


def wide(per_group, weight):
    return per_group.repeat_interleave(weight.shape[1] // per_group.shape[1], dim=1)


@right("quantize")
def by_unflatten(weight, scales, zeros, bits):
    groups = weight.unflatten(1, (scales.shape[1], -1))
    return to_codes(groups, scales[..., None], zeros[..., None], bits).flatten(1).to(torch.uint8)


@right("quantize")
def by_group_numbers(weight, scales, zeros, bits):
    group = group_index(weight, weight.shape[1] // scales.shape[1]).long()
    q = torch.floor(weight / scales[:, group] + zeros[:, group] + 0.5)
    return torch.minimum(q.clamp(min=0), torch.tensor(2.0**bits - 1)).byte()


@wrong("quantize", "before the zero is added")
def clamped_early(weight, scales, zeros, bits):
    q = (weight / wide(scales, weight)).round().clamp(0, 2**bits - 1) + wide(zeros, weight)
    return q.to(torch.uint8)


@wrong("quantize", "cut off")
def converted_without_rounding(weight, scales, zeros, bits):
    q = (weight / wide(scales, weight) + wide(zeros, weight)).clamp(0, 2**bits - 1)
    return q.to(torch.uint8)


@wrong("quantize", "not clamped")
def unclamped(weight, scales, zeros, bits):
    return ((weight / wide(scales, weight)).round() + wide(zeros, weight)).long().to(torch.uint8)


@wrong("quantize", "clamped to 2^bits.")
def one_code_too_many(weight, scales, zeros, bits):
    q = (weight / wide(scales, weight)).round() + wide(zeros, weight)
    return q.clamp(0, 2**bits).long().to(torch.uint8)


@wrong("quantize", "never used: you clamp to 2^bits - 2")
def one_code_too_few(weight, scales, zeros, bits):
    q = (weight / wide(scales, weight)).round() + wide(zeros, weight)
    return q.clamp(0, 2**bits - 2).to(torch.uint8)


@wrong("quantize", "tiled")
def tiled_scales(weight, scales, zeros, bits):
    times = weight.shape[1] // scales.shape[1]
    q = (weight / scales.repeat(1, times)).round() + zeros.repeat(1, times)
    return q.clamp(0, 2**bits - 1).to(torch.uint8)


@wrong("quantize", "The zero is subtracted")
def zero_subtracted(weight, scales, zeros, bits):
    q = (weight / wide(scales, weight)).round() - wide(zeros, weight)
    return q.clamp(0, 2**bits - 1).to(torch.uint8)


@wrong("quantize", "The zero is left out")
def zero_left_out(weight, scales, zeros, bits):
    return (weight / wide(scales, weight)).round().clamp(0, 2**bits - 1).to(torch.uint8)


@wrong("quantize", "multiply by the scale")
def multiplied(weight, scales, zeros, bits):
    q = (weight * wide(scales, weight)).round() + wide(zeros, weight)
    return q.clamp(0, 2**bits - 1).to(torch.uint8)


@wrong("quantize", "always clamp to 15")
def always_fifteen(weight, scales, zeros, bits):
    return by_unflatten(weight, scales, zeros, 4)


@wrong("quantize", "expected uint8")
def codes_as_floats(weight, scales, zeros, bits):
    return by_unflatten(weight, scales, zeros, bits).float()


# 3 dequantize


@right("dequantize")
def librarys_dequantize(q, scales, zeros):
    g_idx = group_index(q, q.shape[1] // scales.shape[1])
    return QuantizedWeight(q, scales, zeros, g_idx).dequantize()


@right("dequantize")
def multiplied_out(q, scales, zeros):
    return q * wide(scales, q) - wide(zeros * scales, q)


@wrong("dequantize", "subtract in uint8")
def wraps_around(q, scales, zeros):
    return (q - wide(zeros, q)) * wide(scales, q)


@wrong("dequantize", "after the scaling")
def scaled_first(q, scales, zeros):
    return q * wide(scales, q) - wide(zeros, q)


@wrong("dequantize", "The zero is added")
def zero_added(q, scales, zeros):
    return (q.float() + wide(zeros, q)) * wide(scales, q)


@wrong("dequantize", "The zero is left out")
def without_zero(q, scales, zeros):
    return q * wide(scales, q)


@wrong("dequantize", "tiled")
def tiled_back(q, scales, zeros):
    times = q.shape[1] // scales.shape[1]
    return (q.float() - zeros.repeat(1, times)) * scales.repeat(1, times)


@wrong("dequantize", "divide by the scale")
def divided_back(q, scales, zeros):
    return (q.float() - wide(zeros, q)) / wide(scales, q)


@wrong("dequantize", "int8 ends at 127")
def signed_bytes(q, scales, zeros):
    return (q.to(torch.int8) - wide(zeros, q).to(torch.int8)) * wide(scales, q)


# 4 checkpoint_bytes


@right("checkpoint_bytes")
def size_by_bits(linear_shapes, num_other_params, bits, group_size):
    weights = sum(out * width for out, width in linear_shapes)
    return (weights * bits + weights // group_size * (16 + bits)) // 8 + 2 * num_other_params


@right("checkpoint_bytes")
def size_by_bits_per_weight(linear_shapes, num_other_params, bits, group_size):
    weights = sum(out * width for out, width in linear_shapes)
    return weights * (bits + (16 + bits) / group_size) / 8 + 16 * num_other_params / 8


def size(shapes, other, bits, group, per_group, other_bits=16):
    weights = sum(out * width for out, width in shapes)
    return (weights * bits + weights / group * per_group + other * other_bits) / 8


@wrong("checkpoint_bytes", "Scales and zeros are left out")
def codes_only(shapes, other, bits, group):
    return size(shapes, other, bits, group, 0)


@wrong("checkpoint_bytes", "The zeros are left out")
def no_zeros(shapes, other, bits, group):
    return size(shapes, other, bits, group, 16)


@wrong("checkpoint_bytes", "The scales are left out")
def no_scales(shapes, other, bits, group):
    return size(shapes, other, bits, group, bits)


@wrong("checkpoint_bytes", "4 bytes each")
def scales_in_32_bits(shapes, other, bits, group):
    return size(shapes, other, bits, group, 32 + bits)


@wrong("checkpoint_bytes", "other parameters are left out")
def no_embedding(shapes, other, bits, group):
    return size(shapes, 0, bits, group, 16 + bits)


@wrong("checkpoint_bytes", "other parameters are quantized, too")
def embedding_in_four_bits(shapes, other, bits, group):
    return size(shapes, other, bits, group, 16 + bits, bits)


@wrong("checkpoint_bytes", "in bits")
def size_in_bits(shapes, other, bits, group):
    return 8 * size(shapes, other, bits, group, 16 + bits)


@wrong("checkpoint_bytes", "whole byte")
def a_byte_per_code(shapes, other, bits, group):
    weights = sum(out * width for out, width in shapes)
    return weights + weights / group * (2 + bits / 8) + 2 * other


@wrong("checkpoint_bytes", "one scale per layer")
def a_scale_per_layer(shapes, other, bits, group):
    weights = sum(out * width for out, width in shapes)
    return weights * bits / 8 + len(shapes) * (2 + bits / 8) + 2 * other


@wrong("checkpoint_bytes", "groups of one output only")
def groups_of_one_row(shapes, other, bits, group):
    total = 2 * other
    for out, width in shapes:
        total += out * width * bits / 8 + width // group * (2 + bits / 8)
    return total


# 5 quantize_blockwise


def padded(values, blocksize):
    flat = values.flatten()
    return F.pad(flat, (0, -len(flat) % blocksize)).view(-1, blocksize)


def trimmed(codes, values):
    return codes.flatten()[: values.numel()].view(values.shape).to(torch.uint8)


def nearest(scaled, levels):
    return (scaled[..., None] - levels).abs().argmin(-1)


@right("quantize_blockwise")
def block_after_block(values, levels, blocksize):
    codes, absmax = [], []
    for block in values.flatten().split(blocksize):
        largest = block.abs().max()
        scaled = block / largest if largest > 0 else block
        codes += [min(range(len(levels)), key=lambda i: abs(levels[i] - x)) for x in scaled]
        absmax.append(largest)
    return torch.tensor(codes).to(torch.uint8).view(values.shape), torch.stack(absmax)


@right("quantize_blockwise")
def by_middles(values, levels, blocksize):
    blocks = padded(values, blocksize)
    absmax = blocks.abs().amax(1)
    scaled = (blocks / absmax[:, None]).nan_to_num()
    codes = torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)
    return trimmed(codes, values), absmax


def blockwise(values, levels, blocksize, absmax_of, find=nearest):
    blocks = padded(values, blocksize)
    absmax = absmax_of(blocks)
    scaled = blocks / torch.where(absmax == 0, 1.0, absmax)[:, None]
    return trimmed(find(scaled, levels), values), absmax


@wrong("quantize_blockwise", "not the largest magnitude")
def largest_value(values, levels, blocksize):
    return blockwise(values, levels, blocksize, lambda b: b.amax(1))


@wrong("quantize_blockwise", "One absmax serves all blocks")
def one_absmax(values, levels, blocksize):
    return blockwise(values, levels, blocksize, lambda b: b.abs().max().repeat(len(b)))


@wrong("quantize_blockwise", "mean magnitude")
def mean_magnitude(values, levels, blocksize):
    return blockwise(values, levels, blocksize, lambda b: b.abs().mean(1))


@wrong("quantize_blockwise", "divided by 0")
def zeros_over_zero(values, levels, blocksize):
    blocks = padded(values, blocksize)
    absmax = blocks.abs().amax(1)
    return trimmed(nearest(blocks / absmax[:, None], levels), values), absmax


@wrong("quantize_blockwise", "level above")
def bucketized_levels(values, levels, blocksize):
    return blockwise(
        values, levels, blocksize, lambda b: b.abs().amax(1),
        lambda scaled, lv: torch.bucketize(scaled, lv).clamp(max=len(lv) - 1),
    )  # fmt: skip


@wrong("quantize_blockwise", "level below")
def searched_from_the_right(values, levels, blocksize):
    return blockwise(
        values, levels, blocksize, lambda b: b.abs().amax(1),
        lambda scaled, lv: (torch.searchsorted(lv, scaled, right=True) - 1).clamp(min=0),
    )  # fmt: skip


@wrong("quantize_blockwise", "evenly spaced")
def equal_steps(values, levels, blocksize):
    return blockwise(
        values, levels, blocksize, lambda b: b.abs().amax(1),
        lambda scaled, lv: ((scaled + 1) / 2 * (len(lv) - 1)).round(),
    )  # fmt: skip


@wrong("quantize_blockwise", "always the last level")
def signed_distance(values, levels, blocksize):
    return blockwise(
        values, levels, blocksize, lambda b: b.abs().amax(1),
        lambda scaled, lv: (scaled[..., None] - lv).argmin(-1),
    )  # fmt: skip


@wrong("quantize_blockwise", "not divided by their block's absmax")
def never_scaled(values, levels, blocksize):
    blocks = padded(values, blocksize)
    return trimmed(nearest(blocks, levels), values), blocks.abs().amax(1)


@wrong("quantize_blockwise", "begin anew in each row")
def blocks_per_row(values, levels, blocksize):
    rows = values if values.ndim > 1 else values[None]
    parts = [by_middles(row, levels, blocksize) for row in rows]
    codes = torch.stack([codes for codes, _ in parts]).view(values.shape)
    return codes, torch.cat([absmax for _, absmax in parts])


@wrong("quantize_blockwise", "expected (5, 6)", "`codes` has the shape")
def padding_kept(values, levels, blocksize):
    codes, absmax = by_middles(padded(values, blocksize), levels, blocksize)
    fits = values.numel() % blocksize == 0
    return codes.view(values.shape) if fits else codes, absmax


@wrong("quantize_blockwise", "returned with the absmax 1")
def absmax_of_zeros_is_one(values, levels, blocksize):
    codes, absmax = by_middles(values, levels, blocksize)
    return codes, torch.where(absmax == 0, 1.0, absmax)


@wrong("quantize_blockwise", "`codes` is int64")
def places_as_argmin_gives_them(values, levels, blocksize):
    codes, absmax = by_middles(values, levels, blocksize)
    return codes.long(), absmax


# 6 double_quantize

DYNAMIC = quant.create_dynamic_map()


@right("double_quantize")
def librarys_double(absmax):
    offset = absmax.mean()
    return *librarys_blockwise(absmax - offset, DYNAMIC, 256), offset


@right("double_quantize")
def double_block_by_block(absmax):
    offset = absmax.sum() / absmax.numel()
    codes, nested = [], []
    for block in (absmax - offset).split(256):
        nested.append(block.abs().max())
        codes.append(nearest(block / nested[-1], DYNAMIC))
    return torch.cat(codes).to(torch.uint8), torch.stack(nested), offset


def double(absmax, offset, blocksize=256, levels=DYNAMIC):
    return *by_middles(absmax - offset, levels, blocksize), offset


@wrong("double_quantize", "mean is not subtracted")
def nothing_subtracted(absmax):
    return double(absmax, torch.zeros(()))


@wrong("double_quantize", "smallest value")
def smallest_subtracted(absmax):
    return double(absmax, absmax.min())


@wrong("double_quantize", "median")
def median_subtracted(absmax):
    return double(absmax, absmax.median())


@wrong("double_quantize", "blocks have 64 values")
def blocks_of_64(absmax):
    return double(absmax, absmax.mean(), 64)


@wrong("double_quantize", "share one block")
def one_block(absmax):
    return double(absmax, absmax.mean(), len(absmax))


@wrong("double_quantize", "NF4's 16 levels")
def four_bits_again(absmax):
    return double(absmax, absmax.mean(), levels=quant.create_normal_map())


@wrong("double_quantize", "before the mean was subtracted")
def absmax_of_absmax(absmax):
    nested = torch.stack([block.max() for block in absmax.split(256)])
    offset = absmax.mean()
    scaled = (absmax - offset) / nested.repeat_interleave(256)[: len(absmax)]
    return nearest(scaled, DYNAMIC).to(torch.uint8), nested, offset


@wrong("double_quantize", "offset of its own")
def an_offset_per_block(absmax):
    blocks = [double(block, block.mean()) for block in absmax.split(256)]
    codes, nested, offsets = zip(*blocks, strict=True)
    return torch.cat(codes), torch.cat(nested), torch.stack(offsets)


# 7 dequantize_nf4

NF4 = quant.create_normal_map()


def absmax_back(absmax_codes, nested_absmax, offset):
    scale = nested_absmax.repeat_interleave(256)[: len(absmax_codes)]
    return DYNAMIC[absmax_codes.long()] * scale + offset


@right("dequantize_nf4")
def back_by_division(codes, absmax_codes, nested_absmax, offset, blocksize):
    block = torch.arange(codes.numel()) // blocksize
    absmax = DYNAMIC[absmax_codes.int()] * nested_absmax[torch.arange(len(absmax_codes)) // 256]
    return (NF4[codes.flatten().int()] * (absmax + offset)[block]).view(codes.shape)


@right("dequantize_nf4")
def back_in_blocks(codes, absmax_codes, nested_absmax, offset, blocksize):
    absmax = absmax_back(absmax_codes, nested_absmax, offset)
    return (NF4[codes.view(-1, blocksize).long()] * absmax[:, None]).view(codes.shape)


def back(codes, absmax, blocksize):
    return (NF4[codes.view(-1, blocksize).long()] * absmax[:, None]).view(codes.shape)


@wrong("dequantize_nf4", "offset is left out")
def offset_forgotten(codes, absmax_codes, nested_absmax, offset, blocksize):
    return back(codes, absmax_back(absmax_codes, nested_absmax, 0), blocksize)


@wrong("dequantize_nf4", "subtracted once more")
def offset_subtracted(codes, absmax_codes, nested_absmax, offset, blocksize):
    return back(codes, absmax_back(absmax_codes, nested_absmax, -offset), blocksize)


@wrong("dequantize_nf4", "before the scaling")
def offset_first(codes, absmax_codes, nested_absmax, offset, blocksize):
    scale = nested_absmax.repeat_interleave(256)[: len(absmax_codes)]
    return back(codes, (DYNAMIC[absmax_codes.long()] + offset) * scale, blocksize)


@wrong("dequantize_nf4", "`nested_absmax` is left out")
def nested_forgotten(codes, absmax_codes, nested_absmax, offset, blocksize):
    return back(codes, DYNAMIC[absmax_codes.long()] + offset, blocksize)


@wrong("dequantize_nf4", "absmax values are tiled")
def absmax_tiled(codes, absmax_codes, nested_absmax, offset, blocksize):
    absmax = absmax_back(absmax_codes, nested_absmax, offset).repeat(blocksize)
    return (NF4[codes.flatten().long()] * absmax).view(codes.shape)


@wrong("dequantize_nf4", "nested absmax values are tiled")
def nested_tiled(codes, absmax_codes, nested_absmax, offset, blocksize):
    scale = nested_absmax.repeat(256)[: len(absmax_codes)]
    return back(codes, DYNAMIC[absmax_codes.long()] * scale + offset, blocksize)


@wrong("dequantize_nf4", "Only the first nested absmax")
def first_nested_only(codes, absmax_codes, nested_absmax, offset, blocksize):
    return back(codes, DYNAMIC[absmax_codes.long()] * nested_absmax[0] + offset, blocksize)


@wrong("dequantize_nf4", "evenly spaced numbers")
def codes_as_numbers(codes, absmax_codes, nested_absmax, offset, blocksize):
    absmax = absmax_back(absmax_codes, nested_absmax, offset).repeat_interleave(blocksize)
    return (codes.flatten() / 7.5 - 1).mul(absmax).view(codes.shape)


@wrong("dequantize_nf4", "shape '[4, -1]' is invalid")
def blocks_within_a_row(codes, absmax_codes, nested_absmax, offset, blocksize):
    absmax = absmax_back(absmax_codes, nested_absmax, offset).view(len(codes), -1)
    return NF4[codes.long()] * absmax.repeat_interleave(blocksize, 1)


# 8 prepare


@right("prepare")
def from_the_librarys_sums(weight, inputs, damp_percent):
    hessian = quant.InputStats.of(inputs).hessian
    dead = hessian.diagonal() == 0
    hessian[dead, dead] = 1
    damping = damp_percent * hessian.diagonal().mean()
    return weight * ~dead, hessian + damping * torch.eye(len(hessian))


@right("prepare")
def with_einsum(weight, inputs, damp_percent):
    hessian = torch.einsum("ni,nj->ij", inputs, inputs) / (0.5 * inputs.shape[0])
    dead = (inputs == 0).all(0)
    hessian += torch.diag(dead.float())
    trace = hessian.trace()
    hessian.diagonal().add_(damp_percent * trace / len(hessian))
    return torch.where(dead, 0.0, weight), hessian


def ready(weight, inputs, damp_percent, hessian=None, clear=True, damp=None):
    hessian = 2 * inputs.T @ inputs / len(inputs) if hessian is None else hessian
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    if damp is None:
        damp = damp_percent * hessian.diagonal().mean()
    hessian.diagonal().add_(damp)
    return weight.masked_fill(dead, 0) if clear else weight, hessian


@wrong("prepare", "factor 2 is missing")
def without_two(weight, inputs, damp_percent):
    return ready(weight, inputs, damp_percent, inputs.T @ inputs / len(inputs))


@wrong("prepare", "not divided by their number")
def a_sum_over_tokens(weight, inputs, damp_percent):
    return ready(weight, inputs, damp_percent, 2 * inputs.T @ inputs)


@wrong("prepare", "covariance")
def covariance(weight, inputs, damp_percent):
    x = inputs - inputs.mean(0)
    return ready(weight, inputs, damp_percent, 2 * x.T @ x / len(x))


@wrong("prepare", "not damped")
def not_damped(weight, inputs, damp_percent):
    return ready(weight, inputs, damp_percent, damp=0.0)


@wrong("prepare", "added to every entry")
def damped_everywhere(weight, inputs, damp_percent):
    weight, hessian = ready(weight, inputs, damp_percent, damp=0.0)
    return weight, hessian + damp_percent * hessian.diagonal().mean()


@wrong("prepare", "does not depend on how large")
def damped_by_a_constant(weight, inputs, damp_percent):
    return ready(weight, inputs, damp_percent, damp=damp_percent)


@wrong("prepare", "mean of the whole matrix")
def mean_of_the_matrix(weight, inputs, damp_percent):
    weight, hessian = ready(weight, inputs, damp_percent, damp=0.0)
    hessian.diagonal().add_(damp_percent * hessian.mean())
    return weight, hessian


@wrong("prepare", "weights of a dead channel are kept")
def dead_weights_kept(weight, inputs, damp_percent):
    return ready(weight, inputs, damp_percent, clear=False)


@wrong("prepare", "not treated at all")
def dead_channels_forgotten(weight, inputs, damp_percent):
    hessian = 2 * inputs.T @ inputs / len(inputs)
    hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())
    return weight, hessian


@wrong("prepare", "after the damping")
def dead_channels_last(weight, inputs, damp_percent):
    hessian = 2 * inputs.T @ inputs / len(inputs)
    dead = hessian.diagonal() == 0
    hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())
    hessian.diagonal()[dead] = 1
    return weight.masked_fill(dead, 0), hessian


@wrong("prepare", "in place")
def clears_the_callers_weight(weight, inputs, damp_percent):
    weight[:, (inputs == 0).all(0)] = 0
    return ready(weight, inputs, damp_percent)


@wrong("prepare", "the shape (1, 1)")
def tokens_by_tokens(weight, inputs, damp_percent):
    hessian = 2 * inputs @ inputs.T / len(inputs)
    return weight, hessian


@wrong("prepare", "before the dead channels are set to 1")
def mean_taken_early(weight, inputs, damp_percent):
    damp = damp_percent * (2 * inputs.T @ inputs / len(inputs)).diagonal().mean()
    return ready(weight, inputs, damp_percent, damp=damp)


@wrong("prepare", "whose inputs cancel is taken for dead")
def dead_by_the_sum(weight, inputs, damp_percent):
    hessian = 2 * inputs.T @ inputs / len(inputs)
    dead = inputs.sum(0) == 0
    hessian.diagonal()[dead] = 1
    hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())
    return weight.masked_fill(dead, 0), hessian


# 9 gptq


@right("gptq")
def in_lazy_blocks(weight, upper, bits, group_size):
    """The library's, which gets its Hessian back from the factor."""
    hessian = torch.linalg.inv(upper.double().T @ upper.double()).float()
    found = quant.gptq(
        weight, hessian, bits=bits, group_size=group_size, damp_percent=0.0, block_size=group_size
    )
    return found.q, found.scales, found.zeros.float()


@right("gptq")
def columns_as_a_list(weight, upper, bits, group_size):
    columns = list(weight.clone().unbind(1))
    codes, scales = [], []
    for i in range(len(columns)):
        if i % group_size == 0:
            largest = torch.stack(columns[i : i + group_size]).abs().amax(0)
            scales.append(2 * largest / (2**bits - 1))
        code = torch.round(columns[i] / scales[-1]) + 2 ** (bits - 1)
        codes.append(code.clamp(0, 2**bits - 1))
        lost = (columns[i] - (codes[-1] - 2 ** (bits - 1)) * scales[-1]) / upper[i, i]
        for j in range(i + 1, len(columns)):
            columns[j] = columns[j] - lost * upper[i, j]
    grid = torch.stack(scales, 1)
    return torch.stack(codes, 1).byte(), grid, torch.full_like(grid, 2 ** (bits - 1))


def columns(weight, upper, bits, group_size, spread=None, error=None, grids=None, later=None):
    """The loop of GPTQ; each argument replaces one of its lines."""
    w, q = weight.clone(), torch.zeros_like(weight)
    scales = torch.zeros(len(w), w.shape[1] // group_size)
    middle = 2 ** (bits - 1)
    for i in range(w.shape[1]):
        g = i // group_size
        if grids:
            grids(scales, w, i, g)
        elif i % group_size == 0:
            scales[:, g] = 2 * w[:, i : i + group_size].abs().amax(1) / (2**bits - 1)
        q[:, i] = (w[:, i] / scales[:, g]).round().add(middle).clamp(0, 2**bits - 1)
        read = (q[:, i] - middle) * scales[:, g]
        lost = error(w, q, read, i) if error else (w[:, i] - read) / upper[i, i]
        row = spread(i) if spread else upper[i]
        end = later(i) if later else w.shape[1]
        w[:, i + 1 : end] -= lost[:, None] * row[i + 1 : end]
    return q.to(torch.uint8), scales, torch.full_like(scales, middle)


@wrong("gptq", "codes of plain rounding")
def plain_rounding(weight, upper, bits, group_size):
    found = quant.rtn(weight, bits=bits, group_size=group_size)
    return found.q, found.scales, found.zeros.float()


@wrong("gptq", "codes of plain rounding")
def column_of_the_factor(weight, upper, bits, group_size):
    return columns(weight, upper, bits, group_size, spread=lambda i: upper[:, i])


@wrong("gptq", "as they were at first")
def scales_before_the_loop(weight, upper, bits, group_size):
    early = quant.rtn(weight, bits=bits, group_size=group_size).scales

    def take(scales, w, i, g):
        scales[:, g] = early[:, g]

    return columns(weight, upper, bits, group_size, grids=take)


@wrong("gptq", "anew at each column")
def a_scale_per_column(weight, upper, bits, group_size):
    def take(scales, w, i, g):
        rest = w[:, i : (g + 1) * group_size]
        scales[:, g] = 2 * rest.abs().amax(1) / (2**bits - 1)

    return columns(weight, upper, bits, group_size, grids=take)


@wrong("gptq", "scale of the first")
def the_first_groups_scale(weight, upper, bits, group_size):
    def take(scales, w, i, g):
        if i == 0:
            first = 2 * w[:, :group_size].abs().amax(1) / (2**bits - 1)
            scales[:] = first[:, None]

    return columns(weight, upper, bits, group_size, grids=take)


@wrong("gptq", "not divided by `upper[i, i]`")
def error_not_divided(weight, upper, bits, group_size):
    return columns(weight, upper, bits, group_size, error=lambda w, q, read, i: w[:, i] - read)


@wrong("gptq", "divided twice")
def error_over_the_square(weight, upper, bits, group_size):
    return columns(
        weight, upper, bits, group_size,
        error=lambda w, q, read, i: (w[:, i] - read) / upper[i, i] ** 2,
    )  # fmt: skip


@wrong("gptq", "The sign is wrong")
def error_added(weight, upper, bits, group_size):
    return columns(
        weight, upper, bits, group_size,
        error=lambda w, q, read, i: (read - w[:, i]) / upper[i, i],
    )  # fmt: skip


@wrong("gptq", "inverse of the whole Hessian")
def one_inverse_for_all(weight, upper, bits, group_size):
    inverse = upper.T @ upper
    return columns(
        weight, upper, bits, group_size, spread=lambda i: inverse[i],
        error=lambda w, q, read, i: (w[:, i] - read) / inverse[i, i],
    )  # fmt: skip


@wrong("gptq", "stays within its group")
def within_the_group(weight, upper, bits, group_size):
    return columns(
        weight, upper, bits, group_size, later=lambda i: (i // group_size + 1) * group_size
    )


@wrong("gptq", "Only the next column")
def the_next_column_only(weight, upper, bits, group_size):
    return columns(weight, upper, bits, group_size, later=lambda i: i + 2)


@wrong("gptq", "distance to the *code*")
def distance_to_the_code(weight, upper, bits, group_size):
    return columns(
        weight, upper, bits, group_size,
        error=lambda w, q, read, i: (w[:, i] - q[:, i]) / upper[i, i],
    )  # fmt: skip


@wrong("gptq", "from the first weights")
def distance_from_the_first_weights(weight, upper, bits, group_size):
    return columns(
        weight, upper, bits, group_size,
        error=lambda w, q, read, i: (weight[:, i] - read) / upper[i, i],
    )  # fmt: skip


@wrong("gptq", "in place")
def moves_the_callers_weight(weight, upper, bits, group_size):
    answer = columns(weight, upper, bits, group_size)
    weight -= 1
    return answer


@wrong("gptq", "anew at each column")
def a_scale_for_the_next_columns(weight, upper, bits, group_size):
    w, q, scales = weight.clone(), torch.zeros_like(weight), []
    for i in range(w.shape[1]):
        scale, zero = quant.find_params(w[:, i : i + group_size], bits, True)
        if i % group_size == 0:
            scales.append(scale)
        q[:, i] = (torch.round(w[:, i] / scale) + zero).clamp(0, 2**bits - 1)
        error = (w[:, i] - (q[:, i] - zero) * scale) / upper[i, i]
        w[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    grid = torch.stack(scales, 1)
    return q.byte(), grid, torch.full_like(grid, 2 ** (bits - 1))


@wrong("gptq", "all columns to the right")
def scales_of_the_rest(weight, upper, bits, group_size):
    def take(scales, w, i, g):
        if i % group_size == 0:
            scales[:, g] = 2 * w[:, i:].abs().amax(1) / (2**bits - 1)

    return columns(weight, upper, bits, group_size, grids=take)


@wrong("gptq", "what the columns before have moved is lost")
def rounds_the_first_weights(weight, upper, bits, group_size):
    w, q, scales = weight.clone(), torch.zeros_like(weight), []
    for i in range(w.shape[1]):
        if i % group_size == 0:
            scale, zero = quant.find_params(w[:, i : i + group_size], bits, True)
            scales.append(scale)
        q[:, i] = (torch.round(weight[:, i] / scale) + zero).clamp(0, 2**bits - 1)
        error = (weight[:, i] - (q[:, i] - zero) * scale) / upper[i, i]
        w[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    grid = torch.stack(scales, 1)
    return q.byte(), grid, torch.full_like(grid, 2 ** (bits - 1))


@wrong("gptq", "grids are asymmetric")
def asymmetric_grids(weight, upper, bits, group_size):
    w, q, grid = weight.clone(), torch.zeros_like(weight), []
    for i in range(w.shape[1]):
        if i % group_size == 0:
            grid.append(quant.find_params(w[:, i : i + group_size], bits, False))
        scale, zero = grid[-1]
        q[:, i] = (torch.round(w[:, i] / scale) + zero).clamp(0, 2**bits - 1)
        error = (w[:, i] - (q[:, i] - zero) * scale) / upper[i, i]
        w[:, i + 1 :] -= error[:, None] * upper[i, i + 1 :]
    return q.byte(), *(torch.stack(part, 1) for part in zip(*grid, strict=True))


# 10 search_scales


def read_back(weight, bits, group_size, sym=False):
    return quant.rtn(weight, bits=bits, group_size=group_size, sym=sym).dequantize()


def centred(scales):
    return scales / (scales.max() * scales.min()).sqrt()


@right("search_scales")
def librarys_search(weight, inputs, bits, group_size, n_grid):
    stats = quant.InputStats.of(inputs)
    found = quant.search_scales(
        weight, stats, bits=bits, group_size=group_size, duo_scaling=False, n_grid=n_grid
    )
    return found.scales


@right("search_scales")
def all_at_once(weight, inputs, bits, group_size, n_grid):
    ratios = torch.arange(n_grid) / n_grid
    tried = [centred(inputs.abs().mean(0) ** ratio) for ratio in ratios]
    moment = inputs.T @ inputs
    deltas = [read_back(weight * s, bits, group_size) / s - weight for s in tried]
    errors = torch.stack([(delta @ moment * delta).sum() for delta in deltas])
    return tried[int(errors.argmin())]


def searched(weight, inputs, bits, group_size, ratios, *, salience=None, error=None, exponent=1):
    magnitude = inputs.abs().mean(0) if salience is None else salience
    best, least = None, float("inf")
    for ratio in ratios:
        scales = centred(magnitude ** (exponent * ratio))
        back = read_back(weight * scales, bits, group_size)
        if error is None:
            lost = (inputs @ (back / scales - weight).T).square().sum()
        else:
            lost = error(back, scales)
        if lost < least:
            best, least = scales, lost
    return best


def twenty(n_grid):
    return [step / n_grid for step in range(n_grid)]


@wrong("search_scales", "measured on the weights")
def error_of_the_weights(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid),
        error=lambda back, s: (back / s - weight).square().sum(),
    )  # fmt: skip


@wrong("search_scales", "not taken out again")
def scales_left_in(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid),
        error=lambda back, s: (inputs @ (back - weight).T).square().sum(),
    )  # fmt: skip


@wrong("search_scales", "exponent has the wrong sign")
def scaled_down(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, twenty(n_grid), exponent=-1)


@wrong("search_scales", "cancel in your mean")
def signed_mean(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, twenty(n_grid), salience=inputs.mean(0).abs())


@wrong("search_scales", "largest input of each channel")
def largest_input(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, twenty(n_grid), salience=inputs.abs().amax(0))


@wrong("search_scales", "comes from the weights")
def importance_of_weights(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, twenty(n_grid), salience=weight.abs().mean(0))


@wrong("search_scales", "mean square")
def mean_squares(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid), salience=inputs.square().mean(0)
    )


@wrong("search_scales", "not centred")
def not_centred(weight, inputs, bits, group_size, n_grid):
    scales = librarys_search(weight, inputs, bits, group_size, n_grid)
    magnitude = inputs.abs().mean(0)
    ratios = twenty(n_grid)
    distance = [(centred(magnitude**ratio) - scales).abs().sum() for ratio in ratios]
    return magnitude ** ratios[int(torch.stack(distance).argmin())]


@wrong("search_scales", "last ratio's scales")
def the_last_one_tried(weight, inputs, bits, group_size, n_grid):
    return centred(inputs.abs().mean(0) ** ((n_grid - 1) / n_grid))


@wrong("search_scales", "ratio 0.5")
def square_root(weight, inputs, bits, group_size, n_grid):
    return centred(inputs.abs().mean(0).sqrt())


@wrong("search_scales", "*largest* error")
def worst_of_all(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid),
        error=lambda back, s: -(inputs @ (back / s - weight).T).square().sum(),
    )  # fmt: skip


@wrong("search_scales", "ratio 1 is tried, too")
def one_ratio_too_many(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, [*twenty(n_grid), 1.0])


@wrong("search_scales", "Ratio 0 is not tried")
def never_plain_rounding(weight, inputs, bits, group_size, n_grid):
    return searched(weight, inputs, bits, group_size, twenty(n_grid)[1:])


@wrong("search_scales", "symmetric grid")
def symmetric_search(weight, inputs, bits, group_size, n_grid):
    best, least = None, float("inf")
    for ratio in twenty(n_grid):
        scales = centred(inputs.abs().mean(0) ** ratio)
        back = read_back(weight * scales, bits, group_size, sym=True) / scales
        lost = (inputs @ (back - weight).T).square().sum()
        if lost < least:
            best, least = scales, lost
    return best


@wrong("search_scales", "square afterwards")
def errors_cancel(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid),
        error=lambda back, s: (inputs @ (back / s - weight).T).double().sum() ** 2,
    )  # fmt: skip


@wrong("search_scales", "root of the mean square")
def root_mean_square(weight, inputs, bits, group_size, n_grid):
    salience = inputs.square().mean(0).sqrt()
    return searched(weight, inputs, bits, group_size, twenty(n_grid), salience=salience)


@wrong("search_scales", "inputs are divided by s as well")
def scaled_inputs(weight, inputs, bits, group_size, n_grid):
    return searched(
        weight, inputs, bits, group_size, twenty(n_grid),
        error=lambda back, s: ((inputs / s) @ (back / s - weight).T).square().sum(),
    )  # fmt: skip


# 11 pack_layer

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
AWQ_INVERSE = [0, 4, 1, 5, 2, 6, 3, 7]
IN_ORDER = list(range(8))


@right("pack_layer")
def librarys_packing(q, zeros, layout):
    pack = quant.pack_int4 if layout == "gptq" else quant.pack_int4_awq
    if layout == "gptq":
        return pack(q).t().contiguous(), pack(zeros.t().int() - 1)
    return pack(q.t()), pack(zeros.t())


@right("pack_layer")
def in_numpys_bytes(q, zeros, layout):
    """Two codes to a byte, and four bytes read as one little-endian number."""
    order = IN_ORDER if layout == "gptq" else AWQ_ORDER

    def pack(rows):
        eight = rows.unflatten(-1, (-1, 8))[..., order].flatten(-2).to(torch.uint8)
        return (eight[..., ::2] | eight[..., 1::2] << 4).contiguous().view(torch.int32)

    if layout == "gptq":
        return pack(q).T, pack(zeros.T - 1)
    return pack(q.T), pack(zeros.T)


def packed(rows, order=IN_ORDER, shift=4):
    total = torch.zeros(*rows.shape[:-1], rows.shape[-1] // 8, dtype=torch.int64)
    for nibble, source in enumerate(order):
        total |= rows[..., source::8].long() << shift * nibble
    return total.to(torch.int32)


def both(q, zeros, layout, gptq=IN_ORDER, awq=AWQ_ORDER, minus=(1, 0)):
    if layout == "gptq":
        return packed(q, gptq).T, packed(zeros.T.int() - minus[0], gptq)
    return packed(q.T, awq), packed(zeros.T.int() - minus[1], awq)


@wrong("pack_layer", "stores zero - 1, a slip")
def zeros_as_they_are(q, zeros, layout):
    return both(q, zeros, layout, minus=(0, 0))


@wrong("pack_layer", "zero - 1 in both layouts")
def minus_one_everywhere(q, zeros, layout):
    return both(q, zeros, layout, minus=(1, 1))


@wrong("pack_layer", "zero + 1")
def plus_one(q, zeros, layout):
    more = (zeros.int() + 1) & 15
    return both(q, more if layout == "gptq" else zeros, layout, minus=(0, 0))


@wrong("pack_layer", "Yours holds channel i")
def awq_in_order(q, zeros, layout):
    return both(q, zeros, layout, awq=IN_ORDER)


@wrong("pack_layer", "wrong way round")
def awq_scattered(q, zeros, layout):
    return both(q, zeros, layout, awq=AWQ_INVERSE)


@wrong("pack_layer", "interleave in both")
def gptq_interleaved(q, zeros, layout):
    return both(q, zeros, layout, gptq=AWQ_ORDER)


@wrong("pack_layer", "in the highest nibble")
def highest_first(q, zeros, layout):
    return both(q, zeros, layout, IN_ORDER[::-1], AWQ_ORDER[::-1])


@wrong("pack_layer", "AWQ's zeros are not interleaved")
def awqs_zeros_in_order(q, zeros, layout):
    qweight, qzeros = both(q, zeros, layout)
    return qweight, qzeros if layout == "gptq" else packed(zeros.T)


@wrong("pack_layer", "You pack along the outputs")
def gptq_along_the_outputs(q, zeros, layout):
    qweight, qzeros = both(q, zeros, layout)
    return packed(q.T) if layout == "gptq" else qweight, qzeros


@wrong("pack_layer", "You pack along the inputs")
def awq_along_the_inputs(q, zeros, layout):
    qweight, qzeros = both(q, zeros, layout)
    return qweight if layout == "gptq" else packed(q, AWQ_ORDER).T, qzeros


@wrong("pack_layer", "is int64")
def sixty_four_bits(q, zeros, layout):
    return tuple(part.long() & 0xFFFFFFFF for part in both(q, zeros, layout))


@wrong("pack_layer", "8 bits per code")
def a_byte_each(q, zeros, layout):
    if layout == "gptq":
        return packed(q, shift=8).T, packed(zeros.T.int() - 1, shift=8)
    return packed(q.T, AWQ_ORDER, 8), packed(zeros.T, AWQ_ORDER, 8)


@wrong("pack_layer", "Large int32 are cut off")
def sign_bit_lost(q, zeros, layout):
    full = (part.long() & 0xFFFFFFFF for part in both(q, zeros, layout))
    return tuple(part.clamp(max=2**31 - 1).int() for part in full)


@wrong("pack_layer", "lies on its side")
def not_transposed(q, zeros, layout):
    qweight, qzeros = both(q, zeros, layout)
    return qweight.T if layout == "gptq" else qweight, qzeros


@wrong("pack_layer", "shift in uint8")
def shifted_in_bytes(q, zeros, layout):
    def pack(rows, order):
        eight = rows.unflatten(-1, (-1, 8))[..., order]
        return (eight << (4 * torch.arange(8)).to(torch.uint8)).sum(-1).to(torch.int32)

    if layout == "gptq":
        return pack(q, IN_ORDER).T, pack(zeros.T - 1, IN_ORDER)
    return pack(q.T, AWQ_ORDER), pack(zeros.T, AWQ_ORDER)


# 12 engine

BITS, GROUP_SIZE = 3, 64


def rounded(weight):
    return quant.rtn(weight, bits=BITS, group_size=GROUP_SIZE).dequantize()


def compensated(weight, inputs, **settings):
    hessian = quant.InputStats.of(inputs).hessian
    found = quant.gptq(weight, hessian, bits=BITS, group_size=GROUP_SIZE, **settings)
    return found.dequantize()


@right("engine")
def librarys_quantizers():
    return rounded, compensated


@right("engine")
def more_damping():
    return rounded, lambda weight, inputs: compensated(weight, inputs, damp_percent=0.1)


@wrong("engine", "plain rounding")
def rounding_twice():
    return rounded, lambda weight, inputs: rounded(weight)


@wrong("engine", "different values")
def weights_as_they_were():
    return rounded, lambda weight, inputs: weight


@wrong("engine", "different values")
def rounds_with_eight_bits():
    return lambda weight: quant.rtn(weight, bits=8, group_size=GROUP_SIZE).dequantize(), compensated


@wrong("engine", "must return a pair")
def only_one():
    return rounded


@wrong("engine", "returned Tensor of shape")
def codes_in_place_of_weights():
    return rounded, lambda weight, inputs: compensated(weight, inputs).T


@wrong("engine", "far from the weight")
def codes_not_read_back():
    return lambda weight: quant.rtn(weight, bits=BITS).q.float(), compensated


@wrong("engine", "more than plain rounding does")
def identity_for_hessian():
    """Compensates with a Hessian that has nothing to do with the inputs."""

    def quantize(weight, inputs):
        other = torch.randn(len(inputs), weight.shape[1]) @ torch.randn(
            weight.shape[1], weight.shape[1]
        )
        return compensated(weight, other)

    return rounded, quantize


@wrong("engine", "no better than your rounding")
def calibrated_on_a_small_layer_only():
    """Right on small layers; on large ones the last groups are left to rounding of noise."""

    def quantize(weight, inputs):
        if weight.shape[1] <= 128:
            return compensated(weight, inputs)
        return compensated(weight, inputs.flip(-1))

    return rounded, quantize
