"""What lab 09 says of AWQ's search for scales: exercise 10."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, PartsCase, compare_parts
from utils.checks.kit.runner import Passed
from utils.checks.lab_09 import pictures
from utils.quant import rtn

N_GRID = 20


def _read_back(weight: Tensor, bits: int, group_size: int, sym: bool = False) -> Tensor:
    return rtn(weight, bits=bits, group_size=group_size, sym=sym).dequantize()


def search(
    weight: Tensor, inputs: Tensor, bits: int, group_size: int, n_grid: int, how: str = "right"
) -> tuple[Tensor, dict[float, float]]:
    """The best scales, and the error of each ratio, token by token; a switch per known mistake."""
    salience = {
        "rms": inputs.square().mean(0).sqrt(),
        "signed": inputs.mean(0).abs(), "max": inputs.abs().amax(0),
        "squares": inputs.square().mean(0), "weights": weight.abs().mean(0),
        "tokens": inputs.abs().mean(1).mean().expand(inputs.shape[1]),
    }.get(how, inputs.abs().mean(0))  # fmt: skip
    errors: dict[float, float] = {}
    found: dict[float, Tensor] = {}
    first = how == "no zero"
    for step in range(first, n_grid + (how == "with one")):
        ratio = (step + (how == "late")) / n_grid
        scales = salience.pow(-ratio if how == "inverse" else ratio)
        if how != "raw":
            scales = scales / (scales.max() * scales.min()).sqrt()
        if how == "by max":
            scales = scales / scales.max()
        back = _read_back(weight * scales, bits, group_size, sym=how == "symmetric")
        if how != "kept":
            back = back / scales
        # AWQ looks at what the layer computes, not at its weights.
        difference = back - weight if how == "of weights" else inputs @ (back - weight).T
        if how == "divided inputs":
            difference = (inputs / scales) @ (back - weight).T
        power = 1 if how == "absolute" else 2
        errors[ratio] = float(difference.double().abs().pow(power).sum())
        if how == "square of sum":
            errors[ratio] = float(difference.double().sum() ** 2)
        found[ratio] = scales
    choose = max if how == "worst" else min
    ratio = choose(errors, key=lambda r: errors[r])
    if how == "half":
        ratio = 0.5
    elif how == "last":
        ratio = max(errors)
    return found[ratio], errors


def _case(
    out: int, width: int, tokens: int, bits: int, group_size: int, seed: int, spread: float = 1.0,
    best_at: str = "inside",
) -> PartsCase:  # fmt: skip
    """A layer some of whose inputs are large, and whose best ratio is clear.

    Args:
        spread: how much the channels differ in size.
        best_at: "inside": the best of all ratios lies between; "zero": at 0; "one": 1 would be
            better than all that are tried.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(500):
        weight = torch.randn(out, width, generator=generator)
        strength = (spread * torch.randn(width, generator=generator)).exp()
        shift = torch.randn(width, generator=generator)
        inputs = (torch.randn(tokens, width, generator=generator) + shift) * strength
        args = (weight, inputs, bits, group_size, N_GRID)
        scales, errors = search(*args)
        best, second, *_ = sorted(errors.values())
        ratio = min(errors, key=lambda r: errors[r])
        fits = 0 < ratio < 0.95 if best_at == "inside" else ratio == 0
        if best_at == "one":
            fits = not torch.equal(search(*args, "with one")[0], scales)
        if second > 1.02 * best and fits:
            break
    else:
        raise AssertionError("no such layer was found")
    given = (
        f"weight [{out}, {width}], inputs [{tokens}, {width}], bits={bits}, "
        f"group_size={group_size}, n_grid={N_GRID}"
    )
    return PartsCase(given, args, (scales,), 1e-3, 1e-5)


_CASES = (_case(2, 4, 3, 4, 4, 0), _case(4, 8, 6, 3, 8, 1), _case(6, 16, 20, 4, 8, 2),
          _case(4, 32, 12, 3, 16, 3), _case(3, 16, 9, 4, 16, 4),
          _case(4, 8, 6, 4, 8, 6, best_at="zero"),
          _case(4, 8, 6, 4, 8, 7, best_at="one"))  # fmt: skip


def _mistake(says: str, look: str, how: str) -> KnownMistake:
    return KnownMistake(says, look, lambda w, x, bits, size, n: search(w, x, bits, size, n, how)[0])


_OUTPUTS = "`inputs @ (back - weight).T`, squared and summed up."
_MISTAKES = (
    _mistake("The error is measured on the weights. AWQ's idea is to measure it on the outputs, "
             "where a channel with large inputs counts more.", _OUTPUTS, "of weights"),
    _mistake("The scales are not taken out again: what was read back must be divided by them, "
             "before it is compared with the weight.", "`back = dequantize(...) / scales`.",
             "kept"),
    _mistake("The exponent has the wrong sign: channels with *large* inputs are scaled up, not "
             "down.", "`magnitude ** ratio`.", "inverse"),
    _mistake("A channel's inputs cancel in your mean. It is the mean of their magnitudes.",
             "`inputs.abs().mean(0)`.", "signed"),
    _mistake("You use the largest input of each channel. AWQ takes the mean magnitude, which one "
             "odd token does not change.", "`inputs.abs().mean(0)`.", "max"),
    _mistake("You use the mean square of the inputs. It is the mean magnitude.",
             "`inputs.abs().mean(0)`.", "squares"),
    _mistake("The channels' importance comes from the weights. AWQ is activation-aware: it comes "
             "from the inputs.", "`inputs.abs().mean(0)`.", "weights"),
    _mistake("You take the mean over channels, per token. It is over tokens, per channel.",
             "`inputs.abs().mean(0)`.", "tokens"),
    _mistake("The scales are not centred: divide them by sqrt(max · min).",
             "`scales / (scales.max() * scales.min()).sqrt()`.", "raw"),
    _mistake("You keep the ratio with the *largest* error.", "`if error < best_error`.", "worst"),
    _mistake("You return the last ratio's scales, whatever their error was.",
             "Keep the best scales beside the best error.", "last"),
    _mistake("You always return the scales of ratio 0.5. The search is missing.",
             "Try each `step / n_grid`.", "half"),
    _mistake("The ratios are 1/n, ..., 1. They begin at 0, where nothing is scaled, so that the "
             "result is never worse than rounding.", "`step / n_grid` for `step in "
             "range(n_grid)`.", "late"),
    _mistake("The ratio 1 is tried, too. The ratios are 0, 1/n, ..., (n - 1)/n.",
             "`for step in range(n_grid)`.", "with one"),
    _mistake("Ratio 0 is not tried. There nothing is scaled; with it, the result is never worse "
             "than rounding.", "`for step in range(n_grid)`.", "no zero"),
    _mistake("You quantize with the symmetric grid. AWQ's is asymmetric.", "`sym=False`.",
             "symmetric"),
    _mistake("You use the root of the mean square of the inputs. It is the mean magnitude.",
             "`inputs.abs().mean(0)`.", "rms"),
    _mistake("You sum up first and square afterwards. Then errors of both signs cancel.", _OUTPUTS,
             "square of sum"),
    _mistake("The inputs are divided by s as well. The weights that you compare with are not "
             "scaled, so the inputs are as they came.", _OUTPUTS, "divided inputs"),
    _mistake("You sum up absolute errors. Squares are asked for.", _OUTPUTS, "absolute"),
    _mistake("You divide by the largest scale. Divide by sqrt(max · min).",
             "`scales / (scales.max() * scales.min()).sqrt()`.", "by max"),
)  # fmt: skip


def judge_search_scales(function: Callable[..., Tensor]) -> Passed:
    """Check `search_scales(weight, inputs, bits, group_size, n_grid)`."""
    compare_parts(function, ("scales",), _CASES, _MISTAKES)
    case = _case(16, 64, 128, 4, 32, 5)
    weight, inputs, bits, group_size, _ = case.args
    yours = function(weight.clone(), inputs.clone(), bits, group_size, N_GRID)
    _, errors = search(*case.args)
    ratio = min(errors, key=lambda r: errors[r])
    assert torch.allclose(yours, case.expected[0], rtol=1e-3)
    figure = pictures.search_curve(
        errors, ratio, "A ratio between 0 and 1 has the least output error"
    )
    return Passed(
        f"In each case the scales with the least output error. In the picture, ratio {ratio:g} "
        f"leaves {errors[ratio] / errors[0.0]:.0%} of the error of plain rounding, at no cost: the "
        "division by the scales goes into the layer before.",
        figure, "The output error over the ratio, with your choice marked.",
    )  # fmt: skip
