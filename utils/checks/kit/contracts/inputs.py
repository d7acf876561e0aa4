"""Tensors of all kinds: tiny and huge numbers, ties, half precision, other places in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.checks.kit.contracts.choices import Choices

LAYOUTS = ("contiguous", "contiguous", "transposed", "a slice")
# The first is the simplest; each is likely enough to come up in a hundred inputs.
VALUES = ("plain", "plain", "plain", "tiny", "large", "negative", "ties", "zero")


def tensor(
    c: Choices,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    values: Sequence[str] = VALUES,
    layouts: Sequence[str] = LAYOUTS,
) -> Tensor:
    """A tensor whose numbers, dtype and layout are drawn.

    Args:
        values: "plain" (normal, 2 decimals), "tiny" (around 1e-6), "large" (around 1e4; around 300
            in float16, whose squares overflow), "negative" (all below -200), "ties" (few different
            numbers), "zero"
        layouts: see `laid_out`
    """
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    kind, dtype = c.pick(values), c.pick(dtypes)
    plain = (torch.randn(tuple(shape), generator=generator) * 100).round() / 100
    made = {
        "plain": lambda: plain,
        "tiny": lambda: plain * 1e-6,
        "large": lambda: plain * (300.0 if dtype == torch.float16 else 1e4),
        "negative": lambda: -200.0 - plain.abs(),
        "ties": lambda: plain.round(),
        "zero": lambda: torch.zeros_like(plain),
    }[kind]()
    return laid_out(made.to(dtype), c.pick(layouts))


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers in another place in memory: "contiguous", "transposed" or "a slice"."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "a slice" and tensor.dim() > 0:
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), 7).to(tensor)
        wide[..., 1:-2] = tensor
        return wide[..., 1:-2]
    return tensor
