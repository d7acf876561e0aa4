"""One weight, merged and rounded once: exercise 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_11.adapters import (
    DTYPES,
    Config,
    draw_config,
    draw_matrices,
    exact_delta,
    float32_error,
    numbers,
    scale_of,
)


def draw_weight(c: Choices) -> Given:
    """Updates as large as the weight, and far smaller; what float16 cannot hold; a NaN."""
    r, width, out = c.size(1, 130, small=4), c.size(1, 40), c.size(1, 40)
    out = width if c.rarely(3) else out
    config = draw_config(c, r)
    a, b = draw_matrices(c, r, width, out)
    if c.rarely(4):
        config["lora_alpha"] = c.pick((0, -8, 100))
    shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
    weight = numbers(c, *shape, scale=c.pick((1.0, 1.0, 0.02, 1e-6))).to(c.pick(DTYPES))
    kind = c.pick(("plain",) * 9 + ("overflow", "overflow", "nan", "inf"))
    if kind == "overflow":
        # float16 ends at 65504. What is below 65520 is rounded to that.
        total = c.pick((9e4, 65000, 65504, 65510, 65530))
        weight = torch.full_like(weight, 6e4)
        config |= {"lora_alpha": total - 6e4, "use_rslora": False}
        a, b = torch.ones_like(a), torch.ones_like(b)
    if kind in ("nan", "inf"):
        c.pick((a, b, weight))[0, 0] = float(kind)
    weight = laid_out(weight, c.pick(LAYOUTS))
    if c.rarely(4):
        a, b = a.requires_grad_(), b.requires_grad_()
    return Given(weight, a, b, config)


class Rounded:
    """The right sum, before and after rounding, and how far float32 may be from it."""

    def __init__(self, weight: Tensor, a: Tensor, b: Tensor, config: Config) -> None:
        self.exact = weight.double() + exact_delta(a, b, config)
        self.nearest = self.exact.to(weight.dtype)
        self.slack = float32_error(weight, a, b, config)

    def farther(self, got: Tensor) -> Tensor:
        """Where `got` is farther from the exact sum than the nearest number of its dtype is."""
        best = (self.nearest.double() - self.exact).abs()
        return ~((got.double() - self.exact).abs() <= best + self.slack)

    def __repr__(self) -> str:
        return f"{str(self.nearest.dtype).removeprefix('torch.')} {list(self.nearest.shape)}"


@torch.no_grad()
def in_float64(weight: Tensor, A: Tensor, B: Tensor, config: Config) -> Rounded:
    rounded = Rounded(weight, A, B, config)
    if not rounded.nearest.isfinite().all():
        raise ValueError("A merged weight is not finite")
    return rounded


def not_rounded_once(expected: Rounded, got: Any) -> str:
    """What is wrong with a merged weight, in one sentence; empty if nothing is."""
    right = expected.nearest
    if not isinstance(got, Tensor):
        return f"Expected a tensor, not a {type(got).__name__}."
    if got.dtype != right.dtype:
        return f"The dtype is {got.dtype}; expected {right.dtype}, that of the weight."
    if got.shape != right.shape:
        return f"The shape is {list(got.shape)}; expected {list(right.shape)}."
    if got.requires_grad:
        return "The result still hangs on the graph of A and B."
    if (off := expected.farther(got)).any():
        place = tuple(int(i) for i in off.nonzero()[0])
        return (
            f"At {list(place)} stands {got[place].item():.6g}; the exact sum is "
            f"{expected.exact[place].item():.8g}, the nearest number of {right.dtype} "
            f"{right[place].item():.6g}."
        )
    return ""


def _wrong(expected: Rounded, got: Any, given: Given) -> Fault | None:
    if not (says := not_rounded_once(expected, got)):
        return None
    clause = "grad" if "graph" in says else "dtype" if "dtype" in says else "returns"
    return Fault(clause, "", expected.nearest, got, says)


def _merge(change: str = "") -> Callable[..., Any]:
    """A right answer, but for one thing."""

    @torch.no_grad()
    def merge(weight: Tensor, a: Tensor, b: Tensor, config: Config) -> Any:
        scale = scale_of(config)
        if change == "alpha / r":
            scale = scale_of(config | {"use_rslora": False})
        if change == "no scale":
            scale = 1.0
        if change == "alpha":
            scale = config["lora_alpha"]
        fan = config.get("fan_in_fan_out") and change != "fan"
        if change == "in its dtype":
            update = (b.to(weight) @ a.to(weight)) * scale
        elif change == "product in 16 bits":
            update = (b @ a).float() * scale
        else:
            update = (b.float() @ a.float()) * scale
        update = update.T if fan else update
        if change == "update rounded":
            update = update.to(weight.dtype)
        merged = weight.float() + update.float()
        merged = merged if change == "float32" else merged.to(weight.dtype)
        if change != "infinite" and not merged.isfinite().all():
            raise ValueError("not finite")
        return merged

    return merge


def _told(given: Given) -> str:
    weight, a, b, config = given.args
    shapes = (
        f"{name} {str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
        for name, t in (("weight", weight), ("A", a), ("B", b))
    )
    keys = ("r", "lora_alpha", "use_rslora", "fan_in_fan_out")
    return f"{', '.join(shapes)}; config { {key: config[key] for key in keys if key in config} }"


MERGE_WEIGHT = Contract(
    inputs=draw_weight,
    tell=_told,
    judge=Returns(in_float64, own=True, wrong=_wrong),
    passed="Right: no number is farther from the exact sum than one rounding explains.",
    clauses={
        "returns": Clause(
            "The weight is wrong. {says}",
            "W + scale * B A, in float32; then once to the weight's dtype.",
        ),
        "dtype": Clause("{says}", "`.to(weight.dtype)`, at the end."),
        "grad": Clause(
            "{says} A plain model has no use for it.", "`@torch.no_grad()`, or `.detach()`."
        ),
        "refuses": Clause(
            "The merged weight would hold a number that is not finite: raise a ValueError.",
            "Ask the result, after it was rounded: `isfinite()`.",
        ),
    },
    mistakes=(
        mistake("The update is not scaled.", "lora_alpha / r.", _merge("no scale")),
        mistake(
            "The update is multiplied by alpha, and not divided by r.",
            "lora_alpha / r.",
            _merge("alpha"),
        ),
        mistake(
            "This adapter is an rsLoRA: its scale is alpha / √r.",
            "`use_rslora`.",
            _merge("alpha / r"),
        ),
        mistake(
            "Update and sum are computed in the weight's own 16 bits: every step is rounded.",
            "`.float()` for weight, A and B, before anything is computed.",
            _merge("in its dtype"),
        ),
        mistake(
            "The update is rounded to the weight's dtype before it is added: two roundings.",
            "Add in float32. Round the sum.",
            _merge("update rounded"),
        ),
        mistake(
            "B A is computed in the adapter's 16 bits.",
            "`.float()` before the product.",
            _merge("product in 16 bits"),
        ),
        mistake("The weight comes back in float32.", "`.to(weight.dtype)`.", _merge("float32")),
        mistake(
            "The merged weight holds numbers that are not finite, and nobody is told.",
            "Ask the result, after it was rounded: `isfinite()`.",
            _merge("infinite"),
        ),
    ),
)
