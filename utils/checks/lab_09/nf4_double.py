"""What lab 09 says of double quantization: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.nf4_codes import DYNAMIC, NF4, blockwise, by_search


def _absmax_values(count: int) -> Tensor:
    """absmax values as real blocks have them: positive, all near each other, some larger."""
    generator = torch.Generator().manual_seed(count)
    for _ in range(200):
        values = 0.05 + 0.02 * torch.rand(count, generator=generator).square()
        scaled, middles = [], (DYNAMIC[1:] + DYNAMIC[:-1]) / 2
        for block in (values - values.mean()).split(256):
            scaled.append(block / block.abs().max())
        if ((torch.cat(scaled)[:, None] - middles).abs() > 4e-5).all():
            return values  # no code depends on the last digits
    raise AssertionError("no clear values found")


def _double_case(count: int) -> PartsCase:
    absmax = _absmax_values(count)
    offset = absmax.mean()
    codes, nested = by_search(absmax - offset, DYNAMIC, 256)
    return PartsCase(f"{count} absmax values", (absmax,), (codes, nested, offset))


_DOUBLE_CASES = (_double_case(8), _double_case(256), _double_case(300), _double_case(520))


def _double(absmax: Tensor, how: str) -> Parts:
    offset = absmax.mean()
    if how == "no offset":
        return *blockwise(absmax, DYNAMIC, 256), torch.zeros(())
    if how == "min":
        offset = absmax.min()
    elif how == "median":
        offset = absmax.median()
    elif how == "per block":
        offset = torch.stack([block.mean() for block in absmax.split(256)])
        centred = absmax - offset.repeat_interleave(256)[: len(absmax)]
        return *blockwise(centred, DYNAMIC, 256), offset
    elif how == "largest before":
        nested = blockwise(absmax, DYNAMIC, 256)[1]
        scale = nested.repeat_interleave(256)[: len(absmax)]
        return blockwise((absmax - offset) / scale, DYNAMIC, 1, "unscaled")[0], nested, offset
    size = {"64": 64, "all": len(absmax)}.get(how, 256)
    levels = NF4 if how == "nf4" else DYNAMIC
    sign = -1 if how == "turned" else 1
    return *blockwise(sign * (absmax - offset), levels, size), offset


def _double_mistake(says: str, look: str, how: str) -> KnownMistake:
    return KnownMistake(says, look, lambda absmax: _double(absmax, how))


_STEPS = "`offset = absmax.mean()`, then `quantize_blockwise(absmax - offset, levels, 256)`."
_DOUBLE_MISTAKES = (
    _double_mistake("The mean is not subtracted. All absmax values are positive, so half of the "
                    "256 levels stay unused.", _STEPS, "no offset"),
    _double_mistake("The offset is the smallest value. It is the mean, so that both signs of the "
                    "levels are used.", _STEPS, "min"),
    _double_mistake("The offset is the median. It is the mean.", _STEPS, "median"),
    _double_mistake("Each block of 256 has an offset of its own. There is one for the whole "
                    "weight.", _STEPS, "per block"),
    _double_mistake("The nested absmax was taken before the mean was subtracted. It is the largest "
                    "magnitude of the differences.", _STEPS, "largest before"),
    _double_mistake("The blocks have 64 values. Those of absmax values have 256.", _STEPS, "64"),
    _double_mistake("All absmax values share one block. A block has 256.", _STEPS, "all"),
    _double_mistake("You use NF4's 16 levels. absmax values get 8 bits: `create_dynamic_map()`.",
                    _STEPS, "nf4"),
    _double_mistake("The sign is wrong: offset - absmax.", _STEPS, "turned"),
)  # fmt: skip


def judge_double_quantize(function: Callable[..., Parts]) -> str:
    """Check `double_quantize(absmax)`."""

    def picture(case: PartsCase, got: Parts) -> tuple[Any, str]:
        rows = [("expected", case.expected[0]), ("yours", got[0])]
        return (
            pictures.code_histogram(
                rows, 256, "How often each of 256 codes is used", "share of absmax values"
            ),
            "How often each 8-bit code is used: expected beside yours.",
        )

    names = ("codes", "nested_absmax", "offset")
    compare_parts(function, names, _DOUBLE_CASES, _DOUBLE_MISTAKES, picture)
    return (
        "8 bits per absmax in place of 32: 8/64 + 32/(64 · 256) = 0.127 bits per weight in place "
        "of 0.5. One offset per weight is too little to count."
    )
