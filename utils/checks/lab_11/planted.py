"""Merged models with planted faults, and what a merged weight may be."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Given
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_11.adapters import (
    DTYPES,
    OTHERS,
    PREFIX,
    A,
    B,
    Config,
    Pairs,
    Tensors,
    by_expression,
    draw_config,
    draw_name,
    exact_delta,
    in_any_order,
    numbers,
)

SURELY = 4  # a fault is off by more than so many steps of the dtype in at least one number,
SIZES = 2.0**-16  # and by more than this share of the numbers that were added; a sum in float32
FLOAT32 = 2.0**-21  # is off by this share at most
EVERYWHERE = ("not merged", "twice", "no scale", "other base", "four bits", "other scale")
FAULTS = (
    *("not merged", "twice", "no scale", "other scale", "negative", "transposed", "neighbor"),
    *("other base", "four bits", "one number", "one number", "one number", "sign"),
    *("nan", "inf", "missing", "shape"),
)
NEVER_MERGED = ("other base", "four bits", "one number", "one number", "nan", "inf", "missing")

Wanted = dict[str, Tensor]  # a verdict, "" for right -> the exact weight that it stands for


def draw_small(c: Choices) -> tuple[Config, Tensors, Tensors]:
    """A base and an adapter; updates that bfloat16 swallows, updates as large as the weight."""
    r = c.integer(1, 12)
    config = draw_config(c, r) | {"lora_alpha": c.pick((2 * r, r, 16, 1, r / 2, 32 * r))}
    size, dtype = c.pick((1.0, 0.02, 1e-6)), c.pick(DTYPES)
    base = {f"{n}.weight": (size * (1 + numbers(c, 4))).to(dtype) for n in OTHERS if c.rarely(3)}
    tensors: Tensors = {}

    def layer() -> None:
        name = draw_name(c, base)
        width, out = (c.pick((3, 6, 3, 6, 3, 6, 3, 6, 40)) for _ in range(2))
        shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
        weight = numbers(c, *shape, scale=size)
        if c.rarely(3):
            weight[0] = 0
        stored = weight.to(dtype)
        if not tensors or not c.rarely(3):
            part = c.pick((0.3, 1.0, 3e-2, 1e-3, 1e-5, 0.0)) * size
            kind = c.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
            a, b = numbers(c, r, width).to(kind), numbers(c, out, r, scale=part).to(kind)
            tensors.update({f"{PREFIX}{name}{A}": a, f"{PREFIX}{name}{B}": b})
            if c.rarely(4):  # weight and update nearly cancel
                stored = (-exact_delta(a, b, config) * (1 + 1e-4 * weight)).to(dtype)
        if c.rarely(8):  # float16 cannot hold it
            stored = 1e5 * weight
        base[f"{name}.weight"] = stored

    c.some(layer, 1, 4)
    return config, in_any_order(c, tensors), base


def explanations(name: str, config: Config, pairs: Pairs, base: Tensors) -> Wanted:
    """What a weight may be, in the order in which it is asked. Exact, float64."""
    weight = base[name].double()
    if name not in pairs:
        return {"": weight}
    delta = exact_delta(*pairs[name], config)
    plain = exact_delta(*pairs[name], config | {"lora_alpha": 1, "r": 1, "use_rslora": False})
    return {
        "": weight + delta,
        "not merged": weight,
        "merged twice": weight + 2 * delta,
        "scale forgotten": weight + plain,
    }


def sizes_of(name: str, config: Config, pairs: Pairs, base: Tensors) -> Tensor:
    """The sizes of the numbers that were added, float64."""
    weight = base[name].double().abs()
    if name not in pairs:
        return weight
    a, b = pairs[name]
    return weight + exact_delta(a.abs(), b.abs(), config)


def steps(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """From each number to the next larger one that this dtype holds, float64."""
    info = torch.finfo(dtype)
    power = torch.frexp(exact.abs().clamp(min=info.smallest_normal)).exponent
    return torch.ldexp(torch.full_like(exact, info.eps), power - 1)


def near(merged: Tensor, exact: Tensor, sizes: Tensor) -> str:
    """ "yes" if a sum in float32 and one rounding explain it, "no" if it is surely another."""
    if not merged.isfinite().all():
        return "no"
    low, high = ((exact + sign * FLOAT32 * sizes).to(merged.dtype) for sign in (-1, 1))
    if ((low <= merged) & (merged <= high)).all():
        return "yes"
    off = (merged.double() - exact).abs()
    surely = (off > SURELY * steps(exact, merged.dtype)) & (off > SIZES * sizes)
    return "no" if surely.any() else "perhaps"


def verdict(merged: Tensor, wanted: Wanted, sizes: Tensor) -> str:
    """The first explanation that fits; "perhaps" if that cannot be told."""
    for says, exact in wanted.items():
        if (answer := near(merged, exact, sizes)) != "no":
            return says if answer == "yes" else "perhaps"
    return "other" if len(wanted) > 1 else "changed"


def judged(config: Config, tensors: Tensors, base: Tensors, merged: Tensors) -> dict[str, str]:
    """In float64, with room on both sides: no input is drawn that could be read in two ways."""
    pairs = by_expression(config, tensors, base)
    found = {name: "extra" for name in merged if name not in base}
    for name, weight in base.items():
        if name not in merged:
            found[name] = "missing"
        elif merged[name].shape != weight.shape:
            found[name] = "shape"
        else:
            wanted = explanations(name, config, pairs, base)
            sizes = sizes_of(name, config, pairs, base)
            found[name] = verdict(merged[name], wanted, sizes)
    return {name: says for name, says in found.items() if says}


def four_bits(weight: Tensor) -> Tensor:
    """Fifteen levels for the whole weight."""
    top = weight.abs().max().clamp(min=1e-30)
    return (weight / top * 7).round() / 7 * top


def with_fault(
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
    times = {"not merged": 0.0, "twice": 2.0, "negative": -1.0, "other scale": 1 / config["r"]}
    if fault in times:
        return weight + times[fault] * delta
    if fault == "no scale" and name in pairs:
        return explanations(name, config, pairs, base)["scale forgotten"]
    if fault == "transposed" and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
        return weight + delta.T
    if fault == "neighbor" and name in pairs:
        others = [p for n, p in pairs.items() if n != name and base[n].shape == weight.shape]
        return weight + exact_delta(*others[0], config) if others else right
    if fault == "other base":
        return weight * (1 + 0.05 * numbers(c, *weight.shape).double()) + delta
    if fault == "four bits":
        return four_bits(weight) + delta
    if fault in ("one number", "sign", "nan", "inf"):
        place = c.integer(0, weight.numel() - 1)
        number = right.view(-1)[place : place + 1]
        sizes = sizes_of(name, config, pairs, base).flatten()[place]
        if fault == "one number":  # at first just beyond the border
            border = torch.maximum(SURELY * steps(number, dtype), SIZES * sizes)
            number += 1.2 * border * c.pick((1, 4, 100, 1e4)) * c.pick((1, -1))
        elif fault == "sign":
            number *= -1
        else:
            number.fill_(float(fault))
    return right


def rounded(c: Choices, exact: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """A right weight: the nearest number, or as it may come of a sum in float32."""
    if c.rarely(2):
        noise = numbers(c, *exact.shape).double().clamp(-1, 1)
        exact = exact + 0.7 * FLOAT32 * sizes * noise
    return exact.to(dtype)


def draw_merged(c: Choices) -> Given:
    """Right ones in each dtype; one weight wrong, several, or all of them in the same way."""
    config, tensors, base = draw_small(c)
    pairs = by_expression(config, tensors, base)
    dtype = c.pick(DTYPES)
    everywhere = c.pick(EVERYWHERE) if c.rarely(4) else ""
    merged: Tensors = {}
    for name, weight in base.items():
        own = c.pick(DTYPES) if c.rarely(6) else dtype
        wanted = explanations(name, config, pairs, base)
        sizes = sizes_of(name, config, pairs, base)
        made = right = rounded(c, wanted[""], sizes, own)
        fault = everywhere
        if not fault and c.rarely(3):
            fault = c.pick(FAULTS if name in pairs else NEVER_MERGED)
        if weight.numel() > 1000 and c.rarely(2):
            fault = "one number"
        if fault == "missing":
            continue
        if fault == "shape":
            made = c.pick((torch.cat([right, right[:1]]), right[None], right.t()))
        elif fault:
            made = with_fault(c, fault, name, config, pairs, base, own).to(own)
        if made.shape == right.shape and verdict(made, wanted, sizes) == "perhaps":
            made = wanted[""].to(own)
        merged[name] = laid_out(made, c.pick(LAYOUTS))
    if c.rarely(8):
        names = ("model.extra.weight", next(iter(tensors)), "lm_head.weight", "lm_head.bias")
        merged.setdefault(c.pick(names), torch.ones(2))
    return Given(config, tensors, base, in_any_order(c, merged))
