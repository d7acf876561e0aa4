"""What lab 09 says of NF4: exercise 5, block codes.

The oracle is a search over all levels in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts, rounded
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.quant import create_dynamic_map, create_normal_map, rtn

NF4, DYNAMIC = create_normal_map(), create_dynamic_map()


def by_search(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Codes by looking at every level, and absmax, block by block, in float64."""
    codes: list[int] = []
    absmax: list[float] = []
    for block in values.double().flatten().split(blocksize):
        largest = max(abs(float(block.max())), abs(float(block.min())))
        absmax.append(largest)
        for value in (block / (largest or 1.0)).tolist():
            codes.append(int((levels.double() - value).abs().argmin()))
    return torch.tensor(codes, dtype=torch.uint8).view(values.shape), torch.tensor(absmax)


def _clear_values(levels: Tensor, shape: tuple[int, ...], blocksize: int) -> Tensor:
    """Random values, none of them near the middle between two levels: no rounding decides."""
    generator = torch.Generator().manual_seed(sum(shape))
    middles = (levels[1:] + levels[:-1]) / 2
    blocks: list[Tensor] = []
    left = int(torch.tensor(shape).prod())
    while left:
        size = min(blocksize, left)
        scaled = (0.35 * torch.randn(size, generator=generator)).clamp(-0.99, 0.99)
        scaled[0] = -1.0 if len(blocks) % 2 else 1.0
        while (near := (scaled[:, None] - middles).abs().amin(1) < 1e-4).any():
            scaled[near] += 3e-4
        blocks.append(scaled * (0.2 + 0.37 * len(blocks)))
        left -= size
    return torch.cat(blocks).view(shape)


def _block_case(values: Tensor, levels: Tensor, blocksize: int, given: str) -> PartsCase:
    name = "NF4's 16 levels" if len(levels) == 16 else f"{len(levels)} levels"
    return PartsCase(
        f"{given}, {name}, blocksize={blocksize}", (values, levels, blocksize),
        by_search(values, levels, blocksize),
    )  # fmt: skip


_SMALL = torch.tensor([0.5, -2.0, 1.0, 0.1])
_BLOCK_CASES = (
    _block_case(_SMALL, torch.tensor([-1.0, -0.4, 0.0, 0.6, 1.0]), 4, f"values {rounded(_SMALL)}"),
    _block_case(torch.tensor([0.0, 0.0, 3.0, -1.6]), NF4, 2, "values [0, 0, 3, -1.6]"),
    _block_case(_clear_values(NF4, (2, 16), 8), NF4, 8, "values [2, 16]"),
    _block_case(_clear_values(NF4, (4, 6), 8), NF4, 8, "values [4, 6]: blocks run on over rows"),
    _block_case(_clear_values(NF4, (5, 6), 8), NF4, 8, "values [5, 6]: the last block is shorter"),
    _block_case(_clear_values(DYNAMIC, (40,), 16), DYNAMIC, 16, "values [40]"),
)


def blockwise(values: Tensor, levels: Tensor, blocksize: int, how: str = "right") -> Parts:
    """`quantize_blockwise` with one switch per known mistake. It is never the oracle."""
    flat = values.flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % blocksize))
    blocks = padded.view(-1, blocksize)
    absmax = blocks.abs().amax(1)
    if how == "signed":
        absmax = blocks.amax(1)
    elif how == "tensor":
        absmax = flat.abs().max().expand(len(blocks))
    elif how == "mean":
        absmax = blocks.abs().mean(1)
    elif how == "std":
        absmax = blocks.std(1)
    if how == "one":
        absmax = torch.where(absmax == 0, 1.0, absmax)
    divisor = absmax if how == "unguarded" else torch.where(absmax == 0, 1.0, absmax)
    scaled = blocks if how == "unscaled" else blocks / divisor[:, None]
    distance = scaled[..., None] - levels
    if how == "below":  # the largest level that is not above the value
        codes = torch.bucketize(scaled, levels, right=True).sub(1).clamp(0, len(levels) - 1)
    elif how == "above":
        codes = torch.bucketize(scaled, levels).clamp(0, len(levels) - 1)
    elif how == "even":
        codes = ((scaled + 1) / 2 * (len(levels) - 1)).round().clamp(0, len(levels) - 1)
    elif how == "signed distance":
        codes = distance.argmin(-1)
    else:
        codes = distance.abs().argmin(-1)
    return codes.flatten()[: len(flat)].view(values.shape).to(torch.uint8), absmax


def _rows(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Blocks that begin anew in each row, whether they fit or not."""
    rows = values if values.ndim > 1 else values[None]
    parts = [blockwise(row, levels, blocksize) for row in rows]
    codes = torch.stack([codes for codes, _ in parts]).view(values.shape)
    return codes, torch.cat([absmax for _, absmax in parts])


def _block_mistake(says: str, look: str, how: str) -> KnownMistake:
    return KnownMistake(says, look, lambda v, levels, size: blockwise(v, levels, size, how))


_NEAREST = "The distances to all levels: `(scaled[..., None] - levels).abs()`, then `argmin(-1)`."
_BLOCK_MISTAKES = (
    _block_mistake("absmax is the largest value, not the largest magnitude.",
                   "`.abs()` before `amax`.", "signed"),
    _block_mistake("One absmax serves all blocks. Each block has its own.",
                   "`blocks.abs().amax(1)`, with blocks of shape [blocks, blocksize].", "tensor"),
    _block_mistake("absmax is the mean magnitude. With it, the largest values are cut off.",
                   "`amax`.", "mean"),
    _block_mistake("absmax is the standard deviation. With it, the largest values are cut off.",
                   "`amax` of the magnitudes.", "std"),
    _block_mistake("A block of zeros is divided by 0.", "Replace an absmax of 0 before you divide; "
                   "return it as 0.", "unguarded"),
    _block_mistake("A block of zeros is returned with the absmax 1. That number is only for the "
                   "division; the absmax is 0.", "Divide by a second tensor: `torch.where(absmax "
                   "> 0, absmax, 1.0)`.", "one"),
    _block_mistake("The values are not divided by their block's absmax.", "Levels are -1 to 1.",
                   "unscaled"),
    _block_mistake("You take the level below, not the nearest.", _NEAREST, "below"),
    _block_mistake("You take the level above, not the nearest. `bucketize` on the levels does "
                   "that; on the middles between them it finds the nearest.", _NEAREST, "above"),
    _block_mistake("You count as if the levels were evenly spaced. NF4's are not: that is its "
                   "point.", _NEAREST, "even"),
    _block_mistake("You take the smallest difference with its sign, and so always the last level.",
                   _NEAREST, "signed distance"),
    KnownMistake("Your blocks begin anew in each row. They run through the values in memory "
                 "order.", "`values.flatten()` first.", _rows),
)  # fmt: skip


def _draw_codes(case: PartsCase, got: Parts) -> tuple[Figure, str]:
    rows = [("expected", case.expected[0]), ("yours", got[0])]
    num_codes = len(case.args[1])
    return (
        pictures.code_histogram(rows, num_codes, "How often each code is used"),
        "How often each code is used: expected beside yours.",
    )


def judge_quantize_blockwise(function: Callable[..., Parts]) -> Passed:
    """Check `quantize_blockwise(values, levels, blocksize)`."""
    compare_parts(function, ("codes", "absmax"), _BLOCK_CASES, _BLOCK_MISTAKES, _draw_codes)
    weight = 0.02 * torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    codes, _ = function(weight, NF4, 64)
    even = rtn(weight, group_size=64).q
    figure = pictures.code_histogram(
        [("your NF4 codes", codes), ("evenly spaced codes (RTN)", even)], 16,
        "NF4 uses its 16 codes more evenly than equal steps do",
    )  # fmt: skip
    return Passed(
        "Your codes are the nearest levels, block by block. The picture shows them for 16,384 "
        "normally distributed weights.", figure,
        "How often NF4 and RTN use each of 16 codes on normally distributed weights.",
    )  # fmt: skip
