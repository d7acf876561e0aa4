"""Right answers to lab 12b that are written differently, and wrong ones that are no edits."""

from __future__ import annotations

import math

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_12b import answers
from utils.quant.formats import E2M1, blocks

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 decode


@right("decode")
def digit_by_digit(codes, exponent_bits, mantissa_bits, has_nan):
    """From the written bits, in Python's numbers."""
    numbers = []
    for code in codes.flatten().tolist():
        digits = f"{code:0{1 + exponent_bits + mantissa_bits}b}"
        e = int(digits[1 : 1 + exponent_bits], 2)
        m = int(digits[1 + exponent_bits :], 2) / 2**mantissa_bits
        bias = 2 ** (exponent_bits - 1) - 1
        number = math.ldexp(m + (e > 0), max(e, 1) - bias)
        if has_nan and "0" not in digits[1:]:
            number = math.nan
        numbers.append(math.copysign(number, -1 if digits[0] == "1" else 1))
    return torch.tensor(numbers).view(codes.shape)


@right("decode")
def decoded_in_numpy(codes, exponent_bits, mantissa_bits, has_nan):
    code = codes.numpy().astype(np.int32)
    e, m = (code >> mantissa_bits) % 2**exponent_bits, code % 2**mantissa_bits
    steps = np.where(e == 0, m, m + 2**mantissa_bits).astype(np.float32)
    size = np.ldexp(steps, np.maximum(e, 1) - (2 ** (exponent_bits - 1) - 1) - mantissa_bits)
    half = 2 ** (exponent_bits + mantissa_bits)
    size[(code % half == half - 1) & has_nan] = np.nan
    return torch.from_numpy(np.where(code >= half, -size, size).astype(np.float32))


# 2 encode


def table(exponent_bits, mantissa_bits, largest):
    """The numbers of the codes without a sign, up to the largest, in float64."""
    codes = torch.arange(2 ** (exponent_bits + mantissa_bits))
    known = answers.decode(codes, exponent_bits, mantissa_bits, False).double()
    return known[known <= largest]


@right("encode")
def between_midpoints(values, exponent_bits, mantissa_bits, largest):
    """Counts the midpoints below; on a midpoint, the even neighbor."""
    known = table(exponent_bits, mantissa_bits, largest)
    middle = (known[1:] + known[:-1]) / 2
    size = values.double().abs().contiguous()
    low, high = (torch.bucketize(size, middle, right=side) for side in (False, True))
    codes = torch.where(low % 2 == 0, low, high)
    return codes + torch.signbit(values) * 2 ** (exponent_bits + mantissa_bits)


@right("encode")
def one_after_another(values, exponent_bits, mantissa_bits, largest):
    codes = []
    for value in values.flatten().tolist():
        size, smallest = min(abs(value), largest), 2 - 2 ** (exponent_bits - 1)
        e = max(math.floor(math.log2(size)), smallest) if size > 0 else smallest
        steps = round(size / 2.0 ** (e - mantissa_bits))
        code = steps + (e - smallest) * 2**mantissa_bits
        sign = math.copysign(1, value) < 0
        codes.append(code + sign * 2 ** (exponent_bits + mantissa_bits))
    return torch.tensor(codes, dtype=torch.int16).view(values.shape)


# 3 mxfp4


@right("mxfp4")
def the_librarys(weight):
    found = blocks.mxfp4(weight)
    return found.codes, found.stored_scales


@right("mxfp4")
def block_after_block(weight):
    """With log2, int64 codes, and the scale 1 for zeros."""
    codes, stored = torch.zeros(weight.shape, dtype=torch.int64), []
    for row in range(len(weight)):
        for start in range(0, weight.shape[1], 32):
            block = weight[row, start : start + 32]
            largest = float(block.abs().max())
            k = math.floor(math.log2(largest / 1.75)) + 1 if largest else 2
            codes[row, start : start + 32] = E2M1.encode(block / 2.0 ** (k - 2))
            stored.append(k + 125)
    return codes, torch.tensor(stored).view(len(weight), -1)


# 4 nvfp4


@right("nvfp4")
def the_librarys_too(weight):
    found = blocks.nvfp4(weight)
    codes = torch.where(
        (found.scales == 0).repeat_interleave(16, 1), 0, found.codes
    )  # there the library may have any
    return codes, found.stored_scales, found.global_scale


@right("nvfp4")
def with_torchs_own_fp8(weight):
    top = float(weight.abs().max()) or 1.0
    shared = torch.tensor(2688 / top)
    largest = weight.reshape(len(weight), -1, 16).abs().amax(2)
    stored = (largest * shared / 6).to(torch.float8_e4m3fn)
    scales = (stored.float() / shared).repeat_interleave(16, dim=1)
    units = torch.nan_to_num(weight / scales, 0.0, 0.0, 0.0) * (scales > 0)
    return E2M1.encode(units).int(), stored.view(torch.uint8), shared


# 5 w8a8_linear


@right("w8a8_linear")
def in_float64(inputs, weight):
    def in_steps(rows):
        scale = rows.double().abs().max(1, keepdim=True).values / 127
        return torch.round(rows / scale.clamp(min=1e-40)), scale

    (x, x_scale), (w, w_scale) = in_steps(inputs), in_steps(weight)
    sums = x @ w.T
    return sums.long(), (sums * (x_scale @ w_scale.T)).float()


@right("w8a8_linear")
def product_in_numpy(inputs, weight):
    sides = []
    for rows in (inputs.numpy(), weight.numpy()):
        scale = np.abs(rows).max(1) / np.float32(127)
        scale[scale == 0] = 1
        sides.append((np.rint(rows / scale[:, None]).astype(np.int8), scale))
    (x, x_scale), (w, w_scale) = sides
    sums = np.einsum("ti,oi->to", x, w, dtype=np.int32)
    return torch.from_numpy(sums), torch.from_numpy(sums * np.outer(x_scale, w_scale)).float()


# 6 smooth


@right("smooth")
def shifted_in_logs(inputs, weight, alpha):
    x, w = (side.abs().max(dim=0).values.clamp(min=1e-5).log() for side in (inputs, weight))
    shift = alpha * x - (1 - alpha) * w
    return inputs * (-shift).exp(), weight * shift.exp()


# 7 why_not_one


@right("why_not_one")
def in_capitals():
    return "C"


@wrong("why_not_one", "The factors cancel for every alpha")
def no_longer_cancels():
    return "a"


@wrong("why_not_one", "Nothing is cut off")
def cut_off():
    return "b"


@wrong("why_not_one", "The sums can't overflow")
def overflow():
    return "d"


@wrong("why_not_one", "Return one letter")
def a_sentence():
    return "The loud columns."
