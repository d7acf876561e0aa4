"""What notebook 09 says about 4-bit layouts in vLLM, held against the installed vLLM."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

pytest.importorskip("vllm")


def registered(create_weights: Callable[..., None]) -> set[str]:
    """The names of the tensors that a method looks for in a checkpoint."""
    return set(re.findall(r'register_parameter\("(\w+)"', inspect.getsource(create_weights)))


def test_a_square_layers_awq_and_compressed_tensors_files_differ_by_name() -> None:
    """The shapes agree. GPTQ's and AWQ's names agree, and there the shapes differ."""
    from vllm.model_executor.layers.quantization.auto_awq import AutoAWQMarlinLinearMethod
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQLinearMethod
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_wNa16 as wNa16,
    )

    packed = registered(wNa16.CompressedTensorsWNA16.create_weights)
    assert {"weight_packed", "weight_scale"} <= packed
    for method in (AutoAWQMarlinLinearMethod, AutoGPTQLinearMethod):
        names = registered(method.create_weights)
        assert {"qweight", "qzeros", "scales"} <= names
        assert not names & packed


def test_inputs_are_quantized_on_a_cpu_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm import envs

    monkeypatch.delenv("VLLM_CPU_INT4_W4A8", raising=False)
    assert envs.VLLM_CPU_INT4_W4A8
    monkeypatch.setenv("VLLM_CPU_INT4_W4A8", "0")
    assert not envs.VLLM_CPU_INT4_W4A8
