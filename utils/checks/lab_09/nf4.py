"""Levels, blocks and absmax values: exercises 6 to 8. The oracle looks at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import picture
from utils.checks.lab_09.parts import Parts, far, mixed_groups, placed, seeded
from utils.quant import create_dynamic_map, create_normal_map, rtn

NF4, DYNAMIC = create_normal_map(), create_dynamic_map()
NESTED = 256  # absmax values per nested absmax

# Exercise 6: the nearest level, block by block

# So much further than the nearest level may a level be: bitsandbytes looks 8-bit codes up in a
# table of 65,536 values.
NEAR = 4e-5


def draw_levels(c: Choices) -> Tensor:
    """NF4's, the dynamic ones, or any list from 2 to 256, mostly with a level 0."""
    kind, count = c.pick(("own", "nf4", "own", "dynamic")), c.size(2, 256)
    generator = seeded(c)
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
    most = max(1, searches // (blocksize * len(levels)))
    number = c.size(1, min(9, most)) if most < 300 or not c.rarely(3) else c.integer(129, 300)
    blocks = mixed_groups(c, (number, blocksize))
    if c.rarely(4) and blocks.any():  # the smallest magnitude that the contract knows
        largest = blocks.abs().amax(1)
        blocks = blocks * (2e-15 / largest[largest > 0].min())
    last = c.integer(0, blocksize - 1) if c.rarely(2) else 0
    flat = blocks.flatten()[: blocks.numel() - last]
    if not (levels == 0).any():
        flat = torch.where(flat == 0, 1.0, flat)
    rows = c.pick([n for n in (1, 2, 3, 4, 5, 7, 16) if len(flat) % n == 0])
    values = flat.view(c.pick([(-1,), (rows, -1), (rows, 1, -1)]))
    return Given(*placed(c, values, levels), blocksize)


def by_search(values: Tensor, levels: Tensor, blocksize: int) -> Parts:
    """Codes by looking at every level, and absmax, block by block, in float64."""
    blocks = values.double().flatten().split(blocksize)
    absmax = torch.stack([max(block.max(), -block.min()) for block in blocks])
    codes = [distances(b, m, levels).argmin(-1) for b, m in zip(blocks, absmax, strict=True)]
    return torch.cat(codes).to(torch.uint8).view(values.shape), absmax.float()


def distances(block: Tensor, absmax: Tensor, levels: Tensor) -> Tensor:
    scaled = block.double() / (absmax.double() if absmax > 0 else 1.0)
    return (scaled[:, None] - levels.double()).abs()


def no_nearest_level(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Codes that are no level's number, or not the nearest level's."""
    (values, levels, size), wrong = given.args, []
    parts = (values.flatten().split(size), expected[1], got[0].flatten().long().split(size))
    for block, largest, chosen in zip(*parts, strict=True):
        away = distances(block, largest, levels)
        mine = away.gather(1, chosen.clamp(max=len(levels) - 1)[:, None])[:, 0]
        wrong.append((chosen >= len(levels)) | (mine > away.amin(1) + NEAR))
    return torch.cat(wrong).view(values.shape)


def praise_blockwise(answer: Callable[..., Any]) -> Passed:
    weight = 0.02 * torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    both = {
        "evenly spaced codes (RTN)": rtn(weight, group_size=64).q,
        "your NF4 codes": answer(weight.clone(), NF4.clone(), 64)[0],
    }
    shares = {
        name: (q.flatten().long().bincount(minlength=16) / q.numel()).tolist()
        for name, q in both.items()
    }
    title = "NF4 uses its 16 codes more evenly than equal steps do"
    names = [str(code) for code in range(16)]
    return Passed(
        "Your codes are the nearest levels, block by block. The picture shows how often each code "
        "is used for 16,384 normally distributed weights.",
        picture.one_chart(6.6, names, shares, title, "share of weights"),
        "How often NF4 and RTN use each of 16 codes on normally distributed weights.",
    )


# Exercise 7: absmax values in 8 bits


def draw_absmax(c: Choices) -> Given:
    """One value, all the same, a few, or several blocks of 256; of any magnitude."""
    count, generator = c.integer(257, 1200) if c.rarely(3) else c.size(1, 600), seeded(c)
    absmax = 0.25 + torch.randint(1, 100, (count,), generator=generator) / 50
    absmax[-(count // 3) :] *= c.pick((1.0, 3.0))  # blocks with other means
    if c.rarely(8):
        absmax = torch.full((count,), 0.5)
    if c.rarely(8):
        absmax[: count // 2] = 0.0
    return Given(*placed(c, absmax * c.pick((1.0, 1.0, 1e-6, 1e4))))


def double_quantized(absmax: Tensor) -> Parts:
    """In float64: the mean first, then a search over all levels."""
    offset = absmax.double().sum() / len(absmax)
    return *by_search(absmax.double() - offset, DYNAMIC, NESTED), offset.float()


def wrong_nested(given: Given, expected: Parts, got: Parts) -> Tensor:
    """float32 knows a difference only as well as the numbers that it is taken from."""
    return far(got[1], expected[1], 1e-6 * float(given.args[0].abs().max()), 1e-5)


def wrong_absmax_codes(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Not the nearest level, by more than float32 knows of the offset."""
    (absmax,) = given.args
    wide = expected[1].repeat_interleave(NESTED)[: len(absmax)].double()
    value = absmax.double() - absmax.double().mean()
    away = (DYNAMIC.double() * wide[:, None] - value[:, None]).abs()
    mine = away.gather(1, got[0].long()[:, None])[:, 0]
    slack = NEAR * wide + 2e-6 * float(absmax.abs().max())
    zeros = (wide == 0) & (got[1].repeat_interleave(NESTED)[: len(absmax)] == 0)
    return (mine > away.amin(1) + slack) | (zeros & (DYNAMIC[got[0].long()].abs() > NEAR))


# Exercise 8: NF4 weights


def draw_nf4(c: Choices) -> Given:
    """Blocks within a row and across rows; several blocks of 256 absmax values."""
    blocksize = c.size(1, 130)
    blocks = c.integer(257, 800) if c.rarely(4) and blocksize < 9 else c.size(1, 40)
    count, generator = blocks * blocksize, seeded(c)
    rows = c.pick([n for n in (1, 2, 3, 4, 5, 7, 64) if count % n == 0])
    codes = torch.randint(0, 16, (rows, count // rows), generator=generator).to(torch.uint8)
    absmax = torch.randint(0, 256, (blocks,), generator=generator).to(torch.uint8)
    unit = c.pick((1.0, 1.0, 1e-6, 1e4))
    nested = torch.randint(0, 50, (-(-blocks // NESTED),), generator=generator) * 0.01 * unit
    offset = torch.tensor(0.01 * c.integer(0, 99) * unit)
    return Given(codes, *placed(c, absmax, nested), offset, blocksize)


def nf4_read_back(
    codes: Tensor, absmax_codes: Tensor, nested_absmax: Tensor, offset: Tensor, blocksize: int
) -> Tensor:
    """Block by block, in float64."""
    back = []
    for number, block in enumerate(codes.flatten().split(blocksize)):
        absmax = DYNAMIC[int(absmax_codes[number])].double() * nested_absmax[number // NESTED]
        back.append(NF4[block.long()].double() * (absmax + offset.double()))
    return torch.cat(back).view(codes.shape).float()


def wrong_nf4(given: Given, expected: Parts, got: Parts) -> Tensor:
    _, _, nested, offset, _ = given.args
    return far(got[0], expected[0], 1e-6 * float(nested.max() + offset.abs()), 1e-5)
