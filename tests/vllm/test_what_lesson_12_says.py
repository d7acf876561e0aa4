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


def test_which_cards_each_scheme_needs() -> None:
    """75: Turing, 89: Ada. Older cards read FP8 files, too, and unpack the weights to 16 bits."""
    from vllm.model_executor.layers.quantization.compressed_tensors import schemes

    needed = {
        schemes.CompressedTensorsWNA16: 75,
        schemes.CompressedTensorsW8A8Int8: 75,
        schemes.CompressedTensorsW8A8Fp8: 89,
        schemes.CompressedTensorsW8A16Fp8: 75,
        schemes.CompressedTensorsW4A4Fp4: 75,
    }
    assert {scheme.__name__: scheme.get_min_capability() for scheme in needed} == {
        scheme.__name__: capability for scheme, capability in needed.items()
    }


def test_the_preset_w4a16_has_groups_of_128() -> None:
    """So it does not fit the bundled model, whose layers are 576 wide."""
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    weights = PRESET_SCHEMES["W4A16"]["weights"]
    assert (weights.num_bits, weights.group_size, weights.symmetric) == (4, 128, True)
