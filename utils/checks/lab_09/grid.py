"""What lab 09 says of a group's grid, its scale and its zero: exercise 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts, rounded


def _params_by_hand(group: Sequence[float], bits: int, sym: bool) -> tuple[float, int]:
    """Scale and zero of one group, in plain Python numbers."""
    top = 2**bits - 1
    if sym:
        return max(abs(w) for w in group) * 2 / top or 1.0, 2 ** (bits - 1)
    low, high = min([*group, 0.0]), max([*group, 0.0])
    scale = (high - low) / top or 1.0
    return scale, round(-low / scale)


def _params_case(groups: Tensor, bits: int, sym: bool, given: str = "") -> PartsCase:
    flat = groups.flatten(0, -2).tolist()
    pairs = [_params_by_hand(group, bits, sym) for group in flat]
    scales, zeros = torch.tensor(pairs).float().view(*groups.shape[:-1], 2).unbind(-1)
    kind = "symmetric" if sym else "asymmetric"
    shown = str(rounded(groups)) if groups.numel() <= 6 else f"of shape {tuple(groups.shape)}"
    return PartsCase(
        f"groups {shown}, bits={bits}, {kind}{given}", (groups, bits, sym), (scales, zeros)
    )


def _random_groups(*shape: int) -> Tensor:
    """Groups with ranges of their own: some mostly positive, some mostly negative."""
    generator = torch.Generator().manual_seed(5)
    centre = 0.7 * torch.randn(*shape[:-1], 1, generator=generator)
    return centre + 0.4 * torch.randn(shape, generator=generator)


_PARAMS_CASES = (
    _params_case(torch.tensor([[-1.0, 0.5, 2.0]]), 4, True),
    _params_case(torch.tensor([[-1.1, 0.5, 2.0]]), 4, False),
    _params_case(torch.tensor([[-2.0, 0.5, 1.0]]), 4, True),
    _params_case(torch.tensor([[0.0, 0.0]]), 4, True),
    _params_case(torch.tensor([[0.0, 0.0]]), 4, False),
    _params_case(torch.tensor([[1.0, 1.6, 2.0]]), 4, False, ": all above 0"),
    _params_case(torch.tensor([[-1.0, -1.6, -2.0]]), 4, False, ": all below 0"),
    _params_case(torch.tensor([[-1.1, 0.5, 2.0]]), 3, False),
    _params_case(_random_groups(3, 2, 8), 4, True),
    _params_case(_random_groups(3, 2, 8), 4, False),
    _params_case(_random_groups(2, 3, 16), 8, False),
)


def params(
    groups: Tensor, bits: int, sym: bool, *, levels: int = -1, with_zero: bool = True,
    rounding: Callable[[Tensor], Tensor] = torch.round, guard: float = 1.0, largest: str = "abs",
    middle: float = 0.0, sign: int = -1, dim: int | None = -1,
) -> Parts:  # fmt: skip
    """`find_params` with one switch per known mistake. It is never the oracle.

    Args:
        levels: what is added to 2^bits to get the number of steps.
        guard: the scale of a group of zeros.
        dim: None: the range of the whole tensor for each group.
    """
    steps = 2**bits + levels
    low, high = groups.amin(-1), groups.amax(-1)
    if dim is None:
        low, high = low.min().expand_as(low), high.max().expand_as(high)
    if sym:
        size = {"abs": torch.maximum(high, -low), "high": high, "half": (high - low) / 2}[largest]
        scales = 2 * size / steps
    else:
        if with_zero:
            low, high = low.clamp(max=0), high.clamp(min=0)
        scales = (high - low) / steps
    scales = torch.where(scales == 0, guard, scales)
    if sym:
        return scales, torch.full_like(scales, 2 ** (bits - 1) + middle)
    return scales, rounding(sign * low / scales)


_STEPS = "2^bits codes have 2^bits - 1 steps between them: 16 fence posts, 15 gaps."
_PARAMS_MISTAKES = (
    KnownMistake("The range is divided by 2^bits. Between 2^bits codes there are only 2^bits - 1 "
                 "steps.", _STEPS, lambda g, b, s: params(g, b, s, levels=0)),
    KnownMistake("The range is divided by 2^bits - 2. That leaves one code unused.", _STEPS,
                 lambda g, b, s: params(g, b, s, levels=-2)),
    KnownMistake("Your symmetric scale is max|w| / (2^(bits-1) - 1), as for signed codes -7..7. "
                 "Here it is 2 max|w| / (2^bits - 1): all 2^bits codes are used.",
                 "The symmetric range goes from -max|w| to +max|w|; it is 2 max|w| wide.",
                 lambda g, b, s: params(g, b, s, levels=-2 if s else -1)),
    KnownMistake("Your symmetric scale is max|w| / 2^(bits-1), as for signed codes -8..8. Here "
                 "it is 2 max|w| / (2^bits - 1).",
                 "The symmetric range goes from -max|w| to +max|w|; it is 2 max|w| wide.",
                 lambda g, b, s: params(g, b, s, levels=0 if s else -1)),
    KnownMistake("The asymmetric range does not include 0. Where all weights are above 0, or all "
                 "below, the zero falls outside the codes, and 0 is not read back as 0.",
                 "`groups.amin(-1).clamp(max=0)` and `groups.amax(-1).clamp(min=0)`.",
                 lambda g, b, s: params(g, b, s, with_zero=False)),
    KnownMistake("The zero is not rounded. It is stored as a code, so it must be a whole number.",
                 "`torch.round(-low / scales)`.",
                 lambda g, b, s: params(g, b, s, rounding=lambda z: z)),
    KnownMistake("The zero is cut off, not rounded to the nearest whole number.",
                 "`torch.round`; `.int()`, `floor` and `trunc` all cut.",
                 lambda g, b, s: params(g, b, s, rounding=torch.floor)),
    KnownMistake("The zero is rounded up, not to the nearest whole number.", "`torch.round`.",
                 lambda g, b, s: params(g, b, s, rounding=torch.ceil)),
    KnownMistake("A group of zeros gets the scale 0, and weights are divided by the scale later.",
                 "Where the range is 0, the scale is 1: `torch.where(span > 0, ..., 1.0)`.",
                 lambda g, b, s: params(g, b, s, guard=0.0)),
    *(KnownMistake(f"A group of zeros gets the scale {tiny:g}. Its range is 0, and its scale 1.",
                   "`torch.where(scales > 0, scales, 1.0)`, in place of `.clamp(min=...)`.",
                   lambda g, b, s, tiny=tiny: params(g, b, s, guard=tiny))
      for tiny in (1e-4, 1e-5, 1e-6, 1e-8)),
    KnownMistake("Your symmetric scale looks at the largest weight only. A negative one can be "
                 "larger in magnitude.", "`groups.abs().amax(-1)`.",
                 lambda g, b, s: params(g, b, s, largest="high")),
    KnownMistake("Your symmetric scale comes from the range (high - low). Symmetric means: the "
                 "largest magnitude, on both sides.", "`groups.abs().amax(-1)`.",
                 lambda g, b, s: params(g, b, s, largest="half")),
    KnownMistake("Your symmetric zero is one too small: 7 of 0..15. It is 2^(bits-1).",
                 "With 4 bits the zero is 8.", lambda g, b, s: params(g, b, s, middle=-1.0)),
    KnownMistake("Your symmetric zero is 0, as for signed codes. Here codes begin at 0, so 0.0 is "
                 "the code in the middle.", "2^(bits-1): 8 with 4 bits.",
                 lambda g, b, s: params(g, b, s, middle=-float(2 ** (b - 1)))),
    KnownMistake("Your symmetric zero lies between two codes: (2^bits - 1) / 2. It is stored as a "
                 "code.", "2^(bits-1): 8 with 4 bits.",
                 lambda g, b, s: params(g, b, s, middle=-0.5)),
    KnownMistake("The asymmetric zero has the wrong sign. The lowest weight must get code 0: "
                 "low / scale + zero = 0.", "`torch.round(-low / scales)`.",
                 lambda g, b, s: params(g, b, s, sign=1)),
    KnownMistake("Every group has the range of the whole tensor. Each has a range of its own.",
                 "`amin(-1)` and `amax(-1)` go along the weights of a group.",
                 lambda g, b, s: params(g, b, s, dim=None)),
    KnownMistake("All groups together have one range, and one scale. Each has a range of its own.",
                 "`amin(-1)` and `amax(-1)` go along the weights of a group; without -1 they go "
                 "over everything.",
                 lambda g, b, s: tuple(p.flatten()[0] for p in params(g, b, s, dim=None))),
    KnownMistake("`bits` is ignored: you always use 4.", "`2**bits - 1`.",
                 lambda g, b, s: params(g, 4, s)),
    KnownMistake("`sym` is ignored: you always use the asymmetric grid.", "`if sym:`",
                 lambda g, b, s: params(g, b, False)),
    KnownMistake("`sym` is ignored: you always use the symmetric grid.", "`if sym:`",
                 lambda g, b, s: params(g, b, True)),
)  # fmt: skip


def judge_find_params(function: Callable[..., Parts]) -> str:
    """Check `find_params(groups, bits, sym)`."""
    compare_parts(function, ("scales", "zeros"), _PARAMS_CASES, _PARAMS_MISTAKES)
    return (
        "Symmetric and asymmetric, 3, 4 and 8 bits, groups of zeros and groups all above or all "
        "below 0: each has the grid that it needs."
    )
