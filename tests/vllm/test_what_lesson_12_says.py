"""What notebook 12 says about 4-bit files in vLLM, held against the installed vLLM."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize("quantized", [False, True])
def test_the_entry_lm_head_says_whether_the_output_layer_is_quantized(quantized: bool) -> None:
    from vllm.model_executor.layers.quantization.auto_awq import AutoAWQConfig
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig

    for config, entry in ((AutoGPTQConfig, GPTQ), (AutoAWQConfig, AWQ)):
        assert config.from_config({**entry, "lm_head": quantized}).lm_head_quantized is quantized


def test_only_symmetric_gptq_files_are_read() -> None:
    """Their zeros all mean code 8, so a stored 7 or 8 tells the two formats apart."""
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig

    AutoGPTQConfig.from_config(GPTQ)
    with pytest.raises(ValueError, match="Unsupported quantization config"):
        AutoGPTQConfig.from_config({**GPTQ, "sym": False})
