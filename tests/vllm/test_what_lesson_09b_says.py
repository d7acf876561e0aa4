"""What notebook 09b says about GPTQ files in vLLM, held against the installed vLLM."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("vllm")

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True}


def test_g_idx_is_dropped_when_a_file_is_loaded() -> None:
    from vllm.model_executor.layers.quantization import auto_gptq

    mapper = auto_gptq.AutoGPTQConfig.from_config(GPTQ).get_checkpoint_weight_mapper()
    names = [f"model.layers.0.mlp.down_proj.{part}" for part in ("qweight", "qzeros", "scales")]
    assert mapper.apply_list([*names, "model.layers.0.mlp.down_proj.g_idx"]) == names
    assert "g_idx" not in inspect.getsource(auto_gptq)  # no layer has room for it


def test_act_order_with_groups_is_refused_by_the_config() -> None:
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig

    with pytest.raises(ValueError, match="static activation ordering"):
        AutoGPTQConfig.from_config({**GPTQ, "desc_act": True})
    AutoGPTQConfig.from_config({**GPTQ, "desc_act": True, "group_size": -1})


@pytest.mark.parametrize(("preset", "symmetric"), [("W4A16", True), ("W4A16_ASYM", False)])
def test_another_format_has_both_grids(preset: str, symmetric: bool) -> None:
    """GPTQ's own format must be symmetric (see lesson 12's tests); compressed-tensors need not."""
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors
    from vllm.scalar_type import scalar_types

    weights = PRESET_SCHEMES[preset]["weights"]
    entry = {"weights": weights.model_dump(), "targets": ["Linear"]}
    config = compressed_tensors.CompressedTensorsConfig.from_config(
        {"format": "pack-quantized", "config_groups": {"group_0": entry}, "ignore": []}
    )
    scheme = config._get_scheme_from_parts(weights, None)
    assert type(scheme).__name__ == "CompressedTensorsWNA16"
    assert scheme.symmetric is symmetric
    assert scheme.quant_type == (scalar_types.uint4b8 if symmetric else scalar_types.uint4)
