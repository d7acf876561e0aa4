"""FP8, MXFP4 and NVFP4 weights equal those of vLLM and of compressed-tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from utils.quant.formats import E2M1, E4M3, fp8, mxfp4, nvfp4


@pytest.fixture(scope="module")
def weight() -> Tensor:
    """Weights of very different sizes, a block of zeros, and a row of zeros."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 96, generator=generator)
    weight *= torch.logspace(-3, 0, 24)[:, None]
    weight[3, 32:64], weight[7] = 0, 0
    return weight


def test_nvfp4_is_that_of_vllm(weight: Tensor) -> None:
    emulation = pytest.importorskip(
        "vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils"
    )
    ours = nvfp4(weight)
    assert ours.global_scale is not None
    elements, scales = emulation.ref_nvfp4_quant(weight.clone(), ours.global_scale, 16)
    assert torch.equal(E2M1.decode(ours.codes), elements)
    assert torch.equal(E4M3.decode(ours.stored_scales), scales)
    packed = ours.codes[:, ::2] | (ours.codes[:, 1::2] << 4)
    read = emulation.dequantize_to_dtype(
        packed, ours.stored_scales, 1 / ours.global_scale, torch.float32, swizzle=False
    )
    assert torch.equal(ours.dequantize(), read)


def test_mxfp4s_scales_are_those_of_compressed_tensors(weight: Tensor) -> None:
    module = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    absmax = weight.unflatten(1, (-1, 32)).abs().amax(-1)
    stored = mxfp4(weight).stored_scales
    theirs = module.generate_mx_scales(absmax)
    assert torch.equal(stored[absmax > 0], theirs[absmax > 0].to(torch.uint8))


@pytest.mark.parametrize("top, power", [(3.0, -1), (3.49, -1), (3.5, 0), (6.0, 0), (7.1, 1)])
def test_mxfp4s_scale_doubles_where_the_largest_weight_rounds_up(top: float, power: int) -> None:
    block = torch.zeros(1, 32)
    block[0, 5] = top
    assert float(mxfp4(block).scales) == 2.0**power
    assert abs(float(mxfp4(block).dequantize()[0, 5]) - top) <= 2.0**power


def test_fp8_reaches_its_largest_number_in_each_channel(weight: Tensor) -> None:
    quantized = fp8(weight)
    values = E4M3.decode(quantized.codes).abs().amax(1)
    assert set(values.tolist()) == {448.0, 0.0}
    error = (quantized.dequantize() - weight).abs()
    assert (error <= weight.abs() / 16 + weight.abs().amax(1, keepdim=True) / 448 / 2**10).all()


def test_sizes() -> None:
    weight = torch.ones(64, 128)
    assert mxfp4(weight).bits_per_weight == 4.25
    assert nvfp4(weight).bits_per_weight == 4.5 + 32 / weight.numel()
    assert fp8(weight).bits_per_weight == 8 + 32 / 128


@pytest.mark.parametrize("quantize", [fp8, mxfp4, nvfp4])
def test_zeros_stay_zeros(quantize: object) -> None:
    assert callable(quantize)
    assert not quantize(torch.zeros(4, 32)).dequantize().any()


@pytest.mark.parametrize("top", [0.0, 1e-40, 1e-36, 1e-30, 1.0, 1e30])
def test_nvfp4s_numbers_are_finite_for_any_weight(top: float) -> None:
    weight = torch.linspace(-top, top, 4 * 32).view(4, 32)
    quantized = nvfp4(weight)
    assert quantized.global_scale is not None
    assert quantized.global_scale.isfinite() and quantized.global_scale > 0
    assert quantized.scales.isfinite().all()
    read = quantized.dequantize()
    assert read.isfinite().all() and read.abs().max() <= 1.2 * top
    if top == 0:
        assert quantized.global_scale == 1


@pytest.mark.parametrize("quantize", [fp8, mxfp4, nvfp4])
@pytest.mark.parametrize(
    "weight, message",
    [
        (torch.ones(32), "Expected the weight of a linear layer"),
        (torch.ones(4, 32, dtype=torch.int32), "floating point"),
        (torch.full((4, 32), torch.nan), "not finite"),
    ],
)
def test_what_is_no_weight_is_refused(quantize: object, weight: Tensor, message: str) -> None:
    assert callable(quantize)
    with pytest.raises(ValueError, match=message):
        quantize(weight)
    with pytest.raises(ValueError, match="does not divide"):
        mxfp4(torch.ones(4, 40))
