"""How functions are judged through which gradients must flow: exercises 4 and 6."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Fault, Given, Raised
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first, same
from utils.checks.kit.contracts.plays import Picture


class Near(NamedTuple):
    """A right tensor, and how far from each of its numbers another right one may lie."""

    value: Tensor
    tolerance: Tensor

    def fits(self, got: Any) -> bool:
        """Of the same shape and type, and near."""
        return (
            isinstance(got, Tensor)
            and got.shape == self.value.shape
            and got.dtype == self.value.dtype
            and bool(((got.double() - self.value.double()).abs() <= self.tolerance).all())
        )

    def says(self, got: Any) -> str:
        """What is wrong with a value that does not fit."""
        return difference(self.value, got) or "The numbers are less exact than they could be."


class Wanted(NamedTuple):
    """What a function must return, and the gradients of its arguments, by name."""

    output: Near
    gradients: dict[str, Near]


def pulled(like: Tensor) -> Tensor:
    """The gradient that comes from above: few bits, so that rounding it changes nothing."""
    generator = torch.Generator().manual_seed(like.numel())
    powers = torch.randint(-1, 2, like.shape, generator=generator).double().exp2()
    return powers * (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1)


class Differentiable:
    """A function's output must be near the right one; and so must its gradients.

    Its clauses are "returns", "raises", "no gradient", "gradient", "changes" and "again".

    Args:
        wanted: what is right, of the arguments in the order of the learner's function
        names: of these arguments
        also: finds a fault of another kind in an answer that returns the right numbers
    """

    def __init__(
        self,
        wanted: Callable[..., Wanted],
        also: Callable[[Any, Given], Fault | None] | None = None,
        picture: Picture | None = None,
    ) -> None:
        self._wanted, self._also, self._picture = wanted, also, picture
        self._names = list(inspect.signature(wanted).parameters)

    def tell(self, given: Given) -> str:
        pairs = zip(self._names, given.args, strict=True)
        return ", ".join(f"{n} {shown(v).replace('`', '')}" for n, v in pairs)

    def expect(self, given: Given) -> Wanted:
        return self._wanted(*given.copied().args)

    def fault(self, answer: Any, given: Given, expected: Wanted) -> Fault | None:
        as_at_first(answer)
        theirs = given.copied()
        args = dict(zip(self._names, theirs.args, strict=True))
        for name in expected.gradients:
            args[name].requires_grad_()
        got = attempt(answer, *theirs.args)
        fault = self._of_output(expected.output, got) or self._of_gradients(expected, got, args)
        if fault is not None:
            return fault
        for name, old in zip(self._names, given.args, strict=True):
            if not same(old, args[name]):
                return Fault("changes", f"argument `{name}`", old, args[name])
        again = attempt(answer, *given.copied().args)
        if self._of_output(expected.output, again) is not None:
            return Fault("again", "the second call", expected.output.value, again)
        return self._also(answer, given) if self._also is not None else None

    def _of_output(self, near: Near, got: Any) -> Fault | None:
        if isinstance(got, Raised):
            return Fault("raises", "", near.value, got, got.says, got.look)
        if near.fits(got):
            return None
        values = near.value, got.detach() if isinstance(got, Tensor) else got
        picture = self._picture
        draw = (lambda: picture(*values)) if picture is not None else None
        return Fault("returns", "", *values, near.says(got), picture=draw)

    def _of_gradients(self, expected: Wanted, got: Tensor, args: dict[str, Any]) -> Fault | None:
        if got.requires_grad and (raised := attempt(self._pull, got)) is not None:
            return Fault("raises", "backward", "gradients", raised, raised.says, raised.look)
        for name, near in expected.gradients.items():
            gradient, where = args[name].grad, f"the gradient of {name}"
            if gradient is None:
                says = f"No gradient arrives at {name}."
                return Fault("no gradient", where, near.value, "none", says)
            if not near.fits(gradient):
                says = f"The gradient of {name} is wrong. {near.says(gradient)}"
                return Fault("gradient", where, near.value, gradient, says)
        return None

    @staticmethod
    def _pull(got: Tensor) -> None:
        got.backward(pulled(got).to(got.dtype))
