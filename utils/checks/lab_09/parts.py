"""Answers of one tensor or several: each part is judged as the contract says, with its own words.

Two right answers can differ: 2.5 steps are rounded to 2 or to 3. So a part has a judge, which says
where it is wrong, and not only one right value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.functions import Wrong
from utils.checks.kit.contracts.inputs import tensor

Parts = tuple[Tensor, ...]
# Where a part is wrong: (the arguments, all expected parts, all parts that came) -> mask.
Places = Callable[[Given, Parts, Parts], Tensor]
Picture = Callable[[Given, Parts, Parts], tuple[Figure, str]]
HALF = 0.5 + 1e-3  # a whole number that is so near is the nearest


def in_parts(
    names: Sequence[str],
    picture: Picture | None = None,
    first: Sequence[str] = (),
    **places: Places,
) -> Wrong:
    """Judges a tuple of tensors (or one tensor) part by part.

    A part without a judge must equal the expected one: whole numbers exactly, others closely.

    Args:
        first: parts that are judged before the others: what they get wrong shows in those, too
    """
    order = [*first, *(name for name in names if name not in first)]

    def wrong(expected: Any, got: Any, given: Given) -> Fault | None:
        fault = form(names, expected, got)
        if fault is not None:
            return fault
        right, mine = as_parts(expected), as_parts(got)
        for name in order:
            index, judge = names.index(name), places.get(name)
            mask = judge(given, right, mine) if judge else far(mine[index], right[index])
            if mask.any():
                draw = (lambda: picture(given, right, mine)) if picture else None
                says = where(name, mask)
                return Fault(name, "", right[index], mine[index], says, picture=draw)
        return None

    return wrong


def as_parts(value: Any) -> Parts:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def form(names: Sequence[str], expected: Any, got: Any) -> Fault | None:
    """Whether these are the tensors that are asked for: their number, shapes and dtypes."""

    def fault(says: str) -> Fault:
        kind = "None" if got is None else f"a {type(got).__name__}"
        words = ", ".join(f"{n} {_kind(e)}" for n, e in zip(names, as_parts(expected), strict=True))
        shown = got if isinstance(got, tuple | list | Tensor) else (kind,)
        came = ", ".join(_kind(p) if isinstance(p, Tensor) else str(p) for p in as_parts(shown))
        return Fault("form", "", None, says, says, words=(words, came))

    if got is None:
        return fault("Your function returned None. Is the `return` missing?")
    fits = (
        isinstance(got, Tensor)
        if isinstance(expected, Tensor)
        else (
            isinstance(got, tuple | list)
            and len(got) == len(names)
            and all(isinstance(part, Tensor) for part in got)
        )
    )
    if not fits:
        s = "s" if len(names) > 1 else ""
        wanted = ", ".join(f"`{name}`" for name in names)
        return fault(f"Your function must return the tensor{s} {wanted}.")
    for name, right, mine in zip(names, as_parts(expected), as_parts(got), strict=True):
        if mine.shape != right.shape:
            return fault(
                f"`{name}` has the shape {tuple(mine.shape)}; expected {tuple(right.shape)}."
            )
        if mine.dtype != right.dtype:
            kinds = [str(t.dtype).removeprefix("torch.") for t in (mine, right)]
            return fault(f"`{name}` is {kinds[0]}; expected {kinds[1]}.")
        if mine.isnan().any():
            return fault(f"`{name}` contains NaN, as 0 / 0 gives it.")
    return None


def far(got: Tensor, expected: Tensor, atol: Tensor | float = 0.0, rtol: float = 1e-4) -> Tensor:
    """Where two tensors differ by more than a share of the number, and more than `atol`."""
    if not expected.is_floating_point():
        return got != expected
    return ~((got.double() - expected.double()).abs() <= rtol * expected.double().abs() + atol)


def where(name: str, mask: Tensor) -> str:
    if mask.numel() == 1:
        return f"`{name}` is wrong."
    place = [int(i) for i in mask.nonzero()[0]]
    return f"{int(mask.sum())} of {mask.numel()} numbers of `{name}` are wrong, first at {place}."


def spread(per_group: Tensor, width: int, tiled: bool = False) -> Tensor:
    """Values per group [out, groups] for each channel [out, width]; only neighbours are right."""
    times = width // per_group.shape[1]
    return per_group.repeat(1, times) if tiled else per_group.repeat_interleave(times, 1)


def mixed_groups(c: Choices, shape: Sequence[int]) -> Tensor:
    """Groups [..., group] of all kinds; often of several: tiny, huge, zeros, on one side of 0."""
    groups = tensor(c, shape)
    if c.rarely(2):
        generator = torch.Generator().manual_seed(c.integer(0, 9999))

        def one_of(*options: float) -> Tensor:
            picked = torch.randint(0, len(options), (*shape[:-1], 1), generator=generator)
            return torch.tensor(options)[picked]

        groups.add_(one_of(0, 0, 4, -4)).mul_(one_of(1, 1, 0, 1e-6, 1e4))
    return groups


def _kind(part: Tensor) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
