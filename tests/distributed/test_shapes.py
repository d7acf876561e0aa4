"""Numbers of parameters, against Hugging Face's own models (without memory: on "meta")."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from utils.distributed.shapes import SHAPES, Shape, active_parameters, num_parameters
from utils.engine.config.model import ModelConfig


def count(model_class, config) -> int:
    with torch.device("meta"):
        model = model_class(config)
    return sum(parameter.numel() for parameter in model.parameters())


def llama(shape: Shape) -> int:
    names = (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "tie_word_embeddings",
    )
    return count(LlamaForCausalLM, LlamaConfig(**{name: getattr(shape, name) for name in names}))


@pytest.mark.parametrize("name", [name for name in SHAPES if "lama" in name or "Smol" in name])
def test_llamas(name: str) -> None:
    assert num_parameters(SHAPES[name]) == llama(SHAPES[name])


def test_mixtures_of_experts() -> None:
    # The defaults of these configurations are the published models'.
    assert num_parameters(SHAPES["Mixtral-8x7B"]) == count(MixtralForCausalLM, MixtralConfig())
    deepseek = count(DeepseekV3ForCausalLM, DeepseekV3Config())
    assert num_parameters(SHAPES["DeepSeek-V3"]) == deepseek


def test_active_parameters_are_the_published_ones() -> None:
    """Mixtral: 12.9 B (arXiv 2401.04088, section 2.1); DeepSeek-V3: 37 B (2412.19437, abstract).

    Both count the table of embeddings, which is only looked up.
    """
    for name, published in (("Mixtral-8x7B", 12.9e9), ("DeepSeek-V3", 37e9)):
        shape = SHAPES[name]
        with_table = active_parameters(shape) + shape.vocab_size * shape.hidden_size
        assert with_table == pytest.approx(published, rel=0.02)


def test_shape_of_the_bundled_model(model_path) -> None:
    shape = Shape.of(ModelConfig.from_pretrained(model_path), "SmolLM2-135M")
    assert shape == SHAPES["SmolLM2-135M"]
