"""What lab 10 says of the update: exercises 6 (beside the weight) and 7 (merged into it)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.runner import Bug, Case, Mismatch, call, compare
from utils.checks.lab_10 import pictures

# Exercise 6


def _case(
    given: str, shape: tuple[int, ...], out: int, r: int, alpha: float,
    dtype: torch.dtype = torch.float32,
) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(out * 100 + r)
    x = torch.randn(*shape, generator=generator).to(dtype)
    weight = torch.randn(out, shape[-1], generator=generator).to(dtype)
    a = torch.randn(r, shape[-1], generator=generator)
    b = torch.randn(out, r, generator=generator)
    total = weight.double() + alpha / r * (b.double() @ a.double())
    expected = (x.double() @ total.T).to(dtype)
    exact = dtype == torch.float32
    return Case(given, (x, weight, a, b, alpha), expected, 1e-4 if exact else 2e-2,
                1e-4 if exact else 1e-1)  # fmt: skip


_FINE = 1 + 1 / 512


def _tiny(given: str, a: list[list[float]], b: list[list[float]], alpha: float) -> Case:
    """x is all ones, W is zero, both in bfloat16; the output is 1."""
    x = torch.ones(1, len(a[0])).bfloat16()
    args = (x, torch.zeros(1, len(a[0])).bfloat16(), torch.tensor(a), torch.tensor(b), alpha)
    kind = f"x all ones and W zero in bfloat16; {given} in float32; lora_alpha = {alpha:g}"
    return Case(kind, args, torch.ones(1, 1).bfloat16(), 1e-2, 1e-2)


_FORWARD_CASES = (
    _case("x [1, 3], 3 inputs, 2 outputs, r = 1, lora_alpha = 1", (1, 3), 2, 1, 1),
    _case("x [1, 3], 3 inputs, 2 outputs, r = 2, lora_alpha = 6", (1, 3), 2, 2, 6),
    _case("x [2, 4, 5], 5 inputs, 5 outputs, r = 3, lora_alpha = 12", (2, 4, 5), 5, 3, 12),
    _case("x [4, 8], 8 inputs, 6 outputs, r = 4, lora_alpha = 2", (4, 8), 6, 4, 2),
    _case("x and weight in bfloat16, A and B in float32; 8 inputs, 6 outputs, r = 4, "
          "lora_alpha = 8", (4, 8), 6, 4, 8, torch.bfloat16),
    # Exact in float32. In bfloat16, 1 + 1/512 is 1, and the difference is gone.
    _tiny("A = [[1 + 1/512, -1]], B = [[1]]", [[_FINE, -1.0]], [[1.0]], 512),
    _tiny("A = [[1], [1]], B = [[1 + 1/512, -1]]", [[1.0], [1.0]], [[_FINE, -1.0]], 1024),
)  # fmt: skip


def _with_scale(scale: Callable[[Tensor, Tensor, float], float]) -> Callable[..., Tensor]:
    def wrong(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
        update = F.linear(F.linear(x.float(), a), b)
        return (F.linear(x, weight).float() + scale(a, b, alpha) * update).to(x.dtype)

    return wrong


_SCALE = "`lora_alpha / r`, and r is `lora_A.shape[0]`."
_FORWARD_BUGS = (
    Bug("The update is not scaled: lora_alpha / r is missing.", _SCALE,
        _with_scale(lambda a, b, alpha: 1.0)),
    Bug("The update is multiplied by lora_alpha, but not divided by r. Whoever doubles r would "
        "have to find a new learning rate.", _SCALE, _with_scale(lambda a, b, alpha: alpha)),
    Bug("The scale is upside down: r / lora_alpha.", _SCALE,
        _with_scale(lambda a, b, alpha: a.shape[0] / alpha)),
    Bug("You divide by the square root of r. That is rsLoRA; here it is r.", _SCALE,
        _with_scale(lambda a, b, alpha: alpha / math.sqrt(a.shape[0]))),
    Bug("You divide by the width of the input, not by the rank.", _SCALE,
        _with_scale(lambda a, b, alpha: alpha / a.shape[1])),
    Bug("You divide by the width of the output, not by the rank.", _SCALE,
        _with_scale(lambda a, b, alpha: alpha / b.shape[0])),
    Bug("You divide by r only, and lora_alpha is missing.", _SCALE,
        _with_scale(lambda a, b, alpha: 1 / a.shape[0])),
    Bug("The division is cut to a whole number. lora_alpha = 2 with r = 4 gives 0.5, not 0.",
        "`/`, not `//`.", _with_scale(lambda a, b, alpha: alpha // a.shape[0])),
    Bug("The update is computed in bfloat16. A and B are rounded there, and lose what the last "
        "steps have taught them.", "`x.float()` in front of A; convert at the very end.",
        lambda x, w, a, b, alpha: F.linear(x, w) + alpha / a.shape[0]
            * F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype))),
    Bug("The scale is applied twice.", "Once, to the update.",
        _with_scale(lambda a, b, alpha: (alpha / a.shape[0]) ** 2)),
    Bug("The update is subtracted.", "It is added to W x.",
        _with_scale(lambda a, b, alpha: -alpha / a.shape[0])),
    Bug("Only the update is left: W x is missing.", "`F.linear(x, weight)` + the scaled update.",
        lambda x, w, a, b, alpha:
            (alpha / a.shape[0] * F.linear(F.linear(x.float(), a), b)).to(x.dtype)),
    Bug("Only W x is left: the update is missing.", "Add the scaled update.",
        lambda x, w, a, b, alpha: F.linear(x, w)),
    Bug("W x is scaled, too. Only the update is.", "Multiply before you add W x.",
        lambda x, w, a, b, alpha: (alpha / a.shape[0]
            * (F.linear(x, w).float() + F.linear(F.linear(x.float(), a), b))).to(x.dtype)),
    Bug("Between A and B there is a nonlinearity. Then the update cannot be merged into "
        "one matrix.",
        "Only two matrix products.",
        lambda x, w, a, b, alpha: (F.linear(x, w).float() + alpha / a.shape[0]
            * F.linear(F.linear(x.float(), a).relu(), b)).to(x.dtype)),
)  # fmt: skip


def judge_lora_forward(function: Callable[..., Tensor]) -> str:
    """Check `lora_forward(x, weight, lora_A, lora_B, lora_alpha)`."""

    def picture(case: Case, got: Tensor) -> tuple[Any, str]:
        width = case.expected.shape[-1]
        figure = pictures.matrices(
            case.expected.reshape(-1, width)[:4], got.reshape(-1, width)[:4],
            "The output, row by row", ("row of x", "output"),
        )  # fmt: skip
        return figure, "The expected output beside yours."

    compare(function, _FORWARD_CASES, _FORWARD_BUGS, picture)
    _judge_gradients(function)
    return (
        "W x plus the scaled update, and the gradients of x, A and B are those of the matrix "
        "W + (alpha / r) B A."
    )


def _judge_gradients(function: Callable[..., Tensor]) -> None:
    """x, A and B must be reached. The gradient of x has a part through W and one through B A."""
    case = _FORWARD_CASES[2]
    x, weight, a, b, alpha = case.args
    outside = [t.clone().requires_grad_() for t in (x, a, b)]
    oracle = [t.double().clone().requires_grad_() for t in (x, a, b)]
    got = call(function, outside[0], weight, outside[1], outside[2], alpha, given=case.given)
    total = weight.double() + alpha / a.shape[0] * (oracle[2] @ oracle[1])
    (oracle[0] @ total.T).square().sum().backward()
    if got.requires_grad:
        got.square().sum().backward()
    for name, mine, right in zip(("x", "lora_A", "lora_B"), outside, oracle, strict=True):
        if mine.grad is None:
            raise Mismatch(
                f"No gradient arrives at {name}.", input=case.given,
                look="`.detach()`, `.data` and `no_grad` cut it off.",
            )  # fmt: skip
        assert right.grad is not None
        if not torch.allclose(mine.grad.double(), right.grad, rtol=1e-3, atol=1e-3):
            raise Mismatch(
                f"The gradient of {name} is wrong, though the output is right: a part of the "
                "way is cut off.", input=case.given,
                look="The gradient of x passes through W as well as through B A. Freezing W means "
                "that *W* gets no gradient.",
            )  # fmt: skip


# Exercise 7


def _merge_case(given: str, out: int, width: int, r: int, alpha: float,
                dtype: torch.dtype, size: float = 1.0) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(out + width + r)
    weight = torch.randn(out, width, generator=generator).to(dtype)
    a = torch.randn(r, width, generator=generator)
    b = torch.randn(out, r, generator=generator) * size
    expected = (weight.double() + alpha / r * (b.double() @ a.double())).to(dtype)
    return Case(given, (weight, a, b, alpha), expected, rtol=1e-4, atol=1e-5)


_MERGE_CASES = (
    _merge_case("weight [2, 3], float32, r = 1, lora_alpha = 1", 2, 3, 1, 1, torch.float32),
    _merge_case("weight [2, 3], float32, r = 2, lora_alpha = 6", 2, 3, 2, 6, torch.float32),
    _merge_case("weight [4, 4], float32, r = 2, lora_alpha = 4", 4, 4, 2, 4, torch.float32),
    _merge_case("weight [6, 8], bfloat16, r = 4, lora_alpha = 8; a small update", 6, 8, 4, 8,
                torch.bfloat16, 0.01),
    _merge_case("weight [32, 48], bfloat16, r = 4, lora_alpha = 8", 32, 48, 4, 8, torch.bfloat16,
                0.1),
)  # fmt: skip


def _delta(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return alpha / a.shape[0] * (b @ a)


_MERGE_LOOK = (
    "`weight.float() + (lora_alpha / r) * lora_B @ lora_A`, and `.to(weight.dtype)` at the end."
)
_MERGE_BUGS = (
    Bug("The scale lora_alpha / r is missing. The merged model would be another one than the one "
        "that was trained.", _MERGE_LOOK,
        lambda w, a, b, alpha: (w.float() + b @ a).to(w.dtype)),
    Bug("The update is multiplied by lora_alpha, but not divided by r.", _MERGE_LOOK,
        lambda w, a, b, alpha: (w.float() + alpha * b @ a).to(w.dtype)),
    Bug("The update is rounded to bfloat16 before it is added. Add in float32, and round once.",
        _MERGE_LOOK, lambda w, a, b, alpha: w + _delta(a, b, alpha).to(w.dtype)),
    Bug("A and B are rounded to bfloat16 first, and the product is computed there. Add in float32, "
        "and round once.", _MERGE_LOOK,
        lambda w, a, b, alpha: w + _delta(a.to(w.dtype), b.to(w.dtype), alpha).to(w.dtype)),
    Bug("The update is transposed. The matrix happens to be square in one case; elsewhere the "
        "shapes do not fit.", _MERGE_LOOK,
        lambda w, a, b, alpha: (w.float() + _delta(a, b, alpha).T).to(w.dtype)),
    Bug("The update is subtracted. That is how one takes it out again.", _MERGE_LOOK,
        lambda w, a, b, alpha: (w.float() - _delta(a, b, alpha)).to(w.dtype)),
    Bug("You divide by the width of the output, not by the rank.", _SCALE,
        lambda w, a, b, alpha: (w.float() + alpha / b.shape[0] * b @ a).to(w.dtype)),
    Bug("You divide by the width of the input, not by the rank.", _SCALE,
        lambda w, a, b, alpha: (w.float() + alpha / a.shape[1] * b @ a).to(w.dtype)),
    Bug("The update is added twice.", _MERGE_LOOK,
        lambda w, a, b, alpha: (w.float() + 2 * _delta(a, b, alpha)).to(w.dtype)),
    Bug("This is the update alone. The weight is missing.", _MERGE_LOOK,
        lambda w, a, b, alpha: _delta(a, b, alpha).to(w.dtype)),
    Bug("The weight comes back in float32, twice as large as it was.", "`.to(weight.dtype)`.",
        lambda w, a, b, alpha: w.float() + _delta(a, b, alpha)),
)  # fmt: skip


def judge_merge_weight(function: Callable[..., Tensor]) -> str:
    """Check `merge_weight(weight, lora_A, lora_B, lora_alpha)`."""

    def picture(case: Case, got: Tensor) -> tuple[Any, str]:
        if got.shape != case.expected.shape or case.expected.shape[1] > 8:
            raise ValueError("too large to draw")
        figure = pictures.matrices(case.expected, got, "The merged weight", ("output", "input"))
        return figure, "The expected merged weight beside yours."

    def plain(*args: Any) -> Tensor:
        got = function(*args)
        return got.detach() if isinstance(got, Tensor) else got

    for case in _MERGE_CASES:
        call(function, *(a.clone() if isinstance(a, Tensor) else a for a in case.args),
             given=case.given)  # fmt: skip
    compare(plain, _MERGE_CASES, _MERGE_BUGS, picture)
    return "One matrix that does the work of three; added in float32, rounded once."
