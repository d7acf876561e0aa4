"""Layers of loud and quiet channels, and how far their outputs are off: exercise 11."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import picture
from utils.checks.lab_09.parts import form, placed, seeded, where
from utils.quant import find_params, rtn

RATIOS = [step / 20 for step in range(20)]  # of the lesson's rule


class Loud(Given):
    """A layer whose channels differ in loudness: here the text promises a gain."""


def loud_layer(seed: int, tokens: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Weight [8, 32], inputs of the calibration, and inputs that nobody has seen."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(8, 32, generator=generator)
    strength = torch.randn(32, generator=generator).exp()
    one, other = (torch.randn(tokens, 32, generator=generator) * strength for _ in range(2))
    return weight, one, other


def draw_channels(c: Choices) -> Given:
    """Often a loud layer. Else: few channels or tokens, loud or all alike, some silent."""
    if c.rarely(5):
        weight, inputs, _ = loud_layer(c.integer(0, 9999))
        inputs *= c.pick((1.0, 1e-3, 1e4))
        return Loud(*placed(c, weight, inputs), c.pick((4, 3)), 16)
    group_size, groups, tokens = c.size(1, 8), c.size(1, 3), c.size(1, 40)
    width, generator = group_size * groups, seeded(c)
    weight = torch.randn(c.size(1, 6), width, generator=generator) * c.pick((1.0, 1.0, 0.02))
    if c.rarely(9):
        weight = (weight > 0).float()  # plain rounding loses nothing
    strength = (c.pick((1.0, 0.0, 3.0)) * torch.randn(width, generator=generator)).exp()
    shift = torch.randn(width, generator=generator)
    inputs = (torch.randn(tokens, width, generator=generator) + shift) * strength
    if c.rarely(3):
        inputs[:, c.integer(0, width - 1)] = 0.0  # a channel that is silent
    if c.rarely(9):
        inputs.zero_()
    inputs *= c.pick((1.0, 1.0, 1e-3, 1e4))
    return Given(*placed(c, weight, inputs), c.pick((4, 3, 2, 5)), group_size)


def output_error(weight: Tensor, inputs: Tensor, s: Tensor, bits: int, group_size: int) -> float:
    """As the lab's, which calls the learner's functions."""
    back = rtn(weight * s, bits=bits, group_size=group_size, sym=False).dequantize() / s
    return float((inputs @ (back - weight).T).square().sum())


def output_errors(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, tried: Tensor
) -> Tensor:
    """The output's error with each row of `tried` [n, in], all at once."""
    scaled = weight * tried[:, None]  # [n, out, in]
    groups = scaled.unflatten(-1, (-1, group_size))
    scales, zeros = (p[..., None] for p in find_params(groups, bits, False))
    codes = (torch.round(groups / scales) + zeros).clamp(0, 2**bits - 1)
    delta = ((codes - zeros) * scales).flatten(-2) / tried[:, None] - weight
    return (delta @ inputs.T).double().square().sum((1, 2))


def both_errors(given: Given, tried: Tensor) -> Tensor:
    """[2, n]: in float64 and in float32, which round a weight between two codes as they like."""
    weight, inputs, bits, group_size = given.args
    exact = output_errors(weight.double(), inputs.double(), bits, group_size, tried.double())
    return torch.stack([exact, output_errors(weight, inputs, bits, group_size, tried.float())])


def powers(magnitude: Tensor) -> Tensor:
    """The scales of the lesson's rule, [ratios, in]; a silent channel has those of a quiet one."""
    loudest = float(magnitude.max()) or 1.0
    return torch.stack([(magnitude / loudest).clamp(min=1e-4) ** ratio for ratio in RATIOS])


def the_lessons(weight: Tensor, inputs: Tensor, bits: int, group_size: int) -> Tensor:
    """One ratio for the whole layer: the best of 20."""
    tried = powers(inputs.abs().mean(0))
    return tried[int(output_errors(weight, inputs, bits, group_size, tried).argmin())]


GAIN = 0.95  # of the error that the lesson's rule leaves, at most, on loud layers


def broken_promise_of_scales(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """Any scales will do that can be divided by, are never worse, and gain where promised."""
    if fault := form(("s",), expected, got):
        return fault
    bad = ~((got > 0) & got.isfinite())
    if bad.any():
        return Fault("scales", "", "each above 0, and finite", got, where("s", bad))
    weight, inputs, *_ = given.args
    nothing = 1e-9 * float((inputs.double() @ weight.double().T).square().sum())
    mine = float(both_errors(given, got[None]).min())
    plain = float(both_errors(given, torch.ones_like(expected)[None]).max())
    if mine > 1.001 * plain + nothing:
        words = f"an output error of at most {plain:.5g}", f"{mine:.5g}"
        return Fault("worse", "", None, mine / max(plain, nothing), words=words)
    if isinstance(given, Loud):
        rule = float(both_errors(given, expected[None]).max())
        if mine > GAIN * rule:
            words = f"at most {GAIN:g} times the error of the lesson's rule", f"{mine / rule:.3f}"
            return Fault("gain", "", None, mine / rule, words=words)
    return None


def praise_scales(answer: Callable[..., Tensor]) -> Passed:
    rows: dict[str, list[Tensor]] = {"these inputs": [], "other inputs": []}
    for seed in range(3):
        weight, seen, unseen = loud_layer(seed, 128)
        mine = answer(weight.clone(), seen.clone(), 4, 16)
        tried = torch.stack([torch.ones(32), the_lessons(weight, seen, 4, 16), mine])
        for name, inputs in zip(rows, (seen, unseen), strict=True):
            rows[name].append(output_errors(weight, inputs, 4, 16, tried))
    means = {name: torch.stack(found).mean(0) for name, found in rows.items()}
    rule, yours = ([float(e[n] / e[0]) for e in means.values()] for n in (1, 2))
    says = "; ".join(
        f"on {name} the rule leaves {one:.0%} of the error of plain rounding, yours {other:.0%}"
        for name, one, other in zip(rows, rule, yours, strict=True)
    )
    shares = {"the lesson's rule": rule, "yours": yours}
    title = "A scale of its own for each channel"
    return Passed(
        "Your scales are never worse than none, and beat the lesson's rule where channels differ. "
        "How much of the gain is left on inputs that your search has never seen? On three layers: "
        f"{says}. The rule chooses one number, which leaves little room for learning the inputs by "
        "heart. Your search chooses one number for each channel.",
        picture.one_chart(
            5.4, [*rows], shares, title, "output error", digits="%.2f", whole="plain rounding"
        ),
        f"The output error of both: {says}.",
    )
