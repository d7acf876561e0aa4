"""Weights in FP8, MXFP4 and NVFP4: small floats with scales.

| format        | numbers | scale of                  | the scale is           | bits per weight |
|---------------|---------|---------------------------|------------------------|-----------------|
| FP8           | E4M3    | one output channel        | float32                | 8 and a little  |
| MXFP8         | E4M3    | 32 weights                | a power of two (E8M0)  | 8.25            |
| MXFP4         | E2M1    | 32 weights                | a power of two (E8M0)  | 4.25            |
| NVFP4         | E2M1    | 16 weights, and one more  | E4M3; float32          | 4.5             |
|               |         | of the whole tensor       |                        |                 |

Blocks lie along the input channels. A weight is read back as `value(code) * scale`.

Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023;
NVIDIA, "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference", 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.quant.formats.floats import E2M1, E4M3, FloatFormat

E8M0_BIAS = 127  # a stored scale s means 2^(s - 127)
MX_BLOCK, NVFP4_BLOCK = 32, 16
# For weights below 10^-31: with more, the smallest scale's reciprocal would not be finite.
MAX_GLOBAL_SCALE = 2.0**115


@dataclass(frozen=True)
class BlockWeight:
    """A linear layer's weight [out, in] as codes of a small float format, with scales.

    Attributes:
        format: of the codes.
        codes: uint8 [out, in].
        scales: float32 [out, blocks], what a block's values are multiplied by.
        stored_scales: the same as a file holds them: uint8 (E8M0 or E4M3 codes) or float32.
        global_scale: float32 []; NVFP4's, of the whole tensor. `scales` are the stored ones
            divided by it, as in compressed-tensors' files.
    """

    format: FloatFormat
    codes: Tensor
    scales: Tensor
    stored_scales: Tensor
    global_scale: Tensor | None = None

    @property
    def bits_per_weight(self) -> float:
        """All stored bits over the number of weights."""
        scale_bits = 8 * self.stored_scales.element_size() * self.stored_scales.numel()
        scale_bits += 32 * (self.global_scale is not None)
        return self.format.bits + scale_bits / self.codes.numel()

    def dequantize(self) -> Tensor:
        """The weight as a kernel sees it; float32 [out, in]."""
        blocks = self.format.decode(self.codes).unflatten(1, (self.scales.shape[1], -1))
        return (blocks * self.scales.unsqueeze(-1)).flatten(1)


def fp8(weight: Tensor, format: FloatFormat = E4M3) -> BlockWeight:
    """One float32 scale per output channel, so that the channel's largest weight is `format.max`.

    Args:
        weight: [out, in], floating point, finite.

    Raises:
        ValueError: the weight has another shape or type, or isn't finite.
    """
    blocks, absmax = _blocks(weight, weight.shape[-1])
    scales = (absmax / format.max).clamp(min=torch.finfo(torch.float32).tiny)
    return BlockWeight(format, _codes(blocks, scales, format), scales, scales)


def mxfp4(weight: Tensor, block_size: int = MX_BLOCK) -> BlockWeight:
    """E2M1 codes; each block's scale is a power of two, stored as its exponent (E8M0).

    The scale brings the block's largest weight, rounded to E2M1's one mantissa bit, to 4 or 6.
    So a weight may lie up to half a step above 6, and becomes 6: "even" in other libraries. (The
    MX specification's own example doesn't round first, and cuts off more.)

    Args:
        weight: [out, in], floating point, finite.
        block_size: weights per scale; it divides `in`.

    Raises:
        ValueError: the weight has another shape or type, isn't finite, or has no whole blocks.
    """
    blocks, absmax = _blocks(weight, block_size)
    fraction, exponent = torch.frexp(absmax)  # fraction in [0.5, 1)
    exponent = exponent - 1 + (fraction >= 0.875)  # from 1.75 on, 1.xx rounds to 2
    stored = (exponent - 2 + E8M0_BIAS).clamp(0, 254)  # 2^2 is the largest power in E2M1
    scales = torch.ldexp(torch.ones_like(absmax), stored - E8M0_BIAS)
    return BlockWeight(E2M1, _codes(blocks, scales, E2M1), scales, stored.to(torch.uint8))


def nvfp4(weight: Tensor, block_size: int = NVFP4_BLOCK) -> BlockWeight:
    """E2M1 codes; each block's scale is an E4M3 number, times one float32 scale of the tensor.

    The global scale puts the largest block's scale at E4M3's largest value, 448. Blocks whose
    largest weight is more than about 200,000 times smaller than the tensor's are read back as 0.
    It is always finite: 1 if all weights are zero.

    Args:
        weight: [out, in], floating point, finite.
        block_size: weights per scale; it divides `in`.

    Raises:
        ValueError: the weight has another shape or type, isn't finite, or has no whole blocks.
    """
    blocks, absmax = _blocks(weight, block_size)
    largest = absmax.max()
    # In the order of vLLM's emulation, so that all codes are equal bit for bit.
    factor = (E4M3.max * E2M1.max / largest).clamp(max=MAX_GLOBAL_SCALE)
    factor = torch.where(largest > 0, factor, 1.0)
    stored = E4M3.encode(factor * (absmax * (1 / E2M1.max)))
    scales = E4M3.decode(stored) * (1 / factor)
    return BlockWeight(E2M1, _codes(blocks, scales, E2M1), scales, stored, factor)


def _blocks(weight: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """A weight in blocks, float32 [out, blocks, block], and the largest magnitude of each."""
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"Expected the weight of a linear layer, floating point [out, in]; got {weight.dtype} "
            f"{list(weight.shape)}."
        )
    if block_size < 1 or weight.shape[1] % block_size:
        raise ValueError(f"{block_size=} does not divide the {weight.shape[1]} input channels.")
    if not torch.isfinite(weight).all():
        raise ValueError("The weight has values that are not finite (inf or nan).")
    blocks = weight.detach().float().unflatten(1, (-1, block_size))
    return blocks, blocks.abs().amax(-1)


def _codes(blocks: Tensor, scales: Tensor, format: FloatFormat) -> Tensor:
    """The codes of blocks [out, blocks, block] over their scales [out, blocks]; [out, in]."""
    # Times the reciprocal, as kernels do it: it isn't always the same as dividing.
    factors = 1 / torch.where(scales > 0, scales, 1)  # a scale may have been rounded to 0
    return format.encode(blocks * factors.unsqueeze(-1)).flatten(1)
