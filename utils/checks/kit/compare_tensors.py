"""Compare functions that return several tensors with an oracle, and name the known mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.runner import Mismatch, call
from utils.checks.kit.runner import describe as describe_floats

Parts = tuple[Tensor, ...]
Picture = Callable[["PartsCase", Parts], tuple[Figure, str]]


class PartsCase(NamedTuple):
    """One input with the oracle's tensors. Cases go from the smallest to the largest."""

    given: str
    args: tuple[Any, ...]
    expected: Parts
    rtol: float = 1e-4
    atol: float = 1e-6


class KnownMistake(NamedTuple):
    """`wrong` computes what a mistake makes of the same input; a lone tensor counts as one part."""

    says: str
    look: str
    wrong: Callable[..., Any]


def compare_parts(
    function: Callable[..., Any],
    names: Sequence[str],
    cases: Sequence[PartsCase],
    mistakes: Sequence[KnownMistake] = (),
    picture: Picture | None = None,
) -> list[Parts]:
    """Check `function` on each case; raise `Mismatch` about the first part that is wrong.

    A mistake is named only if it explains the answers to all cases, so that an accidental
    agreement on a small input does not mislead.

    Args:
        names: of the tensors that are returned, in order. One name: a lone tensor.
    """
    answers = [_ask(function, names, case) for case in cases]
    for case, got in zip(cases, answers, strict=True):
        for name, part, expected in zip(names, got, case.expected, strict=True):
            problem = _problem(name, part, expected, case)
            if not problem:
                continue
            known = next((m for m in mistakes if _explains(m, cases, answers)), None)
            differing = _differing(part, expected, case)
            figure, alt = None, ""
            if picture is not None:  # an extra: it must not hide the words
                with contextlib.suppress(Exception):
                    figure, alt = picture(case, got)
            raise Mismatch(
                known.says if known else problem,
                input=case.given,
                expected=f"`{name}` = {describe(expected, differing)}",
                got=f"`{name}` = {describe(part, differing)}",
                look=known.look if known else "",
                figure=figure,
                alt=alt,
            )
    return answers


def _ask(function: Callable[..., Any], names: Sequence[str], case: PartsCase) -> Parts:
    args = tuple(a.clone() if isinstance(a, Tensor) else a for a in case.args)
    got = call(function, *args, given=case.given)
    for position, (before, after) in enumerate(zip(case.args, args, strict=True)):
        if isinstance(before, Tensor) and not torch.equal(before, after):
            raise Mismatch(
                f"Your function changes its argument number {position + 1} in place. "
                "The caller still needs the old values.",
                input=case.given,
                look="`x[...] = y` and `x -= y` write into `x`. Begin with `x = x.clone()`.",
            )
    if got is None:
        raise Mismatch("Your function returned None. Is the `return` missing?")
    parts = (got,) if len(names) == 1 else got
    right = isinstance(parts, tuple | list) and len(parts) == len(names)
    if not right or not all(isinstance(part, Tensor) for part in parts):
        wanted = ", ".join(f"`{name}`" for name in names)
        kind = f"the tensors {wanted}, in this order" if len(names) > 1 else f"a tensor, {wanted}"
        raise Mismatch(f"Your function returned {_kind(got)}; expected {kind}.", input=case.given)
    return tuple(parts)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of " + ", ".join(type(part).__name__ for part in value)
    return f"a {type(value).__name__}"


def _problem(name: str, got: Tensor, expected: Tensor, case: PartsCase) -> str:
    if got.shape != expected.shape:
        return f"`{name}` has the shape {tuple(got.shape)}; expected {tuple(expected.shape)}."
    if got.dtype != expected.dtype:
        return f"`{name}` is {_dtype(got)}; expected {_dtype(expected)}."
    if got.isnan().any() or got.isinf().any():
        return f"`{name}` is not finite everywhere. Was something divided by 0?"
    wrong = _differing(got, expected, case)
    if wrong is not None and wrong.any():
        return f"{int(wrong.sum())} of {got.numel()} values of `{name}` are wrong."
    return ""


def _differing(got: Tensor, expected: Tensor, case: PartsCase) -> Tensor | None:
    if got.shape != expected.shape:
        return None
    if not expected.is_floating_point():
        return got != expected
    return ~torch.isclose(got.double(), expected.double(), rtol=case.rtol, atol=case.atol)


def _explains(mistake: KnownMistake, cases: Sequence[PartsCase], answers: Sequence[Parts]) -> bool:
    for case, got in zip(cases, answers, strict=True):
        args = tuple(a.clone() if isinstance(a, Tensor) else a for a in case.args)
        try:
            wrong = mistake.wrong(*args)
        except Exception:
            return False
        parts = (wrong,) if isinstance(wrong, Tensor) else wrong
        if not all(_alike(a, b, case) for a, b in zip(got, parts, strict=True)):
            return False
    return True


def _alike(one: Tensor, other: Tensor, case: PartsCase) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(
        one.double(), other.double(), rtol=10 * case.rtol, atol=10 * case.atol, equal_nan=True
    )


def describe(value: Tensor, mask: Tensor | None) -> str:
    """A tensor in words: as `runner.describe`, but codes as ints, and packed ones in hex."""
    if value.is_floating_point():
        return describe_floats(value, mask)
    kind = f"(shape {tuple(value.shape)}, {_dtype(value)})"
    packed = value.dtype in (torch.int32, torch.int64) and bool((value.abs() > 255).any())
    write = _hex if packed else str
    if value.numel() <= 16:
        return f"`{_nested(value.tolist(), write)}` {kind}"
    if mask is None or mask.shape != value.shape or not mask.any():
        return kind
    index = tuple(int(i) for i in mask.nonzero()[0])
    return f"`{write(int(value[index]))}` at index {list(index)} {kind}"


def _nested(values: Any, write: Callable[[int], str]) -> str:
    if not isinstance(values, list):
        return write(values)
    return "[" + ", ".join(_nested(value, write) for value in values) + "]"


def rounded(values: Tensor) -> Any:
    """Numbers for a sentence: nested lists, without the noise of float32."""
    return torch.round(values.double(), decimals=4).tolist()


def _hex(value: int) -> str:
    return f"0x{value & 0xFFFFFFFF:08x}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
