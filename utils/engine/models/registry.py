"""Which class runs a model: by the architecture that its `config.json` names.

In vLLM: `model_executor/models/registry.py`.
"""

from __future__ import annotations

from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.models.qwen2 import Qwen2ForCausalLM

MODELS: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
}
