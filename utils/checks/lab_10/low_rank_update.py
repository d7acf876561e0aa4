"""What lab 10 says of the update: exercises 6 (beside the weight) and 7 (merged into it)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.lab_10 import pictures
from utils.checks.lab_10.gradients import Differentiable, Near, Wanted, pulled

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.bfloat16, torch.float32, torch.float16)
VALUES = ("plain", "plain", "ties", "tiny", "zero")
ALPHAS: tuple[float, ...] = (1, 2, 16, 3, 0.5, 7.5, 0)
SUMMED = 4e-6  # relative error of a sum in float32
FINE = 512.0  # lora_alpha where the update is a small difference of large numbers

# Exercise 6


def draw_forward(c: Choices) -> Given:
    """x with any number of dimensions, also empty; A and B whose last bits count."""
    dtype, fine = c.pick(DTYPES), c.pick(("", "", "A", "B", "between"))
    i, o, r = c.size(1, 140), c.size(1, 140), c.size(1, 20)
    rows = c.pick(((1,), (), (3,), (2, 2), (0,), (2, 1, 3)))
    x, weight = (tensor(c, s, (dtype,), VALUES) for s in ((*rows, i), (o, i)))
    a, b = (tensor(c, s, values=VALUES) for s in ((r, i), (o, r)))
    if fine and dtype in HALVES:
        x, a, b = finely(fine, x, a, b)
        return Given(x, weight, a, b, FINE)
    return Given(x, weight, a, b, c.pick(ALPHAS))


def finely(where: str, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same shapes, with an update that is gone if A, B or A x is rounded to x's type."""
    bit = torch.finfo(x.dtype).eps / 8
    x, a, b = torch.ones_like(x), torch.zeros_like(a), torch.zeros_like(b)
    if where == "A" and a.shape[1] > 1:
        a[:, 0], a[:, 1], b[:] = 1 + 3 * bit, -1, 1
    elif where == "B" and a.shape[0] > 1:
        a[:, 0], b[:, 0], b[:, 1] = 1, 1 + 3 * bit, -1
    elif a.shape[0] > 1 and a.shape[1] > 1:
        x[..., 1] = 3 * bit
        a[:, 0], a[0, 1], b[:, 0], b[:, 1] = 1, 1, 1, -1
    return x, a, b


def near_output(base: Tensor, x: Tensor, a: Tensor, b: Tensor, alpha: float) -> Near:
    """Beside the base layer's output: rounded once, or base and update each by itself."""
    x, a, b = (t.detach().double() for t in (x, a, b))
    update = alpha / a.shape[0] * (x @ a.T @ b.T)
    summed = abs(alpha) / a.shape[0] * (x.abs() @ a.abs().T @ b.abs().T)
    right = base.detach().double() + update
    rounded = base.detach().double().abs() + update.abs()
    tolerance = 1.5 * torch.finfo(base.dtype).eps * rounded + SUMMED * summed
    return Near(right.to(base.dtype), tolerance)


def wanted_forward(
    x: Tensor, weight: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float
) -> Wanted:
    """Through the whole matrix, in double precision."""
    names, given = ("x", "lora_A", "lora_B"), (x, lora_A, lora_B)
    exact = [t.double().requires_grad_() for t in given]
    sizes = [t.double().abs().requires_grad_() for t in given]
    for (v, a, b), w, scale in (
        (exact, weight.double(), lora_alpha / len(lora_A)),
        (sizes, weight.double().abs(), abs(lora_alpha) / len(lora_A)),
    ):
        out = v @ (w + scale * b @ a).T
        out.backward(pulled(out) if v is exact[0] else pulled(out).abs())
    base = x.double() @ weight.double().T
    output = near_output(base.to(x.dtype), x, lora_A, lora_B, lora_alpha)
    terms = SUMMED * (x.double().abs() @ weight.double().abs().T)
    gradients = {}
    for name, tensor_, right, size in zip(names, given, exact, sizes, strict=True):
        assert right.grad is not None
        assert size.grad is not None
        rounding = 4 * torch.finfo(x.dtype).eps if name == "x" else 0.0
        near = (rounding + 1e-5) * size.grad
        gradients[name] = Near(right.grad.to(tensor_.dtype), near)
    return Wanted(Near(output.value, output.tolerance + terms), gradients)


class _Products(TorchDispatchMode):
    """Notes of each tensor which of the arguments it was made from."""

    def __init__(self, **arguments: Tensor) -> None:
        super().__init__()
        self._kept = list(arguments.values())  # memory that is freed could come again
        self._made_of = {_place(t): frozenset(name) for name, t in arguments.items()}
        self.largest_of_both = 0  # numbers made from A and B, without x

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        made = frozenset[str]().union(*(self._made_of.get(_place(t), "") for t in given))
        for tensor_ in tree_leaves(out):
            if isinstance(tensor_, Tensor):
                self._kept.append(tensor_)
                self._made_of[_place(tensor_)] = made
                if "a" in made and "b" in made and "x" not in made:
                    self.largest_of_both = max(self.largest_of_both, tensor_.numel())
        return out


def _place(tensor_: Tensor) -> int:
    return int(tensor_.untyped_storage()._cdata)


def builds_the_product(answer: Any, given: Given) -> Fault | None:
    """Whether B A is built: only asked where it is far larger than A and B together."""
    x, weight, a, b, alpha = given.copied().args
    whole = b.shape[0] * a.shape[1]
    if whole <= 4 * (a.numel() + b.numel()):
        return None
    with _Products(x=x, a=a, b=b) as products:
        attempt(answer, x, weight, a, b, alpha)
    if products.largest_of_both < whole:
        return None
    return Fault("built", "", "no matrix of this size", f"{whole} numbers made from A and B alone")


def _picture(want: Any, got: Any) -> Any:
    width = want.shape[-1]
    if width > 8 or want.shape != got.shape or not want.numel():
        raise ValueError("nothing to draw")
    first, second = (t.reshape(-1, width)[:4] for t in (want, got))
    figure = pictures.matrices(first, second, "The output, row by row", ("row of x", "output"))
    return figure, "The expected output beside yours."


def _with_scale(scale: Callable[[Tensor, Tensor, float], float]) -> Callable[..., Tensor]:
    def wrong(x: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
        update = F.linear(F.linear(x.float(), a), b)
        return (F.linear(x, weight).float() + scale(a, b, alpha) * update).to(x.dtype)

    return wrong


def _update(x: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return alpha / a.shape[0] * F.linear(F.linear(x, a), b)


_SCALE = "The scale is lora_alpha / r, and r is the number of rows of A."
LORA_FORWARD = Contract(
    inputs=draw_forward,
    judge=Differentiable(wanted_forward, also=builds_the_product, picture=_picture),
    passed="W x plus the scaled update, and the gradients of x, A and B are those of the matrix "
    "W + (alpha / r) B A, which was never built.",
    clauses={
        "returns": Clause(
            "The output is not W x + (lora_alpha / r) B A x. {says}",
            "From right to left: A, then B, then the scale; W x beside them.",
        ),
        "no gradient": Clause("{says}", "`.detach()`, `.data` and `no_grad` cut it off."),
        "gradient": Clause(
            "{says} The output is right: a part of the way is cut off.",
            "The gradient of x passes through W as well as through B A. Freezing W "
            "means that *W* gets no gradient.",
        ),
        "built": Clause(
            "The result is right, but B A is built: a matrix as large as W, in each call.",
            "Multiply x by A first. What comes is only r numbers wide.",
        ),
    },
    mistakes=(
        mistake(
            "The update is not scaled: lora_alpha / r is missing.",
            _SCALE,
            _with_scale(lambda a, b, alpha: 1.0),
        ),
        mistake(
            "The update is multiplied by lora_alpha, but not divided by r. Whoever doubles r "
            "would have to find a new learning rate.",
            _SCALE,
            _with_scale(lambda a, b, alpha: alpha),
        ),
        mistake(
            "You divide by the square root of r. That is rsLoRA; here it is r.",
            _SCALE,
            _with_scale(lambda a, b, alpha: alpha / math.sqrt(a.shape[0])),
        ),
        mistake(
            "You divide by the width of the input, not by the rank.",
            _SCALE,
            _with_scale(lambda a, b, alpha: alpha / a.shape[1]),
        ),
        mistake(
            "You divide by the width of the output, not by the rank.",
            _SCALE,
            _with_scale(lambda a, b, alpha: alpha / b.shape[0]),
        ),
        mistake(
            "The division is cut to a whole number. lora_alpha = 2 with r = 4 gives 0.5, not 0.",
            "`/`, not `//`.",
            _with_scale(lambda a, b, alpha: alpha // a.shape[0]),
        ),
        mistake(
            "The update is computed in 16 bits. A and B are rounded there, and lose what the "
            "last steps have taught them.",
            "A and B stay as they are; x is converted.",
            lambda x, w, a, b, alpha: (
                F.linear(x, w) + _update(x, a.to(x.dtype), b.to(x.dtype), alpha)
            ),
        ),
        mistake(
            "Only the update is left: W x is missing.",
            "Add W x to the scaled update.",
            lambda x, w, a, b, alpha: _update(x.float(), a, b, alpha).to(x.dtype),
        ),
        mistake(
            "W x is scaled, too. Only the update is.",
            "Multiply before you add W x.",
            lambda x, w, a, b, alpha: (
                alpha / a.shape[0] * F.linear(x, w).float() + _update(x.float(), a, b, alpha)
            ).to(x.dtype),
        ),
    ),
)

# Exercise 7


def draw_merge(c: Choices) -> Given:
    """Updates as large as the weight, and ones that are nearly lost in it."""
    dtype, o, i, r = c.pick(DTYPES), c.size(1, 60), c.size(1, 60), c.size(1, 20)
    weight = tensor(c, (o, i), (dtype,), (*VALUES, "large", "negative"))
    a, b = (tensor(c, s, values=("plain", "plain", "ties")) for s in ((r, i), (o, r)))
    small = c.pick((1.0, 0.1, 0.01, 1e-4, 0.0))
    return Given(weight, a, b * small, c.pick(ALPHAS))


def exact_sum(weight: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float) -> Tensor:
    """In double precision, not rounded."""
    a, b = lora_A.detach().double(), lora_B.detach().double()
    return weight.detach().double() + lora_alpha / len(a) * (b @ a)


def rounded_once(got: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> bool:
    """Whether each number is the nearest one in its type, up to the errors of float32."""
    exact = exact_sum(weight, a, b, alpha)
    error = SUMMED * exact_sum(weight.abs(), a.abs(), b.abs(), abs(alpha))
    low, high = (end.to(weight.dtype) for end in (exact - error, exact + error))
    return bool(((low <= got) & (got <= high)).all())


def _wrong_weight(expected: Tensor, got: Any, given: Given) -> Fault | None:
    weight = given.args[0]
    right = expected.to(weight.dtype)
    alike = isinstance(got, Tensor) and got.shape == right.shape and got.dtype == right.dtype
    if alike and rounded_once(got.detach(), *given.args):
        return None
    says = difference(right, got) or "The numbers are rounded more than once."
    clause = "type" if isinstance(got, Tensor) and got.dtype != right.dtype else "returns"
    return Fault(clause, "", right, got, says, picture=lambda: _weight_picture(right, got))


def _weight_picture(want: Tensor, got: Tensor) -> Any:
    if got.shape != want.shape or want.shape[1] > 8:
        raise ValueError("too large to draw")
    figure = pictures.matrices(want, got, "The merged weight", ("output", "input"))
    return figure, "The expected merged weight beside yours."


def _delta(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    return alpha / a.shape[0] * (b @ a)


_ONCE = "Everything in float32; only the sum gets the weight's type."
MERGE_WEIGHT = Contract(
    inputs=draw_merge,
    judge=Returns(exact_sum, own=True, wrong=_wrong_weight),
    passed="One matrix that does the work of three; added in float32, rounded once.",
    clauses={
        "returns": Clause("This is not W + (lora_alpha / r) B A, rounded once. {says}", _ONCE),
        "type": Clause("The weight comes back in another type than it had. {says}", _ONCE),
    },
    mistakes=(
        mistake(
            "The scale lora_alpha / r is missing. The merged model would be another one than "
            "the one that was trained.",
            _SCALE,
            lambda w, a, b, alpha: (w.float() + b @ a).to(w.dtype),
        ),
        mistake(
            "The update is multiplied by lora_alpha, but not divided by r.",
            _SCALE,
            lambda w, a, b, alpha: (w.float() + alpha * b @ a).to(w.dtype),
        ),
        mistake(
            "The update is rounded to 16 bits before it is added, and the sum once more.",
            _ONCE,
            lambda w, a, b, alpha: w + _delta(a, b, alpha).to(w.dtype),
        ),
        mistake(
            "A and B are rounded to 16 bits first, and the product is computed there.",
            _ONCE,
            lambda w, a, b, alpha: w + _delta(a.to(w.dtype), b.to(w.dtype), alpha).to(w.dtype),
        ),
        mistake(
            "The update is subtracted. That is how one takes it out again.",
            "It is added.",
            lambda w, a, b, alpha: (w.float() - _delta(a, b, alpha)).to(w.dtype),
        ),
        mistake(
            "You divide by the width of the output, not by the rank.",
            _SCALE,
            lambda w, a, b, alpha: (w.float() + alpha / b.shape[0] * b @ a).to(w.dtype),
        ),
        mistake(
            "You divide by the width of the input, not by the rank.",
            _SCALE,
            lambda w, a, b, alpha: (w.float() + alpha / a.shape[1] * b @ a).to(w.dtype),
        ),
        mistake(
            "This is the update alone. The weight is missing.",
            _ONCE,
            lambda w, a, b, alpha: _delta(a, b, alpha).to(w.dtype),
        ),
        mistake(
            "The weight comes back in float32, twice as large as it was.",
            _ONCE,
            lambda w, a, b, alpha: w.float() + _delta(a, b, alpha),
        ),
    ),
)
