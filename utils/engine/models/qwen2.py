"""Qwen2 and Qwen2.5: Llama, with a bias on queries, keys and values.

In vLLM: `model_executor/models/qwen2.py`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from utils.engine.config.model import ModelConfig
from utils.engine.models.llama import DEFAULT_OPS, LlamaForCausalLM, LlamaOps


class Qwen2ForCausalLM(LlamaForCausalLM):
    """As `LlamaForCausalLM`. Modules are named as in Hugging Face's weights."""

    def __init__(self, config: ModelConfig, ops: LlamaOps = DEFAULT_OPS) -> None:
        super().__init__(config, ops)
        for layer in self.model.layers:
            attention: Any = layer.self_attn
            attention.qkv_proj = nn.Linear(
                config.hidden_size, attention.qkv_proj.out_features, bias=True
            )
        self.requires_grad_(False)
