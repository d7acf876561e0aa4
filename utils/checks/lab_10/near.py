"""Right numbers in double precision, and how far from them a right answer may be.

A sum in float32 is right up to `SUMMED` of the sum of its terms' sizes. A result in 16 bits may be
rounded once, or each of its two summands and then the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Fault, Given, Returns, Stage
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.runner import Mismatch

SUMMED = 4e-6  # relative error of a sum in float32
CLOSE = 0.005  # what a rounding to 16 bits changes, as a share of the largest number
HALVES = (torch.bfloat16, torch.float16)


class Near(NamedTuple):
    """A right tensor, and how far from each of its numbers another right one may be."""

    value: Tensor
    tolerance: Tensor

    def fits(self, got: Any) -> bool:
        """Whether `got` has the same shape and dtype, and lies near."""
        if not isinstance(got, Tensor) or form_of(got) != form_of(self.value):
            return False
        gap = (got.detach().double() - self.value.double()).abs()
        return bool(((gap <= self.tolerance) | (got == self.value)).all())

    def must_fit(self, stage: Stage, clause: str, got: Any, close: float = 0.0) -> None:
        """End a play unless `got` fits; `close`: see `blame_number`."""
        if not self.fits(got):
            blame_number(stage, clause, self.value, got, close)


def form_of(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def is_close(right: Tensor, got: Any, close: float) -> bool:
    """Whether they differ by rounding alone: two steps of the dtype, or a share of the largest."""
    if not isinstance(got, Tensor) or form_of(right) != form_of(got):
        return False
    share = max(close, 2 * torch.finfo(right.dtype).eps)
    return bool((right.double() - got.double()).abs().max() <= share * right.double().abs().max())


def blame_number(stage: Stage, clause: str, right: Tensor, got: Any, close: float = 0.0) -> None:
    """End a play; the feedback shows the number that differs most, with all its digits.

    What `is_close` breaks the clause with ": rounded" behind its name.
    """
    got = got.detach() if isinstance(got, Tensor) else got
    clause += ": rounded" * is_close(right, got, close)

    def show(value: Any) -> str:
        if not isinstance(got, Tensor) or form_of(right) != form_of(got):
            return shown(value)
        gaps = (right.double() - got.double()).abs() + 1e-300 * (right.signbit() != got.signbit())
        index = [int(i) for i in torch.unravel_index(gaps.argmax(), gaps.shape)]
        return f"{value[tuple(index)].item()!r} at index {index} of {[*value.shape]}"

    stage.blame(clause, right, got, show)


def told(case: Any) -> str:
    """The fields of a case, a NamedTuple, by name."""
    words = (f"{name} {value}" for name, value in case._asdict().items())
    return ", ".join(words).replace("torch.", "")


def beside(base: Tensor, x: Tensor, a: Tensor, b: Tensor, alpha: float) -> Near:
    """`base` [..., out] plus (alpha / r) B A x, for x [..., in], in the dtype of `base`.

    The gradient of x has this form, too: of the base layer's gradient, of what comes from above,
    and of the transposed matrices in the other order.
    """
    dtype, scale = base.dtype, alpha / a.shape[0]
    base, x, a, b = (t.detach().double() for t in (base, x, a, b))
    update = scale * (x @ a.T @ b.T)
    sizes = base.abs() + abs(scale) * (x.abs() @ a.abs().T @ b.abs().T)
    rounding = 2 * torch.finfo(dtype).eps * (base.abs() + update.abs())
    return Near((base + update).to(dtype), rounding + SUMMED * sizes)


def gradients(
    base: Tensor, x: Tensor, above: Tensor, a: Tensor, b: Tensor, alpha: float
) -> list[Near]:
    """The gradients of x, A and B.

    Args:
        base: the base layer's part of the gradient of x, [..., in]
        above: the gradient of the output, [..., out]
    """

    def of_ab(x: Tensor, above: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [(above @ b).T @ x, above.T @ (x @ a.T)]

    given = [t.detach().double().reshape(-1, t.shape[-1]) for t in (x, above, a, b)]
    scale = alpha / a.shape[0]
    pairs = zip(of_ab(*given), of_ab(*(t.abs() for t in given)), strict=True)
    nears = [Near((scale * g).float(), abs(scale) * size * 10 * SUMMED) for g, size in pairs]
    return [beside(base, above, b.T, a.T, alpha), *nears]


def pulled(like: Tensor) -> Tensor:
    """A gradient from above, in double precision: few bits, so that rounding changes nothing."""
    generator = torch.Generator().manual_seed(like.numel())
    signs = torch.randint(0, 2, like.shape, generator=generator) * 2 - 1
    return torch.randint(-1, 2, like.shape, generator=generator).double().exp2() * signs


class WithGradients(Returns):
    """An answer must return what is right, and let the right gradients through.

    Its clauses are those of `Returns`, "form", "infinite", "no gradient", "gradient" and "rounded".

    Args:
        right: of the same arguments as the answer, what is near its output and the gradients
        names: of the first arguments, whose gradients these are
        also: finds a fault of another kind in an answer that returns the right numbers
    """

    def __init__(
        self,
        right: Callable[..., list[Near]],
        names: Sequence[str],
        also: Callable[[Any, Given], Fault | None] = lambda answer, given: None,
    ) -> None:
        super().__init__(right, wrong=self._wrong_numbers)
        self._grad_of, self._also = names, also

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        return super().fault(answer, given, expected) or self._also(answer, given)

    def _called(self, answer: Any, given: Given, expected: Any) -> tuple[Given, Any, Fault | None]:
        def with_gradients(*args: Any) -> list[Any]:
            plain, learned = Given(*args).copied().args, args[: len(self._grad_of)]
            answer(*plain)
            if any(isinstance(t, Tensor) and t.requires_grad for t in plain):
                raise Mismatch(
                    "You switch on `requires_grad` of an argument. From then on the caller's code "
                    "computes gradients that nobody asked for.",
                    look="If the caller wants gradients, the arguments ask for them already.",
                )
            for argument in learned:
                argument.requires_grad_()
            out = answer(*args)
            if isinstance(out, Tensor) and out.requires_grad:
                out.backward(pulled(out).to(out.dtype))
                out = out.detach()
            return [out, *(argument.grad for argument in learned)]

        theirs, got, fault = super()._called(with_gradients, given, expected)
        if fault is not None and fault.clause == "raises":
            fault = replace(fault, expected=expected[0].value)
        return theirs, got, fault

    def _wrong_numbers(self, expected: Sequence[Near], got: Any, given: Given) -> Fault | None:
        for name, near, value in zip(("", *self._grad_of), expected, got, strict=True):
            clause, where = ("gradient", f"the gradient of {name}") if name else ("returns", "")
            if near.fits(value):
                continue
            if name and value is None:
                clause, says = "no gradient", f"No gradient arrives at {name}."
                return Fault(clause, where, near.value, "none", says)
            if not isinstance(value, Tensor) or form_of(value) != form_of(near.value):
                clause = "form"
            elif not value.isfinite().all():
                clause = "infinite"
            # A loss has no dimensions: it may be close by accident.
            elif value.dim() and is_close(near.value, value, CLOSE):
                clause = "rounded"
            says = difference(near.value, value)
            says = f"The gradient of {name} is wrong. {says}" if name else says
            return Fault(clause, where, near.value, value, says)
        return None
