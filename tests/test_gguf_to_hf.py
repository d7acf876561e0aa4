"""The bundled model's folder: faithful to the GGUF file, and the same with every transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from utils.bundled_model import bundled_gguf
from utils.gguf_to_hf import write_hf_folder


def test_converted_weights_are_those_of_the_gguf_file(model_path: Path) -> None:
    """Oracle: the gguf package's own dequantizer, and the row order of llama.cpp's converter."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import load_file

    tensors = {t.name: t for t in GGUFReader(bundled_gguf()).tensors}
    ours = load_file(model_path / "model.safetensors")

    def original(name: str) -> torch.Tensor:
        tensor = tensors[name]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16()

    assert torch.equal(
        original("blk.3.ffn_down.weight"), ours["model.layers.3.mlp.down_proj.weight"]
    )
    assert torch.equal(original("token_embd.weight"), ours["model.embed_tokens.weight"])
    # llama.cpp stores the two halves of each rotary head interleaved.
    query = original("blk.3.attn_q.weight").view(9, 32, 2, 576).transpose(1, 2).reshape(576, 576)
    assert torch.equal(query, ours["model.layers.3.self_attn.q_proj.weight"])


def test_converted_folder_serves_transformers_4_and_5(model_path: Path) -> None:
    config = json.loads((model_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000
    assert "quantization_config" not in config
    tokenizer = json.loads((model_path / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (model_path / "generation_config.json").is_file()


def test_tokenizer_round_trip_and_chat_template(tokenizer) -> None:
    text = "Zürich, 1,299.00 € — naïve 🙂\n\tdef f(x): return x"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2


def test_other_versions_of_transformers_make_the_same_folder(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 5.17 they take the tokenizer for a Llama's, with another end of text, and up to 5.9
    they leave no word about the quantizer in the configuration."""
    load = transformers.AutoModelForCausalLM.from_pretrained

    def as_before(*args: Any, **options: Any) -> Any:
        model = load(*args, **options)
        del model.config.quantization_config
        return model

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", as_before)
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("asked")
    )
    write_hf_folder(bundled_gguf(), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / name).read_bytes() == (model_path / name).read_bytes(), name
