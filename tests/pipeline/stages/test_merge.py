"""Merging changes the place of the update, not the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from utils.pipeline.stages.finetune import quiet_peft
from utils.pipeline.stages.merge import AdapterError, merge, merged_model


def random_adapter(base: Any, folder: Path) -> Any:
    """Give `base` an adapter with random A and B, save it, and return the model with it."""
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear")
    torch.manual_seed(0)
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)
    return model.eval()


def test_the_merged_real_model_equals_base_plus_adapter(model_path: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(model_path)(
        "Dear support, my tea kettle arrived broken.", return_tensors="pt"
    ).input_ids
    with torch.inference_mode():
        before = base(ids).logits
        expected = random_adapter(base, tmp_path / "adapter")(ids).logits
        merged = merged_model(model_path, tmp_path / "adapter")
        logits = merged(ids).logits
    assert (expected - before).abs().max() > 0.1  # the adapter does something
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    assert merged.lm_head.weight is merged.model.embed_tokens.weight


def test_the_folder_is_a_plain_model_in_the_base_type(
    small_model_dir: Path, tmp_path: Path
) -> None:
    base = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32)
    random_adapter(base, tmp_path / "adapter")
    merge(small_model_dir, tmp_path / "adapter", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["tie_word_embeddings"]
    files = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert ".safetensors" in files and not files & {".bin", ".pt"}
    # One rounding, at the end: the weights are the float32 sum, rounded.
    exact = merged_model(small_model_dir, tmp_path / "adapter").state_dict()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict()
    assert all(torch.equal(saved[name], exact[name].bfloat16()) for name in exact)
    # Tied embeddings stay tied: the file is no larger than the base's.
    sizes = [
        sum(f.stat().st_size for f in folder.glob("*.safetensors"))
        for folder in (small_model_dir, tmp_path / "out")
    ]
    assert abs(sizes[0] - sizes[1]) < 100_000
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template


def test_an_adapter_of_another_base_is_refused(small_model_dir: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
    )
    random_adapter(other, tmp_path / "adapter")
    with pytest.raises(AdapterError, match="trained on another base"):
        merge(small_model_dir, tmp_path / "adapter", tmp_path / "out")


def test_an_adapter_of_a_deeper_base_is_refused(small_model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(small_model_dir)
    config.num_hidden_layers, config.layer_types = 3, None
    random_adapter(LlamaForCausalLM(config), tmp_path / "adapter")
    with pytest.raises(AdapterError, match="trained on another base"):
        merge(small_model_dir, tmp_path / "adapter", tmp_path / "out")


def test_a_missing_or_pickled_adapter_is_refused(small_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json is missing"):
        merge(small_model_dir, tmp_path, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32)
    random_adapter(base, tmp_path / "adapter")
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    shutil.move(weights, weights.with_suffix(".bin"))
    with pytest.raises(AdapterError, match=r"\.bin.*not read"):
        merge(small_model_dir, tmp_path / "adapter", tmp_path / "out")
