"""NF4: 4-bit codes on the quantiles of a normal distribution, as in QLoRA and bitsandbytes.

The weights of a block are roughly normal: equally spaced levels spend many codes on the rare tails.
NF4 spaces its 16 levels so that normal numbers, of the spread that the levels assume, use each one
about equally often. A block of 64 weights is divided by its largest magnitude, `absmax`, and each
weight gets the nearest level's number. (After that division numbers are narrower than assumed, and
equal use is not least error anyway: Yoshida, "NF4 Isn't Information Theoretically Optimal (and
that's Good)", 2023, https://arxiv.org/abs/2306.06965)

Double quantization stores the absmax values in 8 bits too: 0.5 bits per weight become 0.127.

Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, section 3,
https://arxiv.org/abs/2305.14314. The 8-bit code is the dynamic data type of Dettmers,
"8-Bit Approximations for Parallelism in Deep Learning", 2015, https://arxiv.org/abs/1511.04561
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCKSIZE = 64
ABSMAX_BLOCKSIZE = 256
# Half of what lies beyond the outermost level: halfway between 1/30 and 1/32 (15 and 16 levels).
OFFSET = 0.9677083


def create_normal_map(offset: float = OFFSET) -> Tensor:
    """The 16 levels, rising from -1 to 1, with an exact 0; float32 [16].

    Eight quantiles above the middle and seven below it, at evenly spaced probabilities from
    `offset` to 1/2; the middle is 0. Then all are divided by the largest.
    """
    # float32 probabilities: bitsandbytes' constants were made from them.
    above = torch.linspace(offset, 0.5, 9)[:-1].double()
    below = torch.linspace(offset, 0.5, 8)[:-1].double()
    quantile = torch.special.ndtri  # the inverse of the normal distribution function
    levels = torch.cat([quantile(above), torch.zeros(1).double(), -quantile(below)])
    levels = levels.sort().values.float()
    return levels / levels.max()


def create_dynamic_map() -> Tensor:
    """The 256 levels of the signed 8-bit dynamic type, rising from about -1 to 1; float32 [256].

    Seven decades. The smallest holds 1 level per sign, each next one twice as many: relative
    precision where values are large, and reach where they are small. Levels are the middles of
    equal parts of [0.1, 1] times the decade; 0 and 1 are added.
    """
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        for sign in (1.0, -1.0):
            levels += (sign * 10.0 ** (decade - 6) * middles).tolist()
    return torch.tensor(sorted(levels), dtype=torch.float32)


@dataclass(frozen=True)
class NF4Weight:
    """A weight in NF4.

    Attributes:
        packed: uint8 [ceil(n / 2)], two codes per byte, the earlier one in the upper half.
        absmax: of each block: float32 [blocks]; with double quantization uint8 codes [blocks].
        shape: of the weight.
        blocksize: weights per absmax.
        offset, nested_absmax: of double quantization; None without. The mean that was
            subtracted from the absmax values, float32 []; and the largest magnitude of each
            256 of the differences, float32 [blocks / 256].
    """

    packed: Tensor
    absmax: Tensor
    shape: torch.Size
    blocksize: int = BLOCKSIZE
    offset: Tensor | None = None
    nested_absmax: Tensor | None = None

    @property
    def codes(self) -> Tensor:
        """The 4-bit codes, uint8, in the weight's shape."""
        both = torch.stack([self.packed >> 4, self.packed & 0xF], dim=-1).flatten()
        return both[: self.shape.numel()].view(self.shape)

    @property
    def bits_per_weight(self) -> float:
        """All stored bits over the number of weights."""
        parts = [self.packed, self.absmax, self.nested_absmax, self.offset]
        stored = sum(part.numel() * part.element_size() for part in parts if part is not None)
        return 8 * stored / self.shape.numel()

    def block_absmax(self) -> Tensor:
        """The largest magnitude of each block, float32, with double quantization undone."""
        if self.nested_absmax is None or self.offset is None:
            return self.absmax
        levels = create_dynamic_map().to(self.absmax.device)
        scale = self.nested_absmax.repeat_interleave(ABSMAX_BLOCKSIZE)[: len(self.absmax)]
        return levels[self.absmax.long()] * scale + self.offset

    def dequantize(self) -> Tensor:
        """The weight as it is computed with: float32, in the weight's shape."""
        levels = create_normal_map().to(self.packed.device)[self.codes.flatten().long()]
        scale = self.block_absmax().repeat_interleave(self.blocksize)[: len(levels)]
        return (levels * scale).view(self.shape)


def quantize_nf4(
    weight: Tensor,
    *,
    blocksize: int = BLOCKSIZE,
    compress_statistics: bool = False,
    search: bool = False,
) -> NF4Weight:
    """Quantize a weight of any shape to NF4, block by block in memory order.

    Args:
        weight: floating point, finite, not empty.
        blocksize: weights per absmax. The last block may be shorter.
        compress_statistics: use double quantization.
        search: shrink each block's absmax where that lowers the squared error of its weights, as
            `search_range` does for RTN. bitsandbytes doesn't do that.

    Raises:
        ValueError: the weight is empty, not floating point or not finite; or blocksize < 1.
    """
    if not weight.is_floating_point() or weight.numel() == 0 or blocksize < 1:
        raise ValueError(
            f"Expected floating-point weights and a positive blocksize; got {weight.numel()} "
            f"values of {weight.dtype} and {blocksize=}."
        )
    if not torch.isfinite(weight).all():
        raise ValueError(
            "The weight has values that are not finite (inf or nan). One of them would spoil its "
            "whole block. Check the model before you quantize it."
        )
    shares = search_shares(weight, create_normal_map(), blocksize) if search else None
    codes, absmax = quantize_blockwise(weight, create_normal_map(), blocksize, shares)
    codes = codes.flatten()
    if len(codes) % 2:
        codes = torch.cat([codes, codes.new_full((1,), 7)])  # level 7 is 0
    packed = (codes[::2] << 4) | codes[1::2]
    if not compress_statistics:
        return NF4Weight(packed, absmax, weight.shape, blocksize)
    # absmax is positive; without its mean it uses both signs of the 8-bit code.
    offset = absmax.mean()
    nested = quantize_blockwise(absmax - offset, create_dynamic_map(), ABSMAX_BLOCKSIZE)
    return NF4Weight(packed, nested[0], weight.shape, blocksize, offset, nested[1])


@torch.no_grad()
def search_shares(
    weight: Tensor, levels: Tensor, blocksize: int, *, num_shares: int = 20, least: float = 0.5
) -> Tensor:
    """For each block, the share of its absmax with the least squared error: float32 [blocks].

    Args:
        weight, levels, blocksize: see `quantize_blockwise`.
        num_shares, least: shares tried, evenly spaced from 1 down to `least`.
    """
    levels = levels.to(weight.device)
    missing = -weight.numel() % blocksize
    best = errors = torch.empty(0)
    for share in torch.linspace(1, least, num_shares).tolist():
        codes, absmax = quantize_blockwise(
            weight, levels, blocksize, torch.tensor(share, device=weight.device)
        )
        scale = absmax.repeat_interleave(blocksize)[: weight.numel()].view(weight.shape)
        delta = (levels[codes.long()] * scale - weight.float()).flatten()
        error = torch.nn.functional.pad(delta, (0, missing)).view(-1, blocksize).square().sum(1)
        if not len(errors):
            best, errors = torch.ones_like(error), error
        better = error < errors
        best, errors = torch.where(better, share, best), torch.where(better, error, errors)
    return best


def quantize_blockwise(
    values: Tensor, levels: Tensor, blocksize: int, shares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scale each block to [-1, 1] and take the nearest level.

    Args:
        values: any shape.
        levels: rising, float32, at most 256.
        blocksize: values per block; the last may be shorter.
        shares: of its largest magnitude that a block is divided by, [blocks] or []; None: all of
            it. What is beyond then gets the level at the end.

    Returns:
        codes: uint8, in the shape of `values`.
        absmax: float32 [blocks], the largest magnitude of each block (times its share).
    """
    flat = values.detach().float().flatten()
    missing = -len(flat) % blocksize
    blocks = torch.nn.functional.pad(flat, (0, missing)).view(-1, blocksize)
    absmax = blocks.abs().amax(dim=1)
    if shares is not None:
        absmax = absmax * shares
    # Times the reciprocal, as kernels do it: it is not always the same as dividing. A block of
    # zeros stays zero.
    scaled = blocks * (1.0 / absmax.clamp(min=1e-38))[:, None]
    codes = _nearest(scaled.clamp(-1, 1), levels.to(flat.device))
    return codes.flatten()[: len(flat)].view(values.shape), absmax


def _nearest(scaled: Tensor, levels: Tensor) -> Tensor:
    """The number of the level nearest to each value in [-1, 1], as uint8."""
    if len(levels) == 256 and scaled.device.type == "cpu":
        # bitsandbytes' CPU kernel looks 8-bit codes up in a table of 65,536 evenly spaced values.
        # Less than 2e-5 from the middle between two levels that finds the other one, as we do.
        scaled = ((scaled + 1) * 32767.5 + 0.5).floor() / 32767.5 - 1
    middles = (levels[:-1] + levels[1:]) / 2
    return torch.bucketize(scaled, middles, out_int32=True).to(torch.uint8)
