"""Merged models with planted faults, and how far a weight is from what would explain it."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_11.adapters import (
    DTYPES,
    LAYERS,
    PREFIX,
    A,
    B,
    Config,
    Tensors,
    draw_config,
    exact_delta,
    numbers,
)
from utils.checks.lab_11.matching import Pairs, by_expression

SURELY = 4  # a fault is off by so many steps of the dtype in at least one number,
SIZES = 2.0**-16  # and by this share of the numbers that were added; a sum in float32
FLOAT32 = 2.0**-21  # is off by this share at most
FAULTS = (
    "not merged",
    "twice",
    "no scale",
    "other scale",
    "negative",
    "transposed",
    "neighbour",
    "other base",
    "four bits",
    "one number",
    "one number",
    "sign",
    "nan",
    "inf",
    "missing",
    "shape",
)
EVERYWHERE = ("not merged", "twice", "no scale", "other base", "four bits", "other scale")

Wanted = tuple[str, Tensor]  # a verdict, "" for right; the exact weight that it stands for


def draw_small(c: Choices) -> tuple[Config, Tensors, Tensors]:
    """A base and an adapter; updates that bfloat16 swallows, updates as large as the weight."""
    r = c.integer(1, 12)
    config = draw_config(c, r) | {"lora_alpha": c.pick((2 * r, r, 16, 1, r / 2, 32 * r))}
    size, dtype = c.pick((1.0, 0.02, 1e-6)), c.pick(DTYPES)
    base = {"model.norm.weight": (size * (1 + numbers(c, 4))).to(dtype)}
    tensors: Tensors = {}
    for number, layer in enumerate(c.shuffled(LAYERS)[: c.integer(1, 4)]):
        width, out = (c.pick((3, 6, 3, 6, 3, 6, 80)) for _ in range(2))
        shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
        weight = numbers(c, *shape, scale=size)
        if c.rarely(3):
            weight[0] = 0
        base[f"{layer}.weight"] = weight.to(dtype)
        if number == 0 or not c.rarely(3):
            part = c.pick((0.3, 1.0, 3e-2, 1e-3, 1e-5, 0.0)) * size
            kind = c.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
            a, b = numbers(c, r, width).to(kind), numbers(c, out, r, scale=part).to(kind)
            tensors |= {f"{PREFIX}{layer}{A}": a, f"{PREFIX}{layer}{B}": b}
            if c.rarely(4):  # weight and update nearly cancel
                near_zero = -exact_delta(a, b, config) * (1 + 1e-4 * weight)
                base[f"{layer}.weight"] = near_zero.to(dtype)
            elif c.rarely(8):  # float16 cannot hold it
                base[f"{layer}.weight"] = (1e5 * weight).to(torch.float32)
    return config, tensors, base


def four_bits(weight: Tensor) -> Tensor:
    """Fifteen levels for the whole weight."""
    top = weight.abs().max().clamp(min=1e-30)
    return (weight / top * 7).round() / 7 * top


def explanations(name: str, config: Config, pairs: Pairs, base: Tensors) -> list[Wanted]:
    """What a weight may be, in the order in which it is asked. Exact, float64."""
    weight = base[name].double()
    if name not in pairs:
        return [("", weight)]
    delta = exact_delta(*pairs[name], config)
    plain = exact_delta(*pairs[name], config | {"lora_alpha": 1, "r": 1, "use_rslora": False})
    return [
        ("", weight + delta),
        ("not merged", weight),
        ("merged twice", weight + 2 * delta),
        ("scale forgotten", weight + plain),
    ]


def sizes_of(name: str, config: Config, pairs: Pairs, base: Tensors) -> Tensor:
    """The sizes of the numbers that were added, float64."""
    weight = base[name].double().abs()
    if name not in pairs:
        return weight
    a, b = pairs[name]
    return weight + exact_delta(a.abs(), b.abs(), config)


def steps(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """An upper bound of the distance between two neighbours of this dtype, float64."""
    info = torch.finfo(dtype)
    return exact.abs() * info.eps + info.smallest_normal * info.eps


def near(merged: Tensor, exact: Tensor, sizes: Tensor) -> str:
    """ "yes" if one rounding and float32 explain it, "no" if it is surely something else."""
    off, step = (merged.double() - exact).abs(), steps(exact, merged.dtype)
    best = (exact.to(merged.dtype).double() - exact).abs()
    if not merged.isfinite().all():
        return "no"
    if (off <= best + FLOAT32 * sizes).all():
        return "yes"
    surely = ~(off <= SURELY * step + SIZES * sizes)  # NaN is sure, too
    return "no" if surely.any() else "perhaps"


def verdict(merged: Tensor, wanted: list[Wanted], sizes: Tensor) -> str:
    """The first explanation that fits; "perhaps" if that cannot be told."""
    for says, exact in wanted:
        if (answer := near(merged, exact, sizes)) != "no":
            return says if answer == "yes" else "perhaps"
    return "other" if len(wanted) > 1 else "changed"


def planted(
    c: Choices,
    fault: str,
    name: str,
    config: Config,
    pairs: Pairs,
    base: Tensors,
    dtype: torch.dtype,
) -> Tensor:
    """The weight with this fault, exact, float64; right where there is nothing to do wrong."""
    weight = base[name].double()
    delta = exact_delta(*pairs[name], config) if name in pairs else torch.zeros_like(weight)
    right = (weight + delta).contiguous()
    if fault == "transposed" and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
        return weight + delta.T
    if fault == "neighbour":
        others = [p for n, p in pairs.items() if n != name and base[n].shape == weight.shape]
        return weight + exact_delta(*others[0], config) if name in pairs and others else right
    if fault == "no scale" and name in pairs:
        return explanations(name, config, pairs, base)[3][1]
    if fault in ("one number", "sign", "nan", "inf"):
        place = c.integer(0, weight.numel() - 1)
        if fault == "sign":
            right.view(-1)[place] *= -1
            return right
        kick = 5 * steps(right, dtype) + 1.5 * SIZES * sizes_of(name, config, pairs, base)
        more = kick.flatten()[place] * c.pick((4, 1, 100, 1e4))
        right.view(-1)[place] += more if fault == "one number" else float(fault)
        return right
    times = {"not merged": 0.0, "twice": 2.0, "negative": -1.0, "other scale": 1 / config["r"]}
    if fault in times:
        return weight + times[fault] * delta
    other = {
        "other base": lambda: weight * (1 + 0.05 * numbers(c, *weight.shape).double()),
        "four bits": lambda: four_bits(weight),
    }
    return other[fault]() + delta if fault in other else right


def draw_merged(c: Choices) -> Given:
    """Right ones in each dtype; one weight wrong, several, or all of them in the same way."""
    config, tensors, base = draw_small(c)
    pairs = by_expression(config, tensors, base)
    dtype, in_float32 = c.pick(DTYPES), c.rarely(3)
    everywhere = c.pick(EVERYWHERE) if c.rarely(4) else ""
    merged: Tensors = {}
    for name, weight in base.items():
        own = torch.float32 if c.rarely(6) else dtype
        wanted = explanations(name, config, pairs, base)
        sizes = sizes_of(name, config, pairs, base)
        right = wanted[0][1].to(own)
        if in_float32 and name in pairs:
            a, b = pairs[name]
            scale = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
            update = scale * (b.float() @ a.float())
            update = update.T if config.get("fan_in_fan_out") else update
            right = (weight.float() + update).to(own)
        fault = everywhere or (c.pick(FAULTS) if c.rarely(3) else "")
        if weight.numel() > 1000 and c.rarely(2):
            fault = "one number"
        if fault == "missing":
            continue
        made = planted(c, fault, name, config, pairs, base, own).to(own) if fault else right
        if fault == "shape":
            made = c.pick((torch.cat([right, right[:1]]), right[None], right.t()))
        if made.shape == right.shape and verdict(made, wanted, sizes) == "perhaps":
            made = wanted[0][1].to(own)
        merged[name] = laid_out(made, c.pick(LAYOUTS))
    if c.rarely(8):
        extra = c.pick(
            ("model.extra.weight", next(iter(tensors)), "lm_head.weight", "lm_head.bias")
        )
        merged.setdefault(extra, torch.ones(2))
    return Given(config, tensors, base, dict(c.shuffled(list(merged.items()))))
