"""Right answers to lab 09 that are written differently, and wrong ones that are no edits."""

from __future__ import annotations

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils import quant
from utils.checks.lab_09 import answers

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 find_params


@right("find_params")
def dimension_by_dimension(groups, bits, sym):
    """By recursion, in Python's numbers."""
    if groups.dim() > 1:
        parts = [dimension_by_dimension(part, bits, sym) for part in groups]
        return tuple(torch.stack(some) for some in zip(*parts, strict=True))
    weights = groups.tolist()
    low, high = min(0.0, *weights), max(0.0, *weights)
    if sym:
        high = max(-low, high)
        low = -high
    scale = (high - low) / (2**bits - 1) or 1.0
    zero = 2 ** (bits - 1) if sym else round(-low / scale)
    return torch.tensor(scale), torch.tensor(float(zero))


# 2 quantize


@right("quantize")
def in_numpy(weight, scales, zeros, bits):
    w, s, z = (t.numpy() for t in (weight, scales, zeros))
    groups = w.reshape(len(w), s.shape[1], -1)
    q = np.clip(np.rint(groups / s[..., None]) + z[..., None], 0, 2**bits - 1)
    return torch.from_numpy(q.reshape(w.shape).astype(np.uint8))


# 3 dequantize


@right("dequantize")
def multiplied_out(q, scales, zeros):
    def wide(per_group):
        return per_group.repeat_interleave(q.shape[1] // scales.shape[1], dim=1)

    return q * wide(scales) - wide(zeros * scales)


# 4 checkpoint_bytes


@right("checkpoint_bytes")
def size_by_bits(linear_shapes, num_other_params, bits, group_size):
    weights = sum(out * width for out, width in linear_shapes)
    return -(-(weights * bits + weights // group_size * (16 + bits)) // 8) + 2 * num_other_params


# 5 quantize_blockwise


@right("quantize_blockwise")
def block_after_block(values, levels, blocksize):
    codes, absmax, known = [], [], levels.tolist()
    for block in values.flatten().split(blocksize):
        largest = float(block.abs().max())
        scaled = [x / (largest or 1.0) for x in block.tolist()]
        codes += [min(range(len(known)), key=lambda i, x=x: abs(known[i] - x)) for x in scaled]
        absmax.append(largest)
    return torch.tensor(codes).to(torch.uint8).view(values.shape), torch.tensor(absmax)


# 6 double_quantize

DYNAMIC, NF4 = quant.create_dynamic_map(), quant.create_normal_map()


@right("double_quantize")
def double_block_by_block(absmax):
    offset = absmax.sum() / absmax.numel()
    codes, nested = [], []
    for block in (absmax - offset).split(256):
        nested.append(block.abs().max())
        scaled = block / (nested[-1] or 1.0)
        codes.append((scaled[..., None] - DYNAMIC).abs().argmin(-1))
    return torch.cat(codes).to(torch.uint8), torch.stack(nested), offset


# 7 dequantize_nf4


@right("dequantize_nf4")
def in_blocks(codes, absmax_codes, nested_absmax, offset, blocksize):
    nested = nested_absmax.repeat_interleave(256)[: len(absmax_codes)]
    absmax = DYNAMIC[absmax_codes.long()] * nested + offset
    return (NF4[codes.view(-1, blocksize).long()] * absmax[:, None]).view(codes.shape)


# 8 prepare


@right("prepare")
def with_einsum(weight, inputs, damp_percent):
    hessian = torch.einsum("ni,nj->ij", inputs, inputs) / (0.5 * inputs.shape[0])
    dead = (inputs == 0).all(0)
    hessian += torch.diag(dead.float())
    trace = hessian.trace()
    hessian.diagonal().add_(damp_percent * trace / len(hessian))
    return torch.where(dead, 0.0, weight), hessian


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
            scales.append(torch.where(largest > 0, 2 * largest / (2**bits - 1), 1.0))
        code = torch.round(columns[i] / scales[-1]) + 2 ** (bits - 1)
        codes.append(code.clamp(0, 2**bits - 1))
        lost = (columns[i] - (codes[-1] - 2 ** (bits - 1)) * scales[-1]) / upper[i, i]
        for j in range(i + 1, len(columns)):
            columns[j] = columns[j] - lost * upper[i, j]
    grid = torch.stack(scales, 1)
    return torch.stack(codes, 1).byte(), grid, torch.full_like(grid, 2 ** (bits - 1))


# 10 search_scales


@right("search_scales")
def by_chance(weight, inputs, bits, group_size):
    """One random channel at a time, by a random factor; the error from S, not from the tokens."""
    moment = inputs.T @ inputs

    def error(s):
        back = quant.rtn(weight * s, bits=bits, group_size=group_size, sym=False).dequantize()
        delta = back / s - weight
        return float((delta @ moment * delta).sum())

    mean = inputs.abs().mean(0)
    loudness = (mean / mean.max().clamp(min=1e-30)).clamp(min=1e-4)
    best = min((loudness ** (step / 10) for step in range(10)), key=error)
    least = error(best)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6 * len(best)):
        s = best.clone()
        channel = int(torch.randint(0, len(s), (1,), generator=generator))
        s[channel] *= float((0.4 * torch.randn((), generator=generator)).exp())
        if (found := error(s)) < least:
            best, least = s, found
    return best


# 11 pack_layer

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@right("pack_layer")
def in_bytes(q, zeros, layout):
    """Two codes to a byte, and four bytes read as one little-endian number."""
    order = list(range(8)) if layout == "gptq" else AWQ_ORDER

    def pack(rows):
        eight = rows.unflatten(-1, (-1, 8))[..., order].flatten(-2).to(torch.uint8)
        return (eight[..., ::2] | eight[..., 1::2] << 4).contiguous().view(torch.int32)

    if layout == "gptq":
        return pack(q).T, pack(zeros.T - 1)
    return pack(q.T), pack(zeros.T)


# 12 fit_params


def lost_by(groups, bits, scales, zeros):
    q = (torch.round(groups / scales[..., None]) + zeros[..., None]).clamp(0, 2**bits - 1)
    return ((q - zeros[..., None]) * scales[..., None] - groups).square().sum(-1)


def the_better(one, other, groups, bits):
    better = lost_by(groups, bits, *other) < lost_by(groups, bits, *one)
    return tuple(torch.where(better, new, old) for new, old in zip(other, one, strict=True))


@right("fit_params")
def each_end_by_itself(groups, bits):
    """Low and high shrink on their own."""
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    best, shares = quant.find_params(groups, bits, False), [1 - step / 10 for step in range(7)]
    for one in shares:
        for other in shares:
            scales = (other * high - one * low) / (2**bits - 1)
            scales = torch.where(scales > 0, scales, 1.0)
            grid = scales, (-one * low / scales).round().clamp(0, 2**bits - 1)
            best = the_better(best, grid, groups, bits)
    return best


# 13 engine

BITS, GROUP_SIZE = 3, 64


def rounded(weight):
    return quant.rtn(weight, bits=BITS, group_size=GROUP_SIZE).dequantize()


def compensated(weight, inputs, **settings):
    hessian = quant.InputStats.of(inputs).hessian
    found = quant.gptq(weight, hessian, bits=BITS, group_size=GROUP_SIZE, **settings)
    return found.dequantize()


def on_a_grid(weight):
    return quant.rtn(weight, bits=BITS, group_size=GROUP_SIZE, sym=False).dequantize()


@right("engine")
def librarys_quantizers():
    return rounded, on_a_grid, compensated


def with_noise(weight, inputs):
    """Compensates with a Hessian that has nothing to do with the inputs."""
    width = weight.shape[1]
    return compensated(weight, torch.randn(len(inputs), width) @ torch.randn(width, width))


def clears_the_inputs(weight, inputs):
    back = compensated(weight, inputs)
    inputs.zero_()
    return back


def without_an_end(weight, inputs):
    while True:
        pass


def quantizers(**wrong_ones):
    """Wrong answers to the last exercise: a name, words of the feedback, rounding and GPTQ."""
    for name, (says, rtn, gptq) in wrong_ones.items():

        def make(rtn=rtn, gptq=gptq):
            return rtn, on_a_grid, gptq

        make.__name__ = name
        wrong("engine", says)(make)


quantizers(
    rounding_twice=("plain rounding", rounded, lambda w, x: rounded(w)),
    no_end=("does not come to an end", rounded, without_an_end),
    weights_as_they_were=("different values", rounded, lambda w, x: w),
    rounds_with_eight_bits=(
        "different values",
        lambda w: quant.rtn(w, bits=8, group_size=64).dequantize(),
        compensated,
    ),
    more_bits_for_gptq=(
        "can't be compared",
        rounded,
        lambda w, x: quant.rtn(w, bits=4, group_size=64).dequantize(),
    ),
    turned=("returned Tensor of shape", rounded, lambda w, x: compensated(w, x).T),
    codes_not_read_back=(
        "far from the weight",
        lambda w: quant.rtn(w, bits=3).q.float(),
        compensated,
    ),
    with_noise=("no better than your rounding", rounded, with_noise),
    inputs_in_another_order=(
        "no better than your rounding",
        rounded,
        lambda w, x: compensated(w, x.flip(-1)),
    ),
    inputs_written_over=("changes in place", rounded, clears_the_inputs),
)


@wrong("engine", "must return three functions")
def only_two():
    return rounded, compensated
