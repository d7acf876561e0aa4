"""The memory formula against tensors, Hugging Face's cache and published figures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.sim.memory import (
    MODEL_SHAPES,
    ModelShape,
    kv_bytes_per_token,
    requests_that_fit,
    weight_bytes,
)


def test_formula_equals_huggingface_cache(hf_model, tokenizer) -> None:
    """Oracle: the bytes of the tensors in transformers' own DynamicCache."""
    ids = tokenizer("The capital of France is Paris, of course.", return_tensors="pt").input_ids
    with torch.inference_mode():
        cache = hf_model(ids, use_cache=True).past_key_values
    measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    shape = MODEL_SHAPES["SmolLM2-135M"]
    assert kv_bytes_per_token(shape, bytes_per_value=4) * ids.shape[1] == measured


def test_bundled_shape_is_that_of_the_model(hf_model) -> None:
    shape, config = MODEL_SHAPES["SmolLM2-135M"], hf_model.config
    for field in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        assert getattr(shape, field) == getattr(config, field)
    assert shape.num_key_value_heads == config.num_key_value_heads
    assert shape.num_parameters == pytest.approx(hf_model.num_parameters(), rel=1e-3)


def test_published_figures() -> None:
    # PagedAttention paper, section 3: 800 KB per token of OPT-13B.
    assert kv_bytes_per_token(MODEL_SHAPES["OPT-13B"]) == 800 * 1024
    # DeepSeek-V3 report, table 1 of arXiv 2505.09343: 70.272 KB per token.
    assert kv_bytes_per_token(MODEL_SHAPES["DeepSeek-V3"]) == 70_272
    assert weight_bytes(MODEL_SHAPES["Llama-3.1-8B"]) == pytest.approx(16e9, rel=0.01)


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_kind_follows_the_heads(name: str) -> None:
    shape = MODEL_SHAPES[name]
    expected = {
        "Falcon-7B": "MQA",
        "SmolLM2-1.7B": "MHA",
        "Llama-2-7B": "MHA",
        "Llama-2-13B": "MHA",
        "OPT-13B": "MHA",
        "DeepSeek-V3": "MLA",
        "Hunyuan-Large": "GQA, a cache per 2 layers",
    }
    assert shape.kind == expected.get(name, "GQA")


@given(
    layers=st.integers(1, 100),
    kv_heads=st.integers(1, 64),
    head_dim=st.sampled_from([64, 80, 128]),
    share=st.integers(1, 4),
)
def test_sharing_layers_never_costs_more(
    layers: int, kv_heads: int, head_dim: int, share: int
) -> None:
    shape = ModelShape("x", 1e9, layers, 4096, 64, kv_heads, head_dim, layers_per_kv=share)
    alone = ModelShape("x", 1e9, layers, 4096, 64, kv_heads, head_dim)
    # Brute force: count the layers that own a cache.
    owners = sum(1 for layer in range(layers) if layer % share == 0)
    assert kv_bytes_per_token(shape) == owners * 2 * kv_heads * head_dim * 2
    assert kv_bytes_per_token(shape) <= kv_bytes_per_token(alone)


def test_requests_that_fit_by_brute_force() -> None:
    shape, memory, length = MODEL_SHAPES["Llama-2-7B"], 24e9, 4096
    n = requests_that_fit(shape, memory, length, other_share=0)
    used = weight_bytes(shape) + n * length * kv_bytes_per_token(shape)
    assert used <= memory < used + length * kv_bytes_per_token(shape)
    assert requests_that_fit(shape, 10e9, length) == 0  # the weights alone do not fit
