"""What lab 09 says of scales for input channels: exercise 10, a design of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.grid import params
from utils.checks.lab_09.parts import form, where

GAIN = 0.95  # of the error that the lesson's rule leaves, at most, on loud layers
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


def draw_layer(c: Choices) -> Given:
    """Often a loud layer. Else: few channels or tokens, loud or all alike, some silent."""
    layouts = c.pick(LAYOUTS), c.pick(LAYOUTS)
    if c.rarely(5):
        weight, inputs, _ = loud_layer(c.integer(0, 9999))
        inputs *= c.pick((1.0, 1e-3, 1e4))
        tensors = map(laid_out, (weight, inputs), layouts)
        return Loud(*tensors, c.pick((4, 3)), 16)
    group_size, groups, tokens = c.size(1, 8), c.size(1, 3), c.size(1, 40)
    width = group_size * groups
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
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
    tensors = map(laid_out, (weight, inputs), layouts)
    return Given(*tensors, c.pick((4, 3, 2, 5)), group_size)


def output_errors(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, tried: Tensor
) -> Tensor:
    """The output's error with each row of `tried` [n, in], all at once."""
    scaled = weight * tried[:, None]  # [n, out, in]
    groups = scaled.unflatten(-1, (-1, group_size))
    scales, zeros = (p[..., None] for p in params(groups, bits, False))
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


def _broken_promise(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """Any scales will do that can be divided by, are never worse, and gain where promised."""
    fault = form(("s",), expected, got)
    if fault is not None:
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


def _passed(function: Callable[..., Tensor]) -> Passed:
    rows: dict[str, list[Tensor]] = {"these inputs": [], "other inputs": []}
    for seed in range(3):
        weight, seen, unseen = loud_layer(seed, 128)
        tried = torch.stack(
            [
                torch.ones(32),
                the_lessons(weight, seen, 4, 16),
                function(weight.clone(), seen.clone(), 4, 16),
            ]
        )
        for name, inputs in zip(rows, (seen, unseen), strict=True):
            rows[name].append(output_errors(weight, inputs, 4, 16, tried))
    means = {name: torch.stack(found).mean(0) for name, found in rows.items()}
    shares = {name: (float(e[1] / e[0]), float(e[2] / e[0])) for name, e in means.items()}
    says = "; ".join(
        f"on {name} the rule leaves {rule:.0%} of the error of plain rounding, yours {mine:.0%}"
        for name, (rule, mine) in shares.items()
    )
    return Passed(
        "Your scales are never worse than none, and beat the lesson's rule where channels differ. "
        f"What of that holds for inputs that your search has not seen? On three layers: {says}. A "
        "rule with one number has little that it could learn by heart; yours has one per channel.",
        pictures.seen_and_unseen(shares),
        f"The output error of both: {says}.",
    )


def _fixed(scales: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Scales by a formula of weight and inputs, without a search."""
    return lambda weight, inputs, bits, group_size: scales(weight, inputs)


def _by_weights(weight: Tensor, inputs: Tensor, bits: int, group_size: int) -> Tensor:
    """The ratio with the least error of the weights."""
    tried, identity = powers(inputs.abs().mean(0)), torch.eye(weight.shape[1])
    return tried[int(output_errors(weight, identity, bits, group_size, tried).argmin())]


def _magnitude(inputs: Tensor) -> Tensor:
    return inputs.abs().mean(0)


_CHANNELS = "After the best ratio is found: what if a single channel's s were a little larger?"
SEARCH_SCALES = Contract(
    inputs=draw_layer,
    judge=Returns(the_lessons, wrong=_broken_promise),
    passed=_passed,
    examples=50,
    clauses={
        "form": Clause("{says}", "One scale per input channel, float32."),
        "scales": Clause(
            "{says} The weight is multiplied by s, and divided by it again.",
            "What is the s of a channel whose inputs are all 0?",
        ),
        "worse": Clause(
            "With your s, the layer's output is further off than without any.",
            "Is s = 1, for all channels, among the choices? Do you keep a choice "
            "only if the output error gets smaller?",
        ),
        "gain": Clause(
            "The output error is not small enough on a layer whose channels differ.", _CHANNELS
        ),
    },
    mistakes=(
        mistake(
            "This is the lesson's rule: one ratio for the whole layer. Here it is to be beaten.",
            _CHANNELS,
            the_lessons,
        ),
        mistake(
            "All channels have the same s: that is plain rounding.",
            "Which channels are loud?",
            _fixed(lambda w, x: torch.ones(w.shape[1])),
        ),
        mistake(
            "A formula without a search: the square root of each channel's magnitude. On some "
            "layers that is worse than no scaling.",
            "Compute the output error, and compare.",
            _fixed(lambda w, x: _magnitude(x).clamp(min=1e-4) ** 0.5),
        ),
        mistake(
            "The loud channels get the smaller s. Theirs should be the larger one.",
            "A large s makes the error of its column small.",
            _fixed(lambda w, x: _magnitude(x).clamp(min=1e-4) ** -0.5),
        ),
        mistake(
            "A channel that is silent gets s = 0, and its column is divided by 0.",
            "`.clamp(min=...)`.",
            _fixed(lambda w, x: _magnitude(x) ** 0.5),
        ),
        mistake(
            "Your search keeps what is best for the *weights*. What counts is the output.",
            "`output_error` is given.",
            _by_weights,
        ),
    ),
)
