"""Answers of one tensor or several: each part is judged as the contract says, with its own words.

Two right answers can differ: 2.5 steps are rounded to 2 or to 3. So a part has a judge, which says
where it is wrong, and not only one right value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.contracts.functions import Wrong
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out, tensor

Parts = tuple[Tensor, ...]
# Where a part is wrong: (the arguments, all expected parts, all parts that came) -> mask.
Places = Callable[[Given, Parts, Parts], Tensor]
Picture = Callable[[Given, Parts, Parts], tuple[Figure | None, str]]
BITS = (4, 3, 2, 8, 5, 6, 7)
HALF = 0.5 + 1e-3  # a whole number that is so near is the nearest
MANY = (129, 530)  # of anything that a loop, or a block of 128, could leave out

# What is drawn


def seeded(c: Choices) -> torch.Generator:
    return torch.Generator().manual_seed(c.integer(0, 9999))


def sizes(c: Choices, *most: int, one_in: int = 8) -> list[int]:
    """A size for each of `most`, small as a rule; now and then one of them is large."""
    found = [c.size(1, n) for n in most]
    if c.rarely(one_in):
        found[c.integer(0, len(found) - 1)] = c.integer(*MANY)
    return found


def placed(c: Choices, *tensors: Tensor) -> list[Tensor]:
    """The same numbers, in other places in memory now and then."""
    return [laid_out(t, c.pick(LAYOUTS)) for t in tensors]


def mixed_groups(c: Choices, shape: Sequence[int]) -> Tensor:
    """Groups [..., group] of all kinds; often of several: tiny, huge, zeros, on one side of 0."""
    groups = tensor(c, shape)
    if c.rarely(2):
        generator = seeded(c)

        def one_of(*options: float) -> Tensor:
            picked = torch.randint(0, len(options), (*shape[:-1], 1), generator=generator)
            return torch.tensor(options)[picked]

        groups.add_(one_of(0, 0, 4, -4)).mul_(one_of(1, 1, 0, 1e-6, 1e4))
    return groups


def spread(per_group: Tensor, width: int) -> Tensor:
    """Values per group [out, groups] for each channel [out, width]."""
    return per_group.repeat_interleave(width // per_group.shape[1], 1)


# How it is told


class InWords(Returns):
    """As `Returns`. An argument's place in memory is told, too."""

    def tell(self, given: Given) -> str:
        return ", ".join(f"{name} {_told(value)}" for name, value in self._named(given))


class InTime(InWords):
    """What takes longer than the contract allows has words of its own, and no second chance."""

    _slow: tuple[Any, Given, Fault] | None = None

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        if self._slow is not None and self._slow[0] is answer and self._slow[1] is given:
            return self._slow[2]
        found = super().fault(answer, given, expected)
        if found is None or not found.never_ended:
            return found
        words = "an answer within a second", "none"
        found = replace(found, clause="time", says="", look="", words=words)
        self._slow = answer, given, found
        return found


def _told(value: Any) -> str:
    text = shown(value).replace("`", "").replace("-0,", "0,").replace("-0]", "0]")
    if not isinstance(value, Tensor) or value.is_contiguous():
        return text
    kind = "transposed" if value.dim() == 2 and value.T.is_contiguous() else "a slice"
    return f"{text}, in memory {kind}: strides {value.stride()}"


# What is right


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
        found = got if isinstance(got, tuple | list | Tensor) else (kind,)
        came = ", ".join(_kind(p) if isinstance(p, Tensor) else str(p) for p in as_parts(found))
        return Fault("form", "", None, says, says, words=(words, came))

    if got is None:
        return fault("Your function returned None. Is the `return` missing?")
    parts = as_parts(got) if isinstance(got, Tensor | tuple | list) else ()
    as_many = isinstance(got, Tensor) == isinstance(expected, Tensor) and len(parts) == len(names)
    if not as_many or not all(isinstance(part, Tensor) for part in parts):
        wanted = ", ".join(f"`{name}`" for name in names)
        return fault(f"Your function must return the tensor{'s' * (len(names) > 1)} {wanted}.")
    for name, right, mine in zip(names, as_parts(expected), parts, strict=True):
        if mine.shape != right.shape:
            shapes = tuple(mine.shape), tuple(right.shape)
            return fault(f"`{name}` has the shape {shapes[0]}; expected {shapes[1]}.")
        if mine.dtype != right.dtype:
            kinds = [str(t.dtype).removeprefix("torch.") for t in (mine, right)]
            return fault(f"`{name}` is {kinds[0]}; expected {kinds[1]}.")
        if mine.isnan().any():
            return fault(f"`{name}` contains NaN, which 0 / 0 gives.")
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


def _kind(part: Tensor) -> str:
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
