"""What notebook 12b says about small floats in vLLM, held against the installed vLLM."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("vllm")


def test_no_platform_but_graphics_cards_has_a_kernel_for_nvfp4_or_mxfp4() -> None:
    """So on a CPU vLLM can't serve them in ordinary linear layers, not even emulated."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    cards = {PlatformEnum.CUDA, PlatformEnum.ROCM, PlatformEnum.XPU}
    for kernels in (linear._POSSIBLE_NVFP4_KERNELS, linear._POSSIBLE_MXFP4_KERNELS):
        assert {platform for platform, listed in kernels.items() if listed} <= cards


def test_the_reference_saturates_scales_that_are_too_large() -> None:
    from vllm.model_executor.layers.quantization.utils import nvfp4_emulation_utils

    weight = torch.full((1, 16), 6.0)
    _, scales = nvfp4_emulation_utils.ref_nvfp4_quant(weight, torch.tensor(1000.0), 16)
    assert scales.tolist() == [[448.0]]


def test_the_specifications_rule_for_mxfp4_is_not_that_of_compressed_tensors() -> None:
    """The specification takes floor(log2(largest)) - 2; compressed-tensors rounds first."""
    module = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    largest = torch.tensor([3.4, 3.5, 3.9, 4.0, 6.9, 7.0])
    stored = module.generate_mx_scales(largest).int() - 127
    assert stored.tolist() == [-1, 0, 0, 0, 0, 1]
    assert (torch.log2(largest).floor() - 2).tolist() == [-1, -1, -1, 0, 0, 0]
