"""What comes back from an answer, tensor by tensor: its form first, then its numbers.

Codes may have any integer dtype. The first number that is wrong is told, with what belongs there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Fault

Parts = tuple[Tensor, ...]


def as_parts(value: Any) -> Parts:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def form(names: tuple[str, ...], expected: Any, got: Any) -> Fault | None:
    """Whether these are the tensors that are asked for: their number, shapes and dtypes."""

    def fault(says: str) -> Fault:
        words = ", ".join(f"{n} {kind(e)}" for n, e in zip(names, as_parts(expected), strict=True))
        found = got if isinstance(got, tuple | list | Tensor) else (got,)
        came = ", ".join(kind(part) for part in as_parts(found))
        return Fault("form", "", None, says, says, words=(words, came))

    if got is None:
        return fault("Your function returned None. Is the `return` missing?")
    single = isinstance(expected, Tensor)
    parts = as_parts(got) if isinstance(got, Tensor if single else tuple | list) else ()
    if len(parts) != len(names) or not all(isinstance(part, Tensor) for part in parts):
        wanted = ", ".join(f"`{name}`" for name in names)
        return fault(f"Your function must return the tensor{'s' * (not single)} {wanted}.")
    for name, right, mine in zip(names, as_parts(expected), parts, strict=True):
        if mine.shape != right.shape:
            shapes = tuple(mine.shape), tuple(right.shape)
            return fault(f"`{name}` has the shape {shapes[0]}; expected {shapes[1]}.")
        if right.dtype.is_floating_point:
            fits, wanted = mine.dtype == right.dtype, str(right.dtype).removeprefix("torch.")
        else:
            fits, wanted = is_whole(mine), "whole numbers in an integer dtype"
        if not fits:
            came = str(mine.dtype).removeprefix("torch.")
            return fault(f"`{name}` is {came}; expected {wanted}.")
    return None


def is_whole(tensor: Tensor) -> bool:
    kinds = (tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool)
    return not any(kinds)


def kind(part: Any) -> str:
    if not isinstance(part, Tensor):
        return "None" if part is None else f"a {type(part).__name__}"
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"


def first(mask: Tensor) -> tuple[int, ...] | None:
    """The place of the first True, or None."""
    return tuple(int(i) for i in mask.nonzero()[0]) if mask.any() else None


def at(name: str, place: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, place))}]" if place else name


def far(got: Tensor, expected: Tensor, rtol: float = 1e-4, atol: float = 0.0) -> Tensor:
    """Where two tensors differ by more than a share of the number, and more than `atol`."""
    off = (got.double() - expected.double()).abs()
    return ~(off <= rtol * expected.double().abs() + atol)


def wrong_number(
    clause: str, name: str, right: Tensor, mine: Tensor, mask: Tensor, more: str = ""
) -> Fault | None:
    """The fault of the first number where `mask` is True; `more` says what it belongs to."""
    place = first(mask)
    if place is None:
        return None
    numbers = float(right[place]), float(mine[place])
    spread = f"{int(mask.sum())} of {mask.numel()} numbers of `{name}` are wrong."
    told = f"{numbers[0]:.6g}", f"{numbers[1]:.6g}"
    return Fault(clause, at(name, place) + more, *numbers, spread, words=told)
