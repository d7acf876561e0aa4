"""AWQ: its searches against brute force, and against gptqmodel's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.quant.conftest import import_gptqmodel
from utils.pipeline.quantizers.classic.clip_search import best_clip
from utils.quant import InputStats, apply_clip, awq, rtn, search_clip, search_scales


def layer_with_outliers() -> tuple[torch.Tensor, torch.Tensor]:
    """One of 64 input channels is 50 times as large as the others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 64, generator=generator)
    x[:, 7] *= 50
    return torch.randn(16, 64, generator=generator), x


def test_errors_of_the_search_are_those_of_the_outputs() -> None:
    """The search sums over a matrix; here the same over the tokens themselves."""
    w, x = layer_with_outliers()
    search = search_scales(w, InputStats.of(x), group_size=32)
    for scales, error in (
        (torch.ones(64), search.errors[None]),
        (search.scales, search.errors[search.ratio]),
    ):
        read_back = rtn(w * scales, group_size=32, sym=False).dequantize() / scales
        direct = (x @ (read_back - w).t()).square().sum(1).mean()
        assert error == pytest.approx(float(direct), rel=1e-3)
    assert search.errors[search.ratio] == min(search.errors.values())
    assert len(search.errors) == 21


def test_the_loud_channel_is_protected() -> None:
    w, x = layer_with_outliers()
    search = search_scales(w, InputStats.of(x), group_size=32)
    assert int(search.scales.argmax()) == 7
    assert search.errors[search.ratio] < 0.3 * search.errors[None]


def test_no_scaling_where_it_does_not_help() -> None:
    """On 8 bits of equal channels nothing is to be gained; ones are then the answer."""
    generator = torch.Generator().manual_seed(3)
    w = torch.randint(-7, 8, (16, 64), generator=generator).float()
    w[:, 0], w[:, 32] = 7.5, -7.5  # on the grid: rounding loses nothing
    search = search_scales(
        w, InputStats.of(torch.randn(99, 64, generator=generator)), group_size=32
    )
    assert search.ratio is None
    assert torch.equal(search.scales, torch.ones(64))


def test_few_rows_find_about_the_same(real_layers) -> None:
    layer = real_layers["mlp.down_proj"]
    stats = InputStats.of(layer.inputs)
    every = search_scales(layer.weight, stats, n_grid=10)
    some = search_scales(layer.weight, stats, n_grid=10, max_rows=64)
    assert every.errors[some.ratio] < 1.02 * every.errors[every.ratio]


@pytest.mark.parametrize("group_size", [32, 64])
def test_clipping_is_what_the_pipeline_gives_the_tools(real_layers, group_size: int) -> None:
    """The pipeline's function was proven equal to gptqmodel's own search."""
    layer = real_layers["self_attn.o_proj"]
    x = layer.inputs[::4]  # 512 tokens: all are used

    def tool_round_trip(w: torch.Tensor) -> torch.Tensor:
        return rtn(w, group_size=group_size, sym=False).dequantize()

    theirs = best_clip(layer.weight, x, group_size, tool_round_trip).squeeze(-1)
    moment = InputStats.of(x).second_moment
    ours = search_clip(layer.weight, moment, group_size=group_size)
    assert torch.isclose(ours, theirs).float().mean() > 0.999  # the rest are ties
    clipped = apply_clip(layer.weight, ours)
    assert clipped.shape == layer.weight.shape
    assert (clipped != layer.weight).any()
    assert (clipped.abs() <= ours.repeat_interleave(group_size, dim=1)).all()


def test_without_clipping_and_with(real_layers) -> None:
    layer = real_layers["mlp.down_proj"]
    stats = InputStats.of(layer.inputs)
    errors = {}
    for clip in (False, True):
        quantized, scales = awq(layer.weight, stats, clip=clip, n_grid=10)
        errors[clip] = layer.error(quantized.dequantize() / scales)
    plain = layer.error(rtn(layer.weight, sym=False).dequantize())
    assert errors[True] < errors[False] < plain


def test_bad_arguments() -> None:
    w, x = layer_with_outliers()
    with pytest.raises(ValueError, match="32 channels, the weight has 64"):
        awq(w, InputStats.of(x[:, :32]))
    with pytest.raises(ValueError, match="does not divide"):
        awq(w, InputStats.of(x), group_size=48)
    w[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        awq(w, InputStats.of(x))


# --- the production tool ------------------------------------------------------------------------


def gptqmodel_awq(w: torch.Tensor, x: torch.Tensor, group_size: int) -> torch.Tensor:
    """What gptqmodel's scale and clip searches make of a layer, read back."""
    import_gptqmodel()
    from gptqmodel.looper.awq_processor import AWQProcessor, _compute_awq_weight_mean

    tool = AWQProcessor.__new__(AWQProcessor)
    tool.qcfg = SimpleNamespace(group_size=group_size, sym=False, bits=4)
    tool._scale_context, tool.duo_scaling = SimpleNamespace(), True
    tool._quant_batch_size, tool.gptq_model = None, None
    tool._get_root_rotary = lambda: None
    linear = nn.Linear(w.shape[1], w.shape[0], bias=False).requires_grad_(False)
    linear.weight.data = w.clone()
    # From float32 on a CPU, the copy that the search restores from is an alias of the weights it
    # changes (as in autoawq). In float64 it is a copy.
    linear, x = linear.double(), x.double()
    w_mean, x_mean = _compute_awq_weight_mean([linear], group_size), x.abs().mean(0)
    reference = [linear(x)]
    with torch.inference_mode():
        scales, _ = tool._compute_best_scale(x, w_mean, x_mean, linear, [linear], reference, {})
    assert torch.equal(linear.weight.float(), w)
    scaled = (w * scales.float()).contiguous()
    limits = best_clip(
        scaled,
        x.float() / scales.float(),
        group_size,
        lambda weight: tool.pseudo_quantize_tensor(weight)[0],
    )
    clipped = apply_clip(scaled, limits.squeeze(-1))
    return tool.pseudo_quantize_tensor(clipped)[0] / scales.float()


@pytest.mark.parametrize("name", ["self_attn.o_proj", "mlp.down_proj"])
def test_as_good_as_gptqmodel(real_layers, name: str) -> None:
    layer = real_layers[name]
    theirs = layer.error(gptqmodel_awq(layer.weight, layer.inputs, 64))
    errors = []
    for clip in (True, False):
        quantized, scales = awq(layer.weight, InputStats.of(layer.inputs), clip=clip)
        errors.append(layer.error(quantized.dequantize() / scales))
    ours, unclipped = errors
    plain = layer.error(rtn(layer.weight, sym=False).dequantize())
    # They round differently, and may choose another ratio of nearly the same error: which costs
    # either of them little next to what a part that is missing would.
    assert ours - theirs < 0.5 * (unclipped - theirs)
    assert theirs - ours < 0.5 * (unclipped - ours)  # the tool was used as it is meant
    assert ours < 0.95 * plain
