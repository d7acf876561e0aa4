"""Round to nearest (RTN): the simplest quantizer, and the grid that GPTQ and AWQ round to as well.

A group of neighbouring weights of one output shares a scale and a zero. A weight is stored as an
integer code q, and read back as

    weight = (q - zero) * scale        q in 0 .. 2^bits - 1

Symmetric: zero is the middle, 2^(bits-1), and the scale covers the largest magnitude on both
sides. Asymmetric: scale and zero cover exactly the range from the smallest to the largest weight,
which always includes 0. In both, |weight - read back| <= scale / 2.

The whole range is not the best one: with a smaller range the steps are finer, and only the few
weights beyond it pay. `search_range` tries several and keeps the one with the least squared error
of the weights, group by group. It looks at nothing but the weights. gptqmodel has a search like it
(`mse`, the exponent of the error; 2.0 means squared errors), llm-compressor the observer
`memoryless_mse`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class QuantizedWeight:
    """A linear layer's weight [out, in] as codes on a group-wise grid.

    Attributes:
        q: uint8 [out, in], in 0 .. 2^bits - 1.
        scales: float32 [out, groups].
        zeros: uint8 [out, groups].
        g_idx: int32 [in], the group of each input channel.
        bits: bits of a code.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor
    g_idx: Tensor
    bits: int = 4

    @property
    def group_size(self) -> int:
        """Input channels per group."""
        return self.q.shape[1] // self.scales.shape[1]

    @property
    def bits_per_weight(self) -> float:
        """What a checkpoint needs: the codes, and a 16-bit scale and a zero per group."""
        return self.bits + (16 + self.bits) / self.group_size

    def dequantize(self) -> Tensor:
        """The weight as a kernel sees it: float32 [out, in]."""
        group = self.g_idx.long()
        codes = self.q.float() - self.zeros.float()[:, group]
        return codes * self.scales[:, group]


def rtn(
    weight: Tensor, *, bits: int = 4, group_size: int = 64, sym: bool = True, search: bool = False
) -> QuantizedWeight:
    """Round each weight to the nearest point of its group's grid.

    Args:
        weight: [out, in], finite.
        bits: 2 to 8.
        group_size: input channels per group; it divides `in`. -1: one group per output.
        sym: symmetric (zero in the middle) or asymmetric (zero where it fits).
        search: take the grids of `search_range` instead of those of `find_params`.

    Raises:
        ValueError: an argument is out of range, or a weight is not finite.
    """
    group_size = check_weight(weight, bits, group_size)
    groups = weight.float().unflatten(1, (-1, group_size))  # [out, groups, group]
    scales, zeros = (search_range if search else find_params)(groups, bits, sym)  # [out, groups]
    q = to_codes(groups, scales.unsqueeze(-1), zeros.unsqueeze(-1), bits).flatten(1)
    return QuantizedWeight(
        q.to(torch.uint8), scales, zeros.to(torch.uint8), group_index(weight, group_size), bits
    )


def find_params(groups: Tensor, bits: int, sym: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero of each group.

    Args:
        groups: [..., group], float32.
        bits, sym: see `rtn`.

    Returns:
        scales and zeros, float32 [...].
    """
    max_code = 2**bits - 1
    low = groups.amin(-1).clamp(max=0)  # 0 is always on the grid: it must be read back as 0
    high = groups.amax(-1).clamp(min=0)
    if sym:
        high = torch.maximum(high, -low)
        low = -high
    span = high - low
    # A group of zeros has no span; any scale will do, if one can divide by it.
    scales = torch.where(span > 0, span / max_code, torch.ones_like(span))
    scales = scales.clamp(min=torch.finfo(torch.float32).tiny)
    if sym:
        return scales, torch.full_like(scales, (max_code + 1) / 2)
    return scales, torch.round(-low / scales).clamp(0, max_code)


@torch.no_grad()
def search_range(
    groups: Tensor, bits: int, sym: bool, *, num_shares: int = 20, least: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Scale and zero of each group, with the least squared error of the weights.

    Tries the range of `find_params` and smaller shares of it, and keeps the best one for each
    group. No data is needed, and no group can end up worse than with the whole range.

    Args:
        groups: [..., group], float32.
        bits, sym: see `rtn`.
        num_shares: shares tried, evenly spaced from 1 down to `least`.
        least: the smallest share tried, above 0 and at most 1.

    Returns:
        scales and zeros, float32 [...], as `find_params` does.
    """
    full_scales, zeros = find_params(groups, bits, sym)
    scales, errors = full_scales, torch.full_like(full_scales, torch.inf)
    for share in torch.linspace(1, least, num_shares).tolist():
        # A share of both ends: the step shrinks, and the code that means 0 stays where it is.
        tried = (full_scales * share).clamp(min=torch.finfo(torch.float32).tiny)
        step, zero = tried.unsqueeze(-1), zeros.unsqueeze(-1)
        read_back = to_codes(groups, step, zero, bits).sub_(zero).mul_(step)
        error = read_back.sub_(groups).square_().sum(-1)
        better = error < errors
        scales, errors = torch.where(better, tried, scales), torch.where(better, error, errors)
    return scales, zeros


def round_trip(groups: Tensor, bits: int, sym: bool) -> Tensor:
    """What weights [..., group], float32, are read back as: `rtn` without the codes, and faster."""
    scales, zeros = (params.unsqueeze(-1) for params in find_params(groups, bits, sym))
    return to_codes(groups, scales, zeros, bits).sub_(zeros).mul_(scales)


def to_codes(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """The nearest code of each weight, as float32. All shapes broadcast."""
    return (weight / scales).round_().add_(zeros).clamp_(0, 2**bits - 1)


def group_index(weight: Tensor, group_size: int) -> Tensor:
    """`g_idx` of neighbouring channels: 0, 0, ..., 1, 1, ... as int32 [in]."""
    channels = torch.arange(weight.shape[1], device=weight.device, dtype=torch.int32)
    return channels // group_size


def check_weight(weight: Tensor, bits: int, group_size: int) -> int:
    """Check what every quantizer is given; return the group size, with -1 made explicit."""
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"Expected the weight of a linear layer, floating point [out, in]; got {weight.dtype} "
            f"{list(weight.shape)}."
        )
    if not 2 <= bits <= 8:
        raise ValueError(f"{bits=}: expected 2 to 8.")
    width = weight.shape[1]
    size = width if group_size == -1 else group_size
    if size < 1 or width % size:
        fitting = [g for g in (32, 64, 96, 128, 192, 256) if width % g == 0]
        raise ValueError(
            f"{group_size=} does not divide the width of the weight, {width} input channels. "
            f"Use one of {fitting}, or -1 for one group per output."
        )
    if not torch.isfinite(weight).all():
        bad = int((~torch.isfinite(weight)).sum())
        raise ValueError(
            f"{bad} of {weight.numel()} weights are not finite (inf or nan). One of them would "
            "spoil the scale of its whole group. Check the model before you quantize it."
        )
    return size
