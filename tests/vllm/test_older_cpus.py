"""What stands in for vLLM's kernels on older CPUs computes what the weights stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from utils import profiles
from utils.quant.packing import pack_gptq
from utils.quant.rtn import rtn
from utils.vllm import older_cpus


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """vLLM's list of 4-bit kernels, as on a CPU whose build has none."""
    from vllm.model_executor.kernels import linear as vllm_linear
    from vllm.platforms import PlatformEnum, current_platform

    if not current_platform.is_cpu():
        pytest.skip("vLLM runs on a card here")
    monkeypatch.setattr(older_cpus, "_has_four_bit_kernel", lambda: False)
    own = vllm_linear._POSSIBLE_KERNELS
    # Where the CPU has none, a vLLM that this process started earlier brought the stand-in.
    vllms = [k for k in own[PlatformEnum.CPU] if k.__module__ != older_cpus.__name__]
    monkeypatch.setitem(own, PlatformEnum.CPU, vllms)
    return own[PlatformEnum.CPU]


@pytest.mark.parametrize("sym", [True, False])
def test_vllm_chooses_the_stand_in_and_it_multiplies_what_was_packed(kernels, sym) -> None:
    from vllm.model_executor.kernels.linear import MPLinearLayerConfig, choose_mp_linear_kernel
    from vllm.scalar_type import scalar_types

    names = [kernel.__name__ for kernel in kernels]
    older_cpus.register()
    older_cpus.register()  # vLLM may call it more than once
    assert [kernel.__name__ for kernel in kernels] == ["ReadBackLinearKernel", *names]

    generator = torch.Generator().manual_seed(1)
    weight = rtn(torch.randn(96, 64, generator=generator), group_size=32, sym=sym)
    packed = pack_gptq(weight, zero_offset=0)
    weight = replace(weight, scales=packed["scales"].t().float())  # as the file has them
    zeros = None if sym else packed["qzeros"]
    read_back = older_cpus.read_back(packed["qweight"], packed["scales"], zeros)
    assert torch.equal(read_back, weight.dequantize())
    layer = nn.Module()
    for name, key in (("q", "qweight"), ("s", "scales"), ("z", "qzeros")):
        parameter = nn.Parameter(packed[key].clone(), requires_grad=False)
        parameter.input_dim, parameter.output_dim, parameter.packed_dim = 0, 1, 0
        setattr(layer, name, parameter)
    kind = scalar_types.uint4b8 if sym else scalar_types.uint4
    config = MPLinearLayerConfig((64, 96), (64, 96), kind, torch.bfloat16, 32, not sym)
    chosen = choose_mp_linear_kernel(config)
    assert chosen is kernels[0]
    kernel = chosen(config, "q", "s", "z")
    kernel.process_weights_after_loading(layer)
    assert layer.q.numel() == 0  # the packed weight is not kept beside it

    x, bias = torch.randn(5, 64, generator=generator).bfloat16(), torch.ones(96).bfloat16()
    got = kernel.apply_weights(layer, x, bias)
    assert got.dtype == torch.bfloat16
    assert torch.allclose(got.float(), linear(x.float(), weight.dequantize()) + 1, rtol=2**-8)
    exact = kernel.apply_weights(layer, torch.eye(64))  # float32 goes in, the weight comes out
    torch.testing.assert_close(exact.T, weight.dequantize(), rtol=1e-6, atol=1e-6)


def test_nothing_changes_where_vllms_kernels_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.kernels import linear as vllm_linear
    from vllm.model_executor.layers import utils

    monkeypatch.setattr(older_cpus, "_has_four_bit_kernel", lambda: True)
    monkeypatch.setattr(profiles, "fast_dtype", lambda: "bfloat16")
    before = {k: list(v) for k, v in vllm_linear._POSSIBLE_KERNELS.items()}
    choose = utils.dispatch_cpu_unquantized_gemm
    older_cpus.register()
    assert before == vllm_linear._POSSIBLE_KERNELS
    assert utils.dispatch_cpu_unquantized_gemm is choose


def test_bfloat16_layers_give_bfloat16_and_others_are_left_to_vllm(kernels, monkeypatch) -> None:
    from vllm.model_executor.layers import utils

    given: list[torch.dtype] = []
    choose = utils.dispatch_cpu_unquantized_gemm

    def vllms_choice(layer: Any, remove_weight: bool) -> None:
        given.append(layer.weight.dtype)
        choose(layer, remove_weight)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", vllms_choice)
    monkeypatch.setattr(profiles, "fast_dtype", lambda: "float32")
    older_cpus.register()
    older_cpus.register()
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(7, 16, generator=generator).bfloat16()
    x, bias = torch.randn(3, 16, generator=generator).bfloat16(), torch.ones(7).bfloat16()
    layer: Any = nn.Module()
    layer.weight = nn.Parameter(weight, requires_grad=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    for b in (None, bias):
        exact = linear(x.float(), weight.float(), None if b is None else b.float())
        got = layer.cpu_linear(x, layer.weight, b)
        assert got.dtype == torch.bfloat16
        assert torch.allclose(got.float(), exact, rtol=2**-8)
    assert layer.weight.numel() == 0 and layer.weight.dtype == torch.bfloat16
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert given == [torch.float32, torch.float32]  # vLLM is never asked about bfloat16


def test_vllm_finds_it() -> None:
    from importlib.metadata import entry_points

    [found] = [e for e in entry_points(group="vllm.general_plugins") if e.name == "older_cpus"]
    assert found.load() is older_cpus.register
