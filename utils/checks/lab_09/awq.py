"""What lab 09 says of AWQ's search for scales: exercise 10."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.grid import params
from utils.checks.lab_09.parts import far, form, where


def draw_layer(c: Choices) -> Given:
    """Channels that differ a little or much; one token or many; a search of 1 ratio or of 25."""
    group_size, groups = 1 + c.size(1, 20), c.size(1, 4)
    width, tokens = group_size * groups, c.size(1, 40)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    weight = torch.randn(c.size(1, 6), width, generator=generator)
    spread = c.pick((1.0, 1.0, 0.3, 3.0))
    strength = (spread * torch.randn(width, generator=generator)).exp()
    shift = torch.randn(width, generator=generator)
    inputs = (torch.randn(tokens, width, generator=generator) + shift) * strength
    if c.rarely(4) and tokens > 1:
        inputs[c.integer(0, tokens - 1)] = 0.0
    inputs *= c.pick((1.0, 1.0, 1e-3, 1e4))
    inputs *= max(1.0, 2e-4 / float(inputs.abs().mean(0).min()))  # below 1e-4, AWQ has other rules
    weight *= c.pick((1.0, 1.0, 0.02))
    tensors = (laid_out(t, c.pick(LAYOUTS)) for t in (weight, inputs))
    return Given(*tensors, c.pick((4, 3, 2, 5)), group_size, c.pick((20, 5, 10, 1, 2, 3, 7, 4)))


def output_errors(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, tried: Tensor, how: str = ""
) -> Tensor:
    """The error with each row of `tried` [n, in], all at once."""
    scaled = weight * tried[:, None]  # [n, out, in]
    groups = scaled.unflatten(-1, (-1, group_size))
    scales, zeros = (p[..., None] for p in params(groups, bits, how == "symmetric"))
    codes = (torch.round(groups / scales) + zeros).clamp(0, 2**bits - 1)
    back = ((codes - zeros) * scales).flatten(-2)
    delta = (back if how == "kept" else back / tried[:, None]) - weight
    lost = delta if how == "of weights" else delta @ inputs.T
    if how == "square of sum":
        return lost.double().sum((1, 2)).square()
    return lost.double().square().sum((1, 2))


def ratios_scales(magnitude: Tensor, ratios: list[float], centred: bool = True) -> Tensor:
    tried = torch.stack([magnitude**ratio for ratio in ratios])
    return tried / (tried.amax(1) * tried.amin(1)).sqrt()[:, None] if centred else tried


def search(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, n_grid: int, how: str = ""
) -> Tensor:
    """`search_scales` with one switch per known mistake. It is never the oracle."""
    magnitude = {
        "signed": inputs.mean(0).abs(), "max": inputs.abs().amax(0),
        "squares": inputs.square().mean(0), "weights": weight.abs().mean(0),
    }.get(how, inputs.abs().mean(0))  # fmt: skip
    steps = list(range(n_grid))
    steps = {"with one": [*steps, n_grid], "no zero": steps[1:]}.get(how, steps)
    if not steps:
        return torch.ones_like(magnitude)
    sign = -1 if how == "inverse" else 1
    tried = ratios_scales(magnitude, [sign * step / n_grid for step in steps])
    errors = output_errors(weight, inputs, bits, group_size, tried, how)
    best = int(errors.argmax() if how == "worst" else errors.argmin())
    if how == "raw":
        return magnitude ** (steps[best] / n_grid)
    return tried[best]


@dataclass(frozen=True)
class Search:
    """What was tried: scales [n, in] in float64, and which of them have the least error.

    Several, if float32 cannot tell them apart.
    """

    scales: Tensor
    least: Tensor
    errors: Tensor

    @property
    def best(self) -> Tensor:
        return self.scales[int(self.errors.argmin())].float()


def searched(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, n_grid: int
) -> Search:  # fmt: skip
    w, x = weight.double(), inputs.double()
    tried = ratios_scales(x.abs().sum(0) / len(x), [step / n_grid for step in range(n_grid)])
    errors = output_errors(w, x, bits, group_size, tried)
    rough = output_errors(weight, inputs, bits, group_size, tried.float())
    nothing = 1e-9 * float((x @ w.T).square().sum())
    least = torch.stack([e <= 1.001 * e.min() + nothing for e in (errors, rough)]).any(0)
    return Search(tried, least, errors)


def _wrong(expected: Search, got: Any, given: Given) -> Fault | None:
    fault = form(("scales",), expected.best, got)
    if fault is not None:
        return fault
    wrong = far(got, expected.scales, rtol=1e-3)  # [n, in]
    if not wrong[expected.least].any(1).all():
        return None
    best = expected.best
    ratio = int(expected.errors.argmin()) / len(expected.scales)
    draw = lambda: (_curve(expected, got), "The output error over the ratio.")  # noqa: E731
    same = (~wrong.any(1)).nonzero().flatten().tolist()
    if same:
        error = expected.errors[same[0]] / expected.errors.min()
        says = (
            f"These are the scales of ratio {same[0] / len(expected.scales):g}. Those of ratio "
            f"{ratio:g} have the least error; yours have {error:.4g} times as much."
        )
        return Fault("choice", "", best, got, says, picture=draw)
    return Fault("scales", "", best, got, where("scales", far(got, best, rtol=1e-3)))


def _curve(found: Search, got: Tensor) -> Any:
    n = len(found.errors)
    errors = {step / n: float(error) for step, error in enumerate(found.errors)}
    nearest = int((found.scales - got.double()).abs().sum(1).argmin())
    return pictures.search_curve(errors, nearest / n, "The output error of all ratios")


def _passed(function: Callable[..., Tensor]) -> Passed:
    generator = torch.Generator().manual_seed(5)
    weight, x = torch.randn(16, 64, generator=generator), torch.randn(128, 64, generator=generator)
    inputs = x * torch.randn(64, generator=generator).exp()
    found = searched(weight, inputs, 4, 32, 20)
    got = function(weight.clone(), inputs.clone(), 4, 32, 20)
    ratio = int((found.scales - got.double()).abs().sum(1).argmin()) / 20
    share = float(found.errors.min() / found.errors[0])
    return Passed(
        f"In each case the scales with the least output error. In the picture, ratio {ratio:g} "
        f"leaves {share:.0%} of the error of plain rounding, at no cost: the division by the "
        "scales goes into the layer before.",
        _curve(found, got), "The output error over the ratio, with your choice marked.",
    )  # fmt: skip


def _but(how: str) -> Callable[..., Tensor]:
    return lambda w, x, bits, size, n: search(w, x, bits, size, n, how)


_OUTPUTS = "What does the layer compute with these weights, on these inputs?"
_MAGNITUDE = "One number per input channel: how large are its inputs?"
SEARCH_SCALES = Contract(
    inputs=draw_layer,
    judge=Returns(searched, wrong=_wrong),
    passed=_passed,
    examples=120,
    clauses={
        "form": Clause("{says}", "One scale per input channel, float32."),
        "scales": Clause("{says} These scales are those of no ratio: they are the channels' mean "
                         "magnitudes to the power of `step / n_grid`, divided by √(max · min).",
                         _MAGNITUDE),
        "choice": Clause("{says}", _OUTPUTS),
    },
    mistakes=(
        mistake("The error is measured on the weights. AWQ's idea is to measure it on the outputs, "
                "where a channel with large inputs counts more.", _OUTPUTS, _but("of weights")),
        mistake("The scales are not taken out again: what was read back must be divided by them, "
                "before it is compared with the weight.", "The last step before the error.",
                _but("kept")),
        mistake("The exponent has the wrong sign: channels with *large* inputs are scaled up, not "
                "down.", "The ratios are not negative.", _but("inverse")),
        mistake("A channel's inputs cancel in your mean. It is the mean of their magnitudes.",
                _MAGNITUDE, _but("signed")),
        mistake("You use the largest input of each channel. AWQ takes the mean magnitude, which "
                "one odd token does not change.", _MAGNITUDE, _but("max")),
        mistake("You use the mean square of the inputs. It is the mean magnitude.", _MAGNITUDE,
                _but("squares")),
        mistake("The channels' importance comes from the weights. AWQ is activation-aware: it "
                "comes from the inputs.", _MAGNITUDE, _but("weights")),
        mistake("The scales are not centred: divide them by √(max · min).", "√(max · min).",
                _but("raw")),
        mistake("You keep the ratio with the *largest* error.", "The least error.",
                _but("worst")),
        mistake("The ratio 1 is tried, too. The ratios are 0, 1/n, ..., (n - 1)/n.",
                "`range(n_grid)`.", _but("with one")),
        mistake("Ratio 0 is not tried. There nothing is scaled; with it, the result is never worse "
                "than rounding.", "`range(n_grid)`.", _but("no zero"),
                lambda w, x, b, g, n: search(w, x, b, g, n, "no zero") if n > 1 else None),
        mistake("You quantize with the symmetric grid. AWQ's is asymmetric.", "`sym=False`.",
                _but("symmetric")),
    ),
)  # fmt: skip
