"""The first difference between two values, in one sentence; and values in words."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Set
from numbers import Number, Real
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts.faults import Fault, Raised
from utils.checks.kit.runner import describe

RTOL, SHARE = 1e-4, 1e-5  # of each number, and of the largest number beside it
PLAIN = (int, float, str, bool)  # most values are; asked first, because it is quick


def difference(expected: Any, got: Any, rtol: float = RTOL, atol: float | None = None) -> str:
    """What is wrong with `got`, in one sentence; empty if nothing is.

    Args:
        rtol: relative to each number; at least 4 steps of its dtype
        atol: in the numbers' unit; by default `SHARE` of the largest expected one, so that
            tensors of numbers around 1e-6 are judged, too
    """
    if type(expected) in PLAIN and type(got) is type(expected) and got == expected:
        return ""
    if got is None or expected is None:
        if got is None and expected is None:
            return ""
        return (
            "Your function returned None. Is the `return` missing?"
            if got is None
            else (f"Expected None, not {_kind(got)}.")
        )
    if isinstance(expected, Tensor):
        return _of_tensors(expected, got, rtol, atol)
    if isinstance(expected, list | tuple):
        kinds = list if isinstance(expected, list) else list | tuple
        if not isinstance(got, kinds):
            return f"Expected a {type(expected).__name__}, not {_kind(got)}."
        if len(got) != len(expected):
            return f"The length is {len(got)}; expected {len(expected)}."
        for i, (mine, theirs) in enumerate(zip(expected, got, strict=True)):
            if says := difference(mine, theirs, rtol, atol):
                return f"Item {i}: {says}"
        return ""
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            return f"Expected a dict, not {_kind(got)}."
        if set(got) != set(expected):
            return "The keys are wrong."
        for key in expected:
            if says := difference(expected[key], got[key], rtol, atol):
                return f"Key {key!r}: {says}"
        return ""
    if isinstance(expected, Number) and not isinstance(expected, bool):
        return _of_numbers(expected, got, rtol, atol)
    if isinstance(expected, Set) and not isinstance(got, Set):
        return f"Expected a set, not {_kind(got)}."
    return "" if bool(expected == got) else "The value is wrong."


def alike(one: Fault | None, other: Fault | None) -> bool:
    """Whether two answers show the same fault; numbers may differ a little."""
    if one is None or other is None:
        return one is other
    if (one.clause, one.where) != (other.clause, other.where):
        return False
    with contextlib.suppress(Exception):  # of a learner's `__eq__`
        return not difference(one.got, other.got, rtol=1e-3)
    return False


def shown(value: Any, beside: Any = None) -> str:
    """A value in words; of a large tensor the first number that differs from the one `beside`."""
    if isinstance(value, Raised):
        return str(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, Tensor):
        with contextlib.suppress(Exception):  # of a learner's `__repr__`
            return describe(value)
        return _kind(value)
    kind = f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if value.numel() <= 16:
        return f"`{_nested(value.tolist())}` ({kind})"
    mask = _differing(value, beside) if isinstance(beside, Tensor) else None
    if mask is None or not mask.any():
        return kind
    index = tuple(int(i) for i in mask.nonzero()[0])
    return f"`{value[index].item():.5g}` at index {list(index)} ({kind})"


def _of_numbers(expected: Any, got: Any, rtol: float, atol: float | None) -> str:
    if not isinstance(got, Number):
        return f"Expected a number, not {_kind(got)}."
    if isinstance(expected, float) and isinstance(got, Real):
        close = math.isclose(expected, got, rel_tol=rtol, abs_tol=atol or 0.0)
        if close or (math.isnan(expected) and math.isnan(got)):
            return ""
    elif got == expected:
        return ""
    if isinstance(got, float) and math.isnan(got):
        return "The number is nan."
    if expected and got and isinstance(got, Real):
        times = f"{float(got) / float(expected):.4g}"
        if times == "-1":
            return "The number has the wrong sign."
        if times != "1":
            return f"The number is {times} times what it should be."
        return f"The number is off by {float(got - expected):.2g}."
    if isinstance(expected, Real) and isinstance(got, Real):
        return f"The number is {float(got):.6g}; expected {float(expected):.6g}."
    return "The number is wrong."


def _of_tensors(expected: Tensor, got: Any, rtol: float, atol: float | None) -> str:
    if not isinstance(got, Tensor):
        return f"Expected a torch.Tensor, not {_kind(got)}."
    for name in ("shape", "dtype", "device"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        if mine != theirs:
            show = tuple if name == "shape" else str
            return f"The {name} is {show(mine)}; expected {show(theirs)}."
    if got.isnan().any() and not expected.isnan().any():
        return "Your result contains NaN (0 / 0, or a softmax over nothing but -inf)."
    wrong = _differing(got, expected, rtol, atol)
    if not wrong.any():
        return ""
    place = [int(i) for i in wrong.nonzero()[0]]
    if wrong.numel() == 1:
        return "The number is wrong."
    return f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong, first at index {place}."


def _differing(
    got: Tensor, expected: Tensor, rtol: float = RTOL, atol: float | None = None
) -> Tensor:
    """Where two tensors differ; of other shape or kind, nowhere in particular."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return torch.zeros(got.shape, dtype=torch.bool)
    if not expected.is_floating_point():
        return got != expected
    step = 4 * torch.finfo(expected.dtype).eps
    finite = expected[expected.isfinite()].abs()
    if atol is None:
        atol = max(SHARE, step) * float(finite.max()) if finite.numel() else 0.0
    return ~torch.isclose(
        got.double(), expected.double(), rtol=max(rtol, step), atol=atol, equal_nan=True
    )


def _nested(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(_nested(value) for value in values) + "]"
    return f"{values:.5g}" if isinstance(values, float) else str(values)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
