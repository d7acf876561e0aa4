"""What lab 09 says of reading NF4 back: exercise 7.

The oracle is `utils.quant`, whose NF4 equals that of bitsandbytes (tests/quant).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.nf4_codes import DYNAMIC, NF4
from utils.quant.nf4 import NF4Weight

NESTED = 256  # absmax values per nested absmax


def _case(shape: tuple[int, int], blocksize: int) -> PartsCase:
    generator = torch.Generator().manual_seed(shape[1])
    codes = torch.randint(0, 16, shape, generator=generator).to(torch.uint8)
    blocks = codes.numel() // blocksize
    # Around a middle code, so that offset and scale both matter.
    absmax = torch.randint(60, 200, (blocks,), generator=generator).to(torch.uint8)
    nested = 0.01 + 0.05 * torch.rand(-(-blocks // NESTED), generator=generator)
    offset = torch.tensor(0.15)
    flat = codes.flatten()
    packed = (flat[::2] << 4) | flat[1::2]
    weight = NF4Weight(packed, absmax, codes.shape, blocksize, offset, nested).dequantize()
    given = f"codes {list(shape)}, {blocks} absmax codes, blocksize={blocksize}"
    return PartsCase(given, (codes, absmax, nested, offset, blocksize), (weight,))


_CASES = (
    _case((1, 8), 4),
    _case((4, 6), 8),
    _case((4, 64), 64),
    _case((3, 12), 4),
    _case((4, 300), 2),
)


def _spread(values: Tensor, times: int, length: int, tiled: bool = False) -> Tensor:
    if tiled:
        return values.repeat(-(-length // len(values)))[:length]
    return values.repeat_interleave(times)[:length]


def _back(
    codes: Tensor, absmax: Tensor, nested: Tensor, offset: Tensor, size: int, how: str = "right"
) -> Tensor:
    """`dequantize_nf4` with one switch per known mistake. It is never the oracle."""
    flat = codes.flatten()
    # "as numbers": codes stand for themselves, evenly spaced.
    inner = absmax.float() / 127.5 - 1 if how == "absmax as numbers" else DYNAMIC[absmax.long()]
    scale = _spread(nested, NESTED, len(absmax), tiled=how == "nested tiled")
    if how == "nested first":
        scale = nested[:1].expand(len(absmax))
    largest = {
        "no offset": inner * scale, "minus": inner * scale - offset,
        "offset first": (inner + offset) * scale, "no nested": inner + offset,
    }.get(how, inner * scale + offset)  # fmt: skip
    levels = flat.float() / 7.5 - 1 if how == "as numbers" else NF4[flat.long()]
    wide = _spread(largest, size, len(flat), tiled=how == "tiled")
    back = levels / wide if how == "divided" else levels * wide
    return back.view(codes.shape)


def _mistake(says: str, look: str, how: str) -> KnownMistake:
    return KnownMistake(says, look, lambda c, a, n, o, size: _back(c, a, n, o, size, how))


_FIRST = "absmax = levels[absmax_codes] * nested_absmax + offset; then weight = level * absmax."
_MISTAKES = (
    _mistake("The offset is left out. It was subtracted before the absmax values were quantized.",
             _FIRST, "no offset"),
    _mistake("The offset is subtracted once more. It must be added back.", _FIRST, "minus"),
    _mistake("The offset is added before the scaling. Scale first: it was subtracted before the "
             "division.", _FIRST, "offset first"),
    _mistake("`nested_absmax` is left out.", _FIRST, "no nested"),
    _mistake("The absmax values are tiled. Each serves `blocksize` neighbours.",
             "`absmax.repeat_interleave(blocksize)`.", "tiled"),
    _mistake("The nested absmax values are tiled. Each serves 256 neighbours.",
             "`nested_absmax.repeat_interleave(256)[: len(absmax_codes)]`.", "nested tiled"),
    _mistake("Only the first nested absmax is used. There is one per 256 absmax values.",
             "`nested_absmax.repeat_interleave(256)[: len(absmax_codes)]`.", "nested first"),
    _mistake("You read the weights' codes as evenly spaced numbers. They are places in the list "
             "of NF4's levels.", "`create_normal_map()[codes.long()]`.", "as numbers"),
    _mistake("You read the absmax codes as evenly spaced numbers. They are places in the list of "
             "dynamic levels.", "`create_dynamic_map()[absmax_codes.long()]`.",
             "absmax as numbers"),
    _mistake("You divide by absmax. The way back multiplies.", _FIRST, "divided"),
)  # fmt: skip


def judge_dequantize_nf4(function: Callable[..., Tensor]) -> str:
    """Check `dequantize_nf4(codes, absmax_codes, nested_absmax, offset, blocksize)`."""

    def picture(case: PartsCase, got: Parts) -> tuple[Any, str]:
        (expected,), size = case.expected, case.args[4]
        width = expected.shape[1]
        title = "Distance from the right weights, per block"
        return (
            pictures.group_errors(expected, expected, got[0], min(size, width), title),
            "The error of each block: expected (none) beside yours.",
        )

    compare_parts(function, ("weight",), _CASES, _MISTAKES, picture)
    return (
        "What you read back equals the reference, which the course's tests compare with "
        "bitsandbytes bit by bit: this is the arithmetic inside every QLoRA training step."
    )
