"""Both quantizers of a learner without a model: their parts, then small layers.

What fails here would fail in the engine, too, and is seen in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import same
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_09.codes import DEQUANTIZE, QUANTIZE
from utils.checks.lab_09.gptq_columns import GPTQ, correlated
from utils.checks.lab_09.gptq_ready import PREPARE
from utils.checks.lab_09.grid import FIND_PARAMS
from utils.quant import InputStats, relative_error

Quantizers = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
QuantizersFactory = Callable[[], Quantizers]
GROUP_SIZE = 64  # of the quantizers that the lab hands in
MAX_BITS = 4
PARTS = {
    "find_params": (1, FIND_PARAMS),
    "quantize": (2, QUANTIZE),
    "dequantize": (3, DEQUANTIZE),
    "prepare": (8, PREPARE),
    "gptq": (9, GPTQ),
}


def the_pair(make_quantizers: QuantizersFactory) -> Quantizers:
    """Both quantizers, if their parts are right and they do on small layers what they should."""
    pair = call(make_quantizers)
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(callable(f) for f in pair):
        raise Mismatch("`my_quantizers` must return a pair of functions: `my_rtn` and `my_gptq`.")
    called = {name: part for function in pair for name, part in _parts_of(function).items()}
    for name, (number, contract) in PARTS.items():
        if name in called:
            try:
                contract.check(called[name])
            except Mismatch as wrong:
                wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
                raise
    SMALL_LAYERS.check(pair)
    return pair


def _parts_of(function: Any) -> dict[str, Any]:
    """The functions of the lab that this one calls by their names."""
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return {name: known[name] for name in getattr(code, "co_names", ()) if name in known}


def draw_layer(c: Choices) -> Given:
    """Layers as the model has them, but small: a dead channel, few tokens, strong channels."""
    width = GROUP_SIZE * c.integer(1, 3)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    weight = torch.randn(8 * c.integer(1, 3), width, generator=generator) * c.pick((1.0, 0.05))
    inputs = correlated(c.pick((512, 48)), width, generator)
    if c.rarely(3):
        inputs[:, c.integer(0, width - 1)] = 0.0
    return Given(weight, inputs)


class OnSmallLayers:
    """Judges a pair: what comes back lies on a grid, and GPTQ's outputs are closer."""

    def tell(self, given: Given) -> str:
        weight, inputs = given.args
        return f"a small layer, weight {list(weight.shape)}, inputs {list(inputs.shape)}"

    def expect(self, given: Given) -> None:
        return None

    def fault(self, pair: Any, given: Given, expected: Any) -> Fault | None:
        weight, inputs = given.args
        found = []
        for name, function in zip(("my_rtn", "my_gptq"), pair, strict=True):
            theirs = given.copied().args[: 1 if name == "my_rtn" else 2]
            back = attempt(function, *theirs)
            if isinstance(back, Raised):
                return Fault("raises", name, "a weight", back, back.says, back.look)
            if not all(same(old, new) for old, new in zip(given.args, theirs, strict=False)):
                return Fault("changes", name)
            fault = _off_the_grid(name, back, weight)
            if fault is not None:
                return fault
            found.append(back)
        rounded, gptq = found
        fault = _not_nearest(rounded, weight) or _unequal(rounded, gptq)
        if fault is not None:
            return fault
        if torch.allclose(rounded, gptq):
            return Fault("plain", "", "other weights than rounding gives", "the same")
        stats = InputStats.of(inputs)
        before, after = (relative_error(weight, back, stats) for back in (rounded, gptq))
        if not after < before:
            words = f"less than {before:.2%} of the outputs' square", f"{after:.2%}"
            return Fault("more", "", None, after, words=words)
        return None


def _groups(weight: Tensor) -> Tensor:
    return weight.unflatten(1, (-1, GROUP_SIZE)).flatten(0, 1)


def _num_values(back: Tensor) -> int:
    """The most different values that a group has."""
    return max(len(group.unique()) for group in _groups(back))


def _not_nearest(rounded: Tensor, weight: Tensor) -> Fault | None:
    """Of the values that a group has, rounding takes the nearest for each weight."""
    for number, (back, group) in enumerate(zip(_groups(rounded), _groups(weight), strict=True)):
        away = (back.unique() - group[:, None]).abs().amin(1)
        if ((back - group).abs() > away + 1e-4 * group.abs().max()).any():
            return Fault("nearest", f"group {number}")
    return None


def _unequal(rounded: Tensor, gptq: Tensor) -> Fault | None:
    """Both need as many codes per group; otherwise one cannot compare them."""
    few, many = ((_num_values(back) - 1).bit_length() for back in (rounded, gptq))
    words = (f"{2**few} codes, as for rounding", f"{2**many} codes")
    return Fault("codes", "", few, many, words=words) if many > few else None


def _off_the_grid(name: str, back: Any, weight: Tensor) -> Fault | None:
    """A weight that was read back has the old shape, and few values per group."""
    if not isinstance(back, Tensor) or back.shape != weight.shape:
        kind = type(back).__name__
        kind += f" of shape {tuple(back.shape)}" if isinstance(back, Tensor) else ""
        says = f"`{name}` returned {kind}; expected a weight of {tuple(weight.shape)}."
        return Fault("weight", name, "a weight", kind, says)
    if not torch.isfinite(back).all():
        says = f"The weight of `{name}` is not finite everywhere."
        return Fault("weight", name, "finite numbers", "inf or nan", says)
    most = _num_values(back)
    if most > 2**MAX_BITS:
        says = (
            f"`{name}` gives a group {most} different values. {MAX_BITS} bits have "
            f"{2**MAX_BITS} codes."
        )
        return Fault("weight", name, 2**MAX_BITS, most, says)
    lost = float((back - weight).square().mean() / weight.square().mean())
    if lost > 0.25:
        says = f"What `{name}` returns is far from the weight it was given."
        return Fault("weight", name, "less than 0.25 of its square", f"{lost:.3g}", says)
    return None


SMALL_LAYERS = Contract(
    inputs=draw_layer,
    judge=OnSmallLayers(),
    passed="Both quantizers do on small layers what they should.",
    examples=12,
    clauses={
        "weight": Clause(
            "{says}", "Read the codes back, with the scales and zeros they were made with."
        ),
        "nearest": Clause(
            "`my_rtn` gives a weight a value that is not the nearest in its group.",
            "Exercise 2. Are the codes read back with their own group's scale?",
        ),
        "codes": Clause(
            "Your GPTQ gives a group more different values than your rounding does: "
            "more bits, or smaller groups. So they cannot be compared.",
            "`BITS` and `GROUP_SIZE` are for both.",
        ),
        "plain": Clause(
            "Your GPTQ gives the weights of plain rounding.",
            "No error reaches the later columns: exercise 9.",
        ),
        "more": Clause(
            "On a small layer, your GPTQ changes the outputs more than plain rounding does.",
            "Are these the inputs of this layer, in their order, and is the Hessian made of them?",
        ),
    },
)
