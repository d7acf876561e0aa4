"""Quantized inputs, SmoothQuant's shift, and a W8A8 file."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from utils.quant.formats import (
    E4M3,
    fp8_tokens,
    int8_channels,
    int8_tensor,
    int8_tokens,
    nvfp4_tokens,
    rounded_inputs,
    smooth_model,
    smoothing,
)
from utils.quant.formats.checkpoint import save_int8_w8a8


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # a loud channel behind each norm, as in real models
        for layer in model.model.layers:
            layer.input_layernorm.weight[3] = 40.0
            layer.post_attention_layernorm.weight[5] = 40.0
    return model


def test_int8_is_off_by_half_a_step_at_most() -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0] = 50
    for read, absmax in (
        (int8_tensor(x), x.abs().max()),
        (int8_tokens(x), x.abs().amax(-1, keepdim=True)),
    ):
        assert ((read - x).abs() <= absmax / 127 / 2 * 1.0001).all()
    assert (int8_tokens(x) - x)[1].abs().max() < (int8_tensor(x) - x)[1].abs().max() / 5


def test_fp8_tokens_are_the_formats_own_numbers() -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    scales = x.abs().amax(-1, keepdim=True) / 448
    assert torch.equal(fp8_tokens(x), E4M3.round(x / scales) * scales)


def test_smoothing_changes_nothing_but_the_shape_of_inputs(model: LlamaForCausalLM) -> None:
    windows = [list(range(20)), list(range(40, 60))]
    ids = torch.tensor(windows)
    smoothed = copy.deepcopy(model)
    absmax = smooth_model(smoothed, windows)
    assert len(absmax) == 4
    with torch.inference_mode():
        exact = model(ids).logits
        assert torch.allclose(smoothed(ids).logits, exact, atol=1e-4)
        lost = {}
        for name, one in (("as it was", model), ("smoothed", smoothed)):
            quantized = copy.deepcopy(one)
            for layer in quantized.model.layers:
                for module in layer.modules():
                    if isinstance(module, torch.nn.Linear):
                        module.weight.data = int8_channels(module.weight)
            with rounded_inputs(quantized, int8_tokens):
                lost[name] = (quantized(ids).logits - exact).square().mean()
    assert lost["smoothed"] < lost["as it was"] / 3


def test_factors_meet_in_the_middle_and_bad_input_is_refused() -> None:
    weight = torch.tensor([[1.0, 2.0], [-4.0, 0.5]])
    factors = smoothing(torch.tensor([16.0, 2.0]), weight)
    assert factors.tolist() == [2.0, 1.0]  # sqrt(16 / 4), sqrt(2 / 2)
    with pytest.raises(ValueError, match="alpha"):
        smoothing(torch.ones(2), weight, alpha=2)
    with pytest.raises(ValueError, match="2 input channels"):
        smoothing(torch.ones(3), weight)


def test_inputs_are_rounded_only_within(model: LlamaForCausalLM) -> None:
    ids = torch.tensor([list(range(16))])
    with torch.inference_mode():
        before = model(ids).logits
        with rounded_inputs(model, nvfp4_tokens):
            assert not torch.equal(model(ids).logits, before)
        assert torch.equal(model(ids).logits, before)


def test_a_w8a8_file_holds_what_was_rounded(model: LlamaForCausalLM, tmp_path: Path) -> None:
    source = tmp_path / "source"
    model.save_pretrained(source)
    folder = tmp_path / "w8a8"
    save_int8_w8a8(model, source, folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    assert tensors[name].dtype == torch.int8
    read = tensors[name].float() * tensors[f"{name}_scale"]
    assert torch.allclose(read, int8_channels(model.state_dict()[name]))
    assert "lm_head.weight" not in tensors  # tied: it is the embedding
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"] is True
    with pytest.raises(ValueError, match="isn't empty"):
        save_int8_w8a8(model, source, folder)
