"""What is wrong with a merged model: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.lab_11.adapters import Config, Tensors, exact_delta, told
from utils.checks.lab_11.matching import by_expression
from utils.checks.lab_11.planted import draw_merged, explanations, sizes_of, steps, verdict

RIGHT = "right (no word)"
Check = Callable[[Config, Tensors, Tensors, Tensors], Any]


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


def _wrong(expected: dict[str, str], got: Any, given: Given) -> Fault | None:
    _, _, base, merged = given.args
    if not isinstance(got, dict):
        says = f"Expected a dict, not a {type(got).__name__}."
        return Fault("form", "", expected, got, says)
    for name in sorted(map(str, set(expected) | set(got))):
        want, have = expected.get(name, RIGHT), got.get(name, RIGHT)
        if want == have:
            continue
        dtypes = [str(t[name].dtype).removeprefix("torch.") for t in (base, merged) if name in t]
        says = f"`{name}` ({' merged as '.join(dtypes)}) is {want}; you say: {have}."
        if name in base and name in merged and base[name].shape == merged[name].shape:
            says += _farthest(name, given)
        clause = "refused" if want == RIGHT else "missed" if have == RIGHT else "named"
        return Fault(clause, "", expected, got, says)
    return None


def _farthest(name: str, given: Given) -> str:
    """Of a weight, the number that fits the worst, and how far off it is."""
    config, tensors, base, merged = given.args
    pairs = by_expression(config, tensors, base)
    exact = explanations(name, config, pairs, base)[0][1]
    off, step = (merged[name].double() - exact).abs(), steps(exact, merged[name].dtype)
    room = step + 2.0**-18 * sizes_of(name, config, pairs, base)
    worst = int((off / room).nan_to_num(nan=torch.inf).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)]
    number, right, far = (float(t.flatten()[worst]) for t in (merged[name], exact, off / step))
    return (
        f" Its worst number, at {place}, is {number:.9g}. Exactly it would be {right:.9g}: "
        f"{far:.3g} steps of {str(merged[name].dtype).removeprefix('torch.')} apart."
    )


def _verdict(change: str = "") -> Check:
    """A right answer, but for one thing."""

    def tolerance(exact: Tensor, merged: Tensor, base: Tensor, sizes: Tensor) -> Tensor:
        if change == "exact":
            return torch.zeros_like(exact)
        if change == "fixed":
            return 0.01 * exact.abs() + 1e-8
        if change == "absolute":
            return torch.full_like(exact, 1e-3)
        if change == "of the base":
            return steps(exact, base.dtype) + 2.0**-18 * sizes
        if change == "no smallest step":
            return torch.finfo(merged.dtype).eps * exact.abs() + 2.0**-18 * sizes
        return steps(exact, merged.dtype) + 2.0**-18 * sizes

    def check(config: Config, tensors: Tensors, base: Tensors, merged: Tensors) -> Any:
        pairs, found = by_expression(config, tensors, base), {}
        for name in merged.keys() - base.keys():
            found[name] = "extra"
        for name, weight in base.items():
            if change == "only targets" and name not in pairs:
                continue
            if name not in merged:
                if change != "names":
                    found[name] = "missing"
                continue
            if merged[name].shape != weight.shape:
                found[name] = "shape"
                continue
            wanted = explanations(name, config, pairs, base)
            if change == "order" and name in pairs:
                wanted = wanted[1:] + wanted[:1]
            if change == "rslora" and name in pairs:
                update = exact_delta(*pairs[name], config | {"use_rslora": False})
                wanted[0] = ("", weight.double() + update)
            sizes = sizes_of(name, config, pairs, base)
            for says, exact in wanted:
                off = (merged[name].double() - exact).abs()
                room = tolerance(exact, merged[name], weight, sizes)
                fits = bool((off <= room).all())
                if change == "nan":
                    fits = not bool((off > room).any())
                if change == "mean":
                    fits = bool(off.mean() <= room.mean())
                if fits:
                    if says:
                        found[name] = says
                    break
            else:
                found[name] = "other" if name in pairs else "changed"
        return found

    return check


CHECK_MERGE = Contract(
    inputs=draw_merged,
    judge=Returns(judged, wrong=_wrong),
    examples=400,
    tell=told,
    passed="Right: it catches the wrong base, the forgotten scale and a single wrong number, "
    "and it believes a right merge in each dtype. This is the check to run before you ship.",
    clauses={
        "form": Clause("{says}", "A dict: name -> word; empty for a right merge."),
        "refused": Clause(
            "A right weight is called wrong. {says}",
            "How far apart are neighbouring numbers of *its* dtype, there?",
        ),
        "missed": Clause(
            "A fault is not seen. {says}",
            "Is your tolerance larger than a rounding needs? Is each number asked?",
        ),
        "named": Clause(
            "The fault is seen, and its name is wrong. {says}",
            "The explanations are tried in the contract's order.",
        ),
    },
    mistakes=(
        mistake(
            "Rounding is no fault: you demand the very numbers. Two right merges differ in "
            "the last bit.",
            "Leave room for a rounding to the merged weight's dtype.",
            _verdict("exact"),
        ),
        mistake(
            "A fixed relative tolerance is too wide for float32, where small faults hide in "
            "it, or too narrow for numbers near zero.",
            "`torch.finfo(dtype).eps`, of the merged weight's dtype.",
            _verdict("fixed"),
        ),
        mistake(
            "A fixed absolute tolerance: weights have very different sizes.",
            "Of each number, its own step.",
            _verdict("absolute"),
        ),
        mistake(
            "The tolerance is that of the base's dtype. It was the merged weight that was rounded.",
            "`merged[name].dtype`",
            _verdict("of the base"),
        ),
        mistake(
            "Weights without matrices are not looked at. A wrong base shows there, too.",
            "Go through all names of `base`.",
            _verdict("only targets"),
        ),
        mistake(
            "A NaN passes: no comparison with it is true.",
            "Ask whether all are within, not whether any is beyond.",
            _verdict("nan"),
        ),
        mistake(
            "On average the weight is right. A single number is not.", "`.all()`", _verdict("mean")
        ),
        mistake(
            "An update that rounding has swallowed leaves the weight as it was, and that is "
            "right. You call it a fault.",
            "Ask first whether the weight is right.",
            _verdict("order"),
        ),
        mistake("A weight that is missing is not seen.", "Compare the names.", _verdict("names")),
    ),
)
