"""AWQ: protect the input channels that matter by scaling them up before rounding.

A weight that meets large inputs matters more. Multiply its column by s > 1, round, and divide the
input by s: the layer computes the same, and that column's rounding error shrinks about s times,
as long as it does not stretch its groups' scales. How large s should be is found by trying:

    s = mean|x|^ratio / mean|w|^(1 - ratio)        ratio = 0, 1/n_grid, ...

and keeping the ratio with the least output error. Then each group's range is clipped where that
lowers the output error further. The division by s costs nothing at run time: it goes into the
operation before (a norm's weight, or the rows of the layer before).

Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and
Acceleration", 2023, section 3, https://arxiv.org/abs/2306.00978. The paper's rule is mean|x|^ratio;
dividing by the weights' magnitude (`duo_scaling`) is what the released tools do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.quant.rtn import QuantizedWeight, check_weight, round_trip, rtn
from utils.quant.stats import InputStats, output_error

N_GRID = 20


@dataclass(frozen=True)
class ScaleSearch:
    """What `search_scales` found.

    Attributes:
        scales: s, [in]; all ones where no scaling was better.
        ratio: the best ratio; None where scaling did not help.
        errors: ratio -> summed squared output error; key None: without scaling.
    """

    scales: Tensor
    ratio: float | None
    errors: dict[float | None, float]


@torch.no_grad()
def awq(
    weight: Tensor,
    stats: InputStats,
    *,
    bits: int = 4,
    group_size: int = 64,
    clip: bool = True,
    duo_scaling: bool = True,
    n_grid: int = N_GRID,
    max_rows: int | None = None,
) -> tuple[QuantizedWeight, Tensor]:
    """Scale, clip and round one linear layer's weight (asymmetric, as AWQ's layout has it).

    Layers that share an input must share the scales: see `search_scales`, `search_clip` (the
    settings are theirs; `n_grid` is of both).

    Returns:
        The quantized `weight * scales`, and scales [in], which the inputs are to be divided by.

    Raises:
        ValueError: see `rtn`; or the statistics have another width.
    """
    scales = search_scales(
        weight,
        stats,
        bits=bits,
        group_size=group_size,
        duo_scaling=duo_scaling,
        n_grid=n_grid,
        max_rows=max_rows,
    ).scales
    scaled = weight.float() * scales
    if clip:
        moment = stats.second_moment / torch.outer(scales, scales)
        limits = search_clip(scaled, moment, bits=bits, group_size=group_size, n_grid=n_grid)
        scaled = apply_clip(scaled, limits)
    return rtn(scaled, bits=bits, group_size=group_size, sym=False), scales


@torch.no_grad()
def search_scales(
    weight: Tensor,
    stats: InputStats,
    *,
    bits: int = 4,
    group_size: int = 64,
    duo_scaling: bool = True,
    n_grid: int = N_GRID,
    max_rows: int | None = None,
) -> ScaleSearch:
    """Find the scales of the input channels with the least output error.

    Args:
        weight: [out, in]. Of layers that share an input: all of them, stacked along `out`.
        stats: of that input.
        bits, group_size: of the grid; see `rtn`.
        duo_scaling: divide by the weights' magnitude too.
        n_grid: ratios tried, evenly spaced from 0.
        max_rows: measure on at most so many outputs, evenly spaced. One number is looked for, so
            a few hundred find about the same, in a fraction of the time.
    """
    group_size = check_weight(weight, bits, group_size)
    weight = weight.float()
    _check_stats(weight, stats)
    x_mean = stats.mean_abs
    w_mean = _mean_magnitude(weight, group_size)
    rows = weight[:: max(1, len(weight) // max_rows)] if max_rows else weight
    moment = stats.second_moment

    def error(scales: Tensor) -> float:
        scaled = (rows * scales).unflatten(1, (-1, group_size))
        read_back = round_trip(scaled, bits, sym=False).flatten(1) / scales
        return float(output_error(read_back - rows, moment).sum())

    best = torch.ones_like(x_mean)
    best_ratio: float | None = None
    errors: dict[float | None, float] = {None: error(best)}
    for step in range(n_grid):
        ratio = step / n_grid
        scales = x_mean.pow(ratio)
        if duo_scaling:
            scales = scales / (w_mean.pow(1 - ratio) + 1e-4)
        scales = scales.clamp(min=1e-4)
        scales = scales / (scales.max() * scales.min()).sqrt()  # around 1: nothing overflows
        errors[ratio] = error(scales)
        if errors[ratio] < errors[best_ratio]:
            best, best_ratio = scales, ratio
    return ScaleSearch(best, best_ratio, errors)


@torch.no_grad()
def search_clip(
    weight: Tensor,
    second_moment: Tensor,
    *,
    bits: int = 4,
    group_size: int = 64,
    n_grid: int = 20,
    max_shrink: float = 0.5,
) -> Tensor:
    """Find the magnitude at which to clip each group: [out, groups].

    A smaller range has finer steps, and cuts its largest weights. Each group is judged by the
    output error that it makes alone.

    Args:
        weight: [out, in].
        second_moment: of its inputs, [in, in].
        n_grid, max_shrink: shrink by 0, 1/n_grid, ... up to max_shrink (not reached).
    """
    group_size = check_weight(weight, bits, group_size)
    # Groups first, [groups, out, group]: each has a small second moment of its own.
    groups = weight.float().unflatten(1, (-1, group_size)).transpose(0, 1).contiguous()
    blocks = second_moment.unflatten(0, (-1, group_size)).unflatten(2, (-1, group_size))
    blocks = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [groups, group, group]
    largest = groups.abs().amax(-1)  # [groups, out]
    best, least = largest.clone(), torch.full_like(largest, torch.inf)
    for step in range(int(max_shrink * n_grid)):
        limits = largest * (1 - step / n_grid)
        clipped = groups.clamp(-limits.unsqueeze(-1), limits.unsqueeze(-1))
        error = output_error(round_trip(clipped, bits, sym=False) - groups, blocks)
        better = error < least
        least = torch.where(better, error, least)
        best = torch.where(better, limits, best)
    return best.t()


def apply_clip(weight: Tensor, limits: Tensor) -> Tensor:
    """Clip each group of a weight [out, in] to its limit [out, groups]. Float32."""
    groups = weight.float().unflatten(1, (limits.shape[1], -1))
    return groups.clamp(-limits.unsqueeze(-1), limits.unsqueeze(-1)).flatten(1)


def _mean_magnitude(weight: Tensor, group_size: int) -> Tensor:
    """The mean over outputs of |w| relative to the largest of its group: [in]."""
    groups = weight.abs().unflatten(1, (-1, group_size))
    return (groups / (groups.amax(-1, keepdim=True) + 1e-6)).mean(0).flatten()


def _check_stats(weight: Tensor, stats: InputStats) -> None:
    if len(stats.mean_abs) != weight.shape[1]:
        raise ValueError(
            f"The statistics are of {len(stats.mean_abs)} channels, the weight has "
            f"{weight.shape[1]}. Were they collected at another layer?"
        )
