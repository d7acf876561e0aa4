"""What lab 09 says of block codes: exercise 5. The oracle looks at every level, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.parts import Parts, in_parts, mixed_groups
from utils.quant import create_dynamic_map, create_normal_map, rtn

NF4, DYNAMIC = create_normal_map(), create_dynamic_map()
# So much further than the nearest level may a level be: bitsandbytes looks 8-bit codes up in a
# table of 65,536 values.
NEAR = 4e-5


def draw_levels(c: Choices) -> Tensor:
    """NF4's, the dynamic ones, or any list from 2 to 256, mostly with a level 0."""
    kind, count = c.pick(("own", "nf4", "own", "dynamic")), c.size(2, 256)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    ends = c.pick((1.0, 1.0, 0.9))  # the list need not reach -1 and 1
    one_sided, with_zero = c.rarely(2), not c.rarely(3)
    if kind != "own":
        return NF4.clone() if kind == "nf4" else DYNAMIC.clone()
    places = torch.randperm(1999, generator=generator)[:count].sort().values
    levels = (places - 999) / 1000
    levels[0], levels[-1] = -ends if count > 2 or not one_sided else 0.0, ends
    inside = levels.abs() < ends
    inside[0] = inside[-1] = True
    levels = levels[inside]
    if len(levels) > 2 and with_zero:
        levels[1 + int(levels[1:-1].abs().argmin())] = 0.0
    return levels


def draw_values(c: Choices) -> Given:
    """Blocks of all kinds, that end in the middle of a row; zeros only where a level is 0."""
    levels, blocksize = draw_levels(c), c.size(1, 300)
    searches = 8_000 if c.rarely(10) else 2_000  # a search in Python is right, too
    most = max(1, min(9, searches // (blocksize * len(levels))))
    blocks = mixed_groups(c, (c.size(1, most), blocksize))
    last = c.integer(0, blocksize - 1) if c.rarely(2) else 0
    flat = blocks.flatten()[: blocks.numel() - last]
    if not (levels == 0).any():
        flat = torch.where(flat == 0, 1.0, flat)
    rows = c.pick([n for n in (1, 2, 3, 4, 5, 7, 16) if len(flat) % n == 0])
    values = flat.view(c.pick([(-1,), (rows, -1), (rows, 1, -1)]))
    return Given(laid_out(values, c.pick(LAYOUTS)), laid_out(levels, c.pick(LAYOUTS)), blocksize)


def by_search(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Codes by looking at every level, and absmax, block by block, in float64."""
    blocks = values.double().flatten().split(blocksize)
    absmax = torch.stack([max(block.max(), -block.min()) for block in blocks])
    codes = [_distances(b, m, levels).argmin(-1) for b, m in zip(blocks, absmax, strict=True)]
    return torch.cat(codes).to(torch.uint8).view(values.shape), absmax.float()


def _distances(block: Tensor, absmax: Tensor, levels: Tensor) -> Tensor:
    scaled = block.double() / (absmax.double() if absmax > 0 else 1.0)
    return (scaled[:, None] - levels.double()).abs()


def not_nearest(values: Tensor, absmax: Tensor, levels: Tensor, size: int, codes: Tensor) -> Tensor:
    """Codes that are no level's number, or not the nearest level's."""
    wrong = []
    parts = (values.flatten().split(size), absmax, codes.flatten().long().split(size))
    for block, largest, chosen in zip(*parts, strict=True):
        away = _distances(block, largest, levels)
        mine = away.gather(1, chosen.clamp(max=len(levels) - 1)[:, None])[:, 0]
        wrong.append((chosen >= len(levels)) | (mine > away.amin(1) + NEAR))
    return torch.cat(wrong).view(values.shape)


def _not_nearest(given: Given, expected: Parts, got: Parts) -> Tensor:
    values, levels, blocksize = given.args
    return not_nearest(values, expected[1], levels, blocksize, got[0])


def blockwise(values: Tensor, levels: Tensor, blocksize: int, how: str = "right") -> Parts:
    """`quantize_blockwise` with one switch per known mistake. It is never the oracle."""
    flat = values.flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % blocksize))
    blocks = padded.view(-1, blocksize)
    absmax = {
        "signed": blocks.amax(1),
        "tensor": flat.abs().max().expand(len(blocks)),
        "mean": blocks.abs().mean(1),
    }.get(how, blocks.abs().amax(1))
    if how == "one":
        absmax = torch.where(absmax == 0, 1.0, absmax)
    divisor = absmax if how == "unguarded" else torch.where(absmax == 0, 1.0, absmax)
    scaled = blocks if how == "unscaled" else blocks / divisor[:, None]
    if how == "below":  # the largest level that is not above the value
        codes = torch.bucketize(scaled, levels, right=True).sub(1).clamp(0, len(levels) - 1)
    elif how == "above":
        codes = torch.bucketize(scaled, levels).clamp(0, len(levels) - 1)
    elif how == "even":
        codes = ((scaled + 1) / 2 * (len(levels) - 1)).round().clamp(0, len(levels) - 1)
    else:
        codes = (scaled[..., None] - levels).abs().argmin(-1)
    return codes.flatten()[: len(flat)].view(values.shape).to(torch.uint8), absmax


def _rows(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Blocks that begin anew in each row, whether they fit or not."""
    rows = values if values.ndim > 1 else values[None]
    parts = [blockwise(row, levels, blocksize) for row in rows]
    codes = torch.stack([codes for codes, _ in parts]).view(values.shape)
    return codes, torch.cat([absmax for _, absmax in parts])


def _in_memory(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Blocks in the order in which a transposed tensor lies in memory."""
    if values.ndim < 2 or values.is_contiguous() or values.stride(-1) == 1:
        return blockwise(values, levels, blocksize)
    codes, absmax = blockwise(values.transpose(0, 1).contiguous(), levels, blocksize)
    return codes.transpose(0, 1), absmax


def _but(how: str) -> Callable[..., Parts]:
    return lambda values, levels, blocksize: blockwise(values, levels, blocksize, how)


def _passed(function: Callable[..., Any]) -> Passed:
    weight = 0.02 * torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    codes, _ = function(weight.clone(), NF4.clone(), 64)
    even = rtn(weight, group_size=64).q
    figure = pictures.code_histogram(
        [("your NF4 codes", codes), ("evenly spaced codes (RTN)", even)],
        16,
        "NF4 uses its 16 codes more evenly than equal steps do",
    )
    return Passed(
        "Your codes are the nearest levels, block by block. The picture shows them for 16,384 "
        "normally distributed weights.",
        figure,
        "How often NF4 and RTN use each of 16 codes on normally distributed weights.",
    )


_NEAREST = "Compare the distances to all levels."
QUANTIZE_BLOCKWISE = Contract(
    inputs=draw_values,
    judge=Returns(
        by_search, wrong=in_parts(("codes", "absmax"), first=("absmax",), codes=_not_nearest)
    ),
    passed=_passed,
    clauses={
        "form": Clause(
            "{says}",
            "The codes have the shape of `values`. There is one absmax per "
            "block, also for a last one that is shorter.",
        ),
        "codes": Clause(
            "{says} A code is the number of the level that is nearest to the value, "
            "divided by its block's absmax. A block of zeros gets the level 0.",
            _NEAREST,
        ),
        "absmax": Clause(
            "{says} It is the largest magnitude in a block; 0 in a block of zeros.",
            "Is something added to it, or its smallest value limited?",
        ),
    },
    mistakes=(
        mistake(
            "absmax is the largest value, not the largest magnitude.",
            "`.abs()` first.",
            _but("signed"),
        ),
        mistake(
            "One absmax serves all blocks. Each block has its own.",
            "Give the values a dimension for the blocks.",
            _but("tensor"),
        ),
        mistake(
            "absmax is the mean magnitude. With it, the largest values are cut off.",
            "`amax`.",
            _but("mean"),
        ),
        mistake(
            "A block of zeros is divided by 0.",
            "Replace an absmax of 0 before you divide; return it as 0.",
            _but("unguarded"),
        ),
        mistake(
            "A block of zeros is returned with the absmax 1. That number is only for the "
            "division; the absmax is 0.",
            "Divide by a second tensor.",
            _but("one"),
        ),
        mistake(
            "The values are not divided by their block's absmax.",
            "Levels are -1 to 1.",
            _but("unscaled"),
        ),
        mistake("You take the level below, not the nearest.", _NEAREST, _but("below")),
        mistake(
            "You take the level above, not the nearest. `bucketize` on the levels does "
            "that; on the middles between them it finds the nearest.",
            _NEAREST,
            _but("above"),
        ),
        mistake(
            "You count as if the levels were evenly spaced. NF4's are not: that is its point.",
            _NEAREST,
            _but("even"),
        ),
        mistake(
            "Your blocks begin anew in each row. They run on over the ends of rows.",
            "`values.flatten()` first.",
            _rows,
        ),
        mistake(
            "Your blocks follow the memory of a transposed tensor. They go through its rows, "
            "wherever these lie.",
            "`values.flatten()` goes through rows.",
            _in_memory,
        ),
    ),
)
