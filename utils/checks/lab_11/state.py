"""All weights of a model, with the adapter merged in: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.lab_11.adapters import PREFIX, A, Config, Tensors, draw_model, exact_delta, told
from utils.checks.lab_11.layer import Rounded, in_float64, not_rounded_once
from utils.checks.lab_11.matching import by_expression, spoil


def draw_state(c: Choices) -> Given:
    """Now and then another dtype for some weights, a whole-number tensor, or a spoiled adapter."""
    config, tensors, base = draw_model(c)
    if c.rarely(3):
        name = c.pick(list(base))
        base[name] = base[name].float()
    if c.rarely(3):
        positions = torch.arange(c.size(1, 5))
        base["model.rotary.positions"] = c.pick((positions, positions / 7.0, positions == 2)).to(
            c.pick((torch.float64, torch.int64, torch.bool))
        )
    if c.rarely(6):
        base["model.mask"] = torch.full((2, 2), -torch.inf).triu(1)
    if PREFIX + "lm_head" + A in tensors and c.rarely(3):  # embedding and output layer are one
        base["model.embed_tokens.weight"] = base.pop("lm_head.weight")
    elif c.rarely(8):
        spoil(c, config, tensors, base)
    elif c.rarely(10):
        c.pick(list(tensors.values()))[0, 0] = float("nan")
    return Given(config, tensors, base)


def all_rounded(config: Config, tensors: Tensors, base: Tensors) -> dict[str, Rounded | Tensor]:
    """In float64; what has no matrices as it was."""
    pairs = by_expression(config, tensors, base)
    return {
        name: in_float64(weight, *pairs[name], config) if name in pairs else weight
        for name, weight in base.items()
    }


def _wrong(expected: dict[str, Rounded | Tensor], got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        return Fault(
            clause, "", "", says, says, words=("the base's names, each weight right", says)
        )

    if not isinstance(got, dict):
        return fault("form", f"Expected a dict, not a {type(got).__name__}.")
    if set(got) != set(expected):
        name = sorted(map(str, set(got) ^ set(expected)))[0]
        return fault("names", f"`{name}` is in {'your dict' if name in got else 'the base'} alone.")
    if list(got) != list(expected):
        return fault("names", "The names stand in another order than in the base.")
    for name, right in expected.items():
        if isinstance(right, Rounded):
            if says := not_rounded_once(right, got[name]):
                return fault("merged", f"`{name}`: {says}")
        elif (
            not isinstance(got[name], Tensor)
            or got[name].dtype != right.dtype
            or not torch.equal(got[name], right)
        ):
            return fault(
                "others", f"`{name}` has no matrices in the adapter, and is not as it was."
            )
    return None


def right_state(config: Config, tensors: Tensors, base: Tensors) -> Tensors:
    """The merged weights, each the nearest number of its dtype to the exact sum."""
    right = all_rounded(config, tensors, base)
    return {n: r.nearest if isinstance(r, Rounded) else r for n, r in right.items()}


def _merge_all(change: str = "") -> Callable[..., Any]:
    """A right answer, but for one thing."""

    def merge(config: Config, tensors: Tensors, base: Tensors) -> Any:
        pairs = by_expression(config, tensors, base)
        if change == "in place":
            for name, pair in pairs.items():
                base[name].copy_(in_float64(base[name], *pair, config).nearest)
            return base
        merged = right_state(config, tensors, base)
        if change == "targets":
            return {name: merged[name] for name in pairs}
        if change == "first":
            return base | {name: merged[name] for name in list(pairs)[:1]}
        if change == "one dtype":
            dtype = merged[next(iter(pairs))].dtype
            return {n: t.to(dtype) if t.is_floating_point() else t for n, t in merged.items()}
        if change == "float":
            return {n: t.float() for n, t in merged.items()}
        if change == "last":
            return {n: t for n, t in merged.items() if n not in pairs} | {
                n: merged[n] for n in pairs
            }
        if change == "twice":
            half = {
                n: (merged[n].float() + exact_delta(*p, config)).to(merged[n])
                for n, p in pairs.items()
            }
            return merged | half
        return merged

    return merge


MERGE_STATE = Contract(
    inputs=draw_state,
    judge=Returns(all_rounded, wrong=_wrong),
    tell=told,
    passed="Right: what has matrices is merged, everything else is what it was, and the base can "
    "be used again.",
    clauses={
        "form": Clause("{says}", "A new dict: name -> tensor."),
        "names": Clause("{says}", "The same names in the same order: begin with `dict(base)`."),
        "merged": Clause("A merged weight is wrong. {says}", "`merge_weight`, with its own A, B."),
        "others": Clause("{says}", "Touch no weight that `match_adapter` does not name."),
        "refuses": Clause(
            "{reason}: a ValueError.", "`match_adapter` and `merge_weight` raise it."
        ),
    },
    mistakes=(
        mistake(
            "Only the merged weights are there. A model needs the others, too.",
            "Begin with `dict(base)`.",
            _merge_all("targets"),
        ),
        mistake(
            "Only the first of the adapter's layers is merged.",
            "Is the `return` in the loop?",
            _merge_all("first"),
        ),
        mistake(
            "All tensors come out in one dtype. Each keeps its own.",
            "`weight.dtype`.",
            _merge_all("one dtype"),
        ),
        mistake(
            "Everything comes out as float32.", "Each weight keeps its dtype.", _merge_all("float")
        ),
        mistake(
            "The base itself is changed. Whoever merges a second time, merges twice.",
            "`dict(base)` and new tensors.",
            _merge_all("in place"),
        ),
        mistake("The update is added twice.", "Once for each weight.", _merge_all("twice")),
    ),
)
