"""What lab 10 says of the first values of A and B: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.runner import Mismatch, call, describe

Pair = tuple[nn.Parameter, nn.Parameter]
_IN, _OUT, _R = 900, 100, 25
_INIT_GIVEN = f"in_features {_IN}, out_features {_OUT}, r {_R}"


def judge_init_lora(function: Callable[..., Pair]) -> str:
    """Check `init_lora(in_features, out_features, r)`."""
    _init(function, 5, 3, 2, "in_features 5, out_features 3, r 2")
    a, b = _init(function, _IN, _OUT, _R, _INIT_GIVEN)
    again, _ = _init(function, _IN, _OUT, _R, _INIT_GIVEN)
    _judge_values(a.detach(), b.detach())
    if torch.equal(a, again):
        raise Mismatch(
            "A is the same in each call. All layers of a model would begin with the same A.",
            look="No `manual_seed` inside the function.",
        )
    return (
        "B is zero, so training begins with exactly the model that is there. A is not, so it can "
        "begin."
    )


def _judge_values(a: Tensor, b: Tensor) -> None:
    if b.any() and not a.any():
        raise Mismatch(
            "A is zero and B is random. The product is zero, too, but here it is the other way "
            "round: B starts at zero.", input=_INIT_GIVEN, look="`torch.zeros` for B.",
        )  # fmt: skip
    if b.any():
        raise Mismatch(
            "B is not zero. Then B A is not zero either, and before the first step the model is "
            "already another one, damaged at random.",
            input=_INIT_GIVEN, look="`torch.zeros(out_features, r)`.",
        )  # fmt: skip
    if not a.any():
        raise Mismatch(
            "A and B are both zero. The gradient of each contains the other, so both gradients "
            "are zero for ever.", input=_INIT_GIVEN, look="A is random.",
        )  # fmt: skip
    if (a == a[:1]).all():
        raise Mismatch(
            "All rows of A are the same. Then A makes r times the same number, and the rank is 1.",
            input=_INIT_GIVEN, look="Draw all r x in_features numbers.",
        )  # fmt: skip
    _judge_spread(a)


def _judge_spread(a: Tensor) -> None:
    bound = _IN**-0.5
    largest, spread, mean = a.abs().max().item(), a.std().item(), a.mean().item()
    expected = (
        f"uniform in [-{bound:.4f}, {bound:.4f}], so a standard deviation of {bound / 3**0.5:.4f}"
    )
    got = (
        f"from {a.min().item():.4f} to {a.max().item():.4f}, standard deviation {spread:.4f}, "
        f"mean {mean:.4f}"
    )
    if (
        abs(mean) < 0.1 * bound
        and abs(spread * 3**0.5 / bound - 1) < 0.1
        and largest <= 1.001 * bound
    ):
        return
    says = "The numbers of A are not spread as they should be."
    look = (
        "`torch.empty(r, in_features).uniform_(-bound, bound)` with `bound = in_features ** -0.5`."
    )
    if mean > 0.3 * bound:
        says = "The numbers of A are all positive. They must lie on both sides of zero."
    elif abs(spread / bound - 1) < 0.1:
        says = (
            "A is drawn from a normal distribution. Expected is a uniform one between two bounds."
        )
    else:
        for name, size in (("out_features", _OUT), ("r", _R), ("1", 1)):
            wrong = size**-0.5
            if abs(spread * 3**0.5 / wrong - 1) < 0.1 or abs(spread / wrong - 1) < 0.1:
                says = (
                    f"The bound of A is taken from {name}. It is in_features ** -0.5: A sums over "
                    "in_features numbers, and its outputs should neither grow nor vanish."
                )
        if abs(spread * 3**0.5 * _IN - 1) < 0.1:
            says = "The bound of A is 1 / in_features; the square root is missing."
    raise Mismatch(says, input=_INIT_GIVEN, expected=expected, got=got, look=look)


def _init(function: Callable[..., Pair], i: int, o: int, r: int, given: str) -> Pair:
    got: Any = call(function, i, o, r, given=given)
    if not isinstance(got, tuple) or len(got) != 2:
        raise Mismatch("Your function must return a pair: A and B.", input=given)
    for name, value, shape in (("A", got[0], (r, i)), ("B", got[1], (o, r))):
        if not isinstance(value, Tensor):
            raise Mismatch(f"{name} is {describe(value)}; expected an nn.Parameter.", input=given)
        if tuple(value.shape) != shape:
            both = tuple(got[0].shape) == (o, r) and tuple(got[1].shape) == (r, i)
            raise Mismatch(
                "A and B are swapped." if both else f"{name} has the wrong shape.",
                input=given, expected=f"{name}: `{list(shape)}`",
                got=f"`{list(value.shape)}`",
                look="A goes from in_features to r, B from r to out_features. A linear layer's "
                "weight is [outputs, inputs].",
            )  # fmt: skip
        if not isinstance(value, nn.Parameter) or not value.requires_grad:
            raise Mismatch(
                f"{name} is no nn.Parameter that can be trained. An optimizer would not find it.",
                input=given, look="`nn.Parameter(...)` around the tensor.",
            )  # fmt: skip
        if value.dtype != torch.float32:
            raise Mismatch(f"{name} must be float32, got {value.dtype}.", input=given)
    return got
