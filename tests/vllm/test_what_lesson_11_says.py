"""What notebook 11 says about adapters in vLLM, held against the installed vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("vllm")


def test_only_the_last_part_of_a_name_is_checked(tmp_path: Path) -> None:
    """An adapter for a layer that the model doesn't have is loaded, another module's isn't."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper(r=2, lora_alpha=4, target_modules=["q_proj"])

    def load(module: str) -> LoRAModel:
        name = f"base_model.model.model.layers.999.self_attn.{module}"
        tensors = {
            f"{name}.lora_A.weight": torch.ones(2, 8),
            f"{name}.lora_B.weight": torch.ones(8, 2),
        }
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        return LoRAModel.from_local_checkpoint(str(tmp_path), {"q_proj"}, helper, device="cpu")

    assert list(load("q_proj").loras) == ["model.layers.999.self_attn.q_proj"]
    with pytest.raises(ValueError, match="k_proj"):
        load("k_proj")


def test_validate_legal_never_sees_the_model() -> None:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper(r=16, lora_alpha=32, target_modules=["no_such_module"])
    helper.validate_legal(LoRAConfig(max_lora_rank=16))
    with pytest.raises(ValueError, match="rank 16"):
        helper.validate_legal(LoRAConfig(max_lora_rank=8))
