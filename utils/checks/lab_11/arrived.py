"""How much of an update has arrived behind a rounding: exercise 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_11.adapters import DTYPES, numbers

NAMES = ("changed", "off", "arrived")


def draw_rounding(c: Choices) -> Given:
    """Updates from far below a step of the dtype to far above the weight; some are none at all."""
    shape = (c.size(1, 70), c.size(1, 12), 2)[: c.pick((2, 2, 1, 3))]
    size = c.pick((1.0, 1.0, 0.02, 300.0))
    before = numbers(c, *shape, scale=size).to(c.pick((*DTYPES, torch.float64)))
    delta = numbers(c, *shape, scale=size * c.pick((0.1, 3e-3, 1e-3, 1e-5, 1.0, 1e-15)))
    delta = delta.to(c.pick((torch.float32, torch.float32, torch.float64, torch.float16)))
    if c.rarely(3):
        delta[..., ::2] = 0
    if c.rarely(5) and shape[-1] % 2 == 0:
        delta[..., ::2] = -delta[..., 1::2]  # their sum is 0
    if c.rarely(10):
        delta = torch.zeros_like(delta)
    kind = c.pick(("once", "once", "backwards", "twice", "not"))
    times = {"once": 1.0, "backwards": -1.0, "twice": 2.0, "not": 0.0}[kind]
    after = (before.double() + times * delta.double()).to(
        before.dtype if not c.rarely(4) else c.pick((*DTYPES, torch.float64))
    )
    return Given(*(laid_out(t, c.pick(LAYOUTS)) for t in (before, after, delta)))


def number_by_number(before: Tensor, after: Tensor, delta: Tensor) -> tuple[float, float, float]:
    """In Python's numbers, summed exactly."""
    old, new, d = (t.double().flatten().tolist() for t in (before, after, delta))
    length = math.fsum(x * x for x in d)
    if length == 0:
        raise ValueError("no update")
    moved = [n - o for o, n in zip(old, new, strict=True)]
    changed = sum(m != 0 for m in moved) / len(moved)
    off = math.sqrt(math.fsum((m - x) ** 2 for m, x in zip(moved, d, strict=True)) / length)
    return changed, off, math.fsum(m * x for m, x in zip(moved, d, strict=True)) / length


def _wrong(expected: tuple[float, ...], got: Any, given: Given) -> Fault | None:
    says = difference(expected, got, rtol=1e-6, atol=1e-9)
    if not says and not all(isinstance(number, float) for number in got):
        says = f"These are of types {', '.join(type(number).__name__ for number in got)}."
    for number, name in enumerate(NAMES):
        if says.startswith(item := f"Item {number}: "):
            return Fault(name, "", expected, got, says.removeprefix(item))
    return Fault("returns", "", expected, got, says) if says else None


def _measure(change: str = "") -> Callable[..., Any]:
    """A right answer, but for one thing."""

    def measure(before: Tensor, after: Tensor, delta: Tensor) -> Any:
        old, new, d = before.double(), after.double(), delta.double()
        if change == "half":
            old, new, d = before.half(), after.half(), delta.half()
        if not delta.any():
            if change == "zero":
                return 0.0, 0.0, 0.0
            raise ValueError("no update")
        moved = new - old
        changed = (moved != 0).double().mean()
        if change == "unchanged":
            changed = 1 - changed
        off, arrived = (moved - d).norm() / d.norm(), (moved * d).sum() / (d * d).sum()
        if change == "of the weight":
            off = (moved - d).norm() / new.norm()
        if change == "lengths":
            arrived = moved.norm() / d.norm()
        if change == "squared":
            off = off**2
        if change == "one minus":
            arrived = 1 - off
        return float(changed), float(off), float(arrived)

    return measure


WHAT_ARRIVED = Contract(
    inputs=draw_rounding,
    judge=Returns(number_by_number, wrong=_wrong),
    passed="Right: three numbers that do not mean the same. Rounding moves weights about, and "
    "on average the update arrives all the same, unless most weights do not move.",
    clauses={
        "returns": Clause("{says}", "Three Python floats: changed, off, arrived."),
        "changed": Clause("`changed` is wrong. {says}", "The mean of `moved != 0`."),
        "off": Clause(
            "`off` is wrong. {says}",
            "Two lengths in float64: that of moved - delta, and that of delta.",
        ),
        "arrived": Clause(
            "`arrived` is wrong. {says}",
            "Two sums in float64: of moved * delta, and of delta * delta.",
        ),
        "refuses": Clause(
            "The update is zero everywhere: of nothing, no share can arrive. Raise a ValueError.",
            "`delta.any()`",
        ),
    },
    mistakes=(
        mistake(
            "The first number counts the weights that did *not* change.",
            "`!=`",
            _measure("unchanged"),
        ),
        mistake(
            "The error is measured in lengths of the weight. Ask how it compares with the "
            "update: that may be a thousand times shorter.",
            "Divide by the length of delta.",
            _measure("of the weight"),
        ),
        mistake(
            "How far weights moved is not how far they moved *along the update*.",
            "A scalar product with delta.",
            _measure("lengths"),
        ),
        mistake("`off` is squared.", "A length is a square root.", _measure("squared")),
        mistake(
            "What is off has not been taken from what arrived: rounding errors have "
            "directions of their own.",
            "A scalar product with delta.",
            _measure("one minus"),
        ),
        mistake(
            "Of no update, no share can arrive: raise a ValueError.",
            "`delta.any()`",
            _measure("zero"),
        ),
    ),
)
