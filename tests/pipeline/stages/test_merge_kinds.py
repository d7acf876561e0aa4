"""Every kind of adapter: merged, the model answers as the adapter does at run time; or it refuses.

On tiny random models, since an adapter's kind has nothing to do with what a model knows. What is
right is peft's own model with the adapter beside the base.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from utils.engine.config.model import ModelConfig
from utils.engine.models.weights import load_model
from utils.pipeline.stages.finetune import quiet_peft
from utils.pipeline.stages.merge import AdapterError, merge

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # peft's, of what is tested here
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 89, 79, 32, 38, 4]])
VOCABULARY = 96
WEIGHTS = "adapter_model.safetensors"
BOTH = ["lm_head", "embed_tokens"]
ATTENTION = ["q_proj", "v_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all linear layers": {"target_modules": "all-linear"},
    "rank-stabilized": {"use_rslora": True},
    "DoRA": {"use_dora": True},
    "PiSSA": {"init_lora_weights": "pissa"},
    "OLoRA": {"init_lora_weights": "olora"},
    "ranks of their own": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 16}},
    "some layers": {"layers_to_transform": [1]},
    "all but one": {"target_modules": "all-linear", "exclude_modules": ["down_proj"]},
    "a parameter": {"target_parameters": ["mlp.up_proj.weight"]},
    "a norm": {"modules_to_save": ["norm"]},
    "token rows": {"trainable_token_indices": [1, 4, 5]},
    "head by LoRA": {"target_modules": ["lm_head"]},
    "embedding by LoRA": {"target_modules": ["embed_tokens"]},
    "both by LoRA": {"target_modules": BOTH},
    "a whole head": {"modules_to_save": ["lm_head"]},
    "a whole embedding": {"modules_to_save": ["embed_tokens"]},
    "both as a whole": {"modules_to_save": BOTH},
}
# Both stay one tensor, as before: only a tied base has such adapters.
TIED_KINDS = {
    "both by LoRA, tied": {"target_modules": BOTH, "ensure_weight_tying": True},
    "both as a whole, tied": {"modules_to_save": BOTH, "ensure_weight_tying": True},
}
TWO_TENSORS = (
    "head by LoRA",
    "embedding by LoRA",
    "both by LoRA",
    "a whole head",
    "a whole embedding",
    "both as a whole",
)


def save_base(
    folder: Path, tied: bool, dtype: torch.dtype = torch.float32, shard: str = "1GB"
) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def save_adapter(base: Path, folder: Path, **options: Any) -> Path:
    """An adapter in which each trained number is random."""
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    settings = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ATTENTION}
    model = get_peft_model(load(base), LoraConfig(**(settings | options)))
    dice = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=dice)
    model.save_pretrained(folder)
    return folder


def at_run_time(base: Path, adapter: Path) -> torch.Tensor:
    from peft import PeftModel

    with torch.inference_mode():
        return PeftModel.from_pretrained(load(base), adapter).eval()(IDS).logits


def assert_same(base: Path, adapter: Path, out: Path, tolerance: float) -> None:
    """The merged folder answers as base and adapter do, in transformers and in our engine."""
    merge(base, adapter, out)
    expected, merged = at_run_time(base, adapter), load(out)
    with torch.inference_mode():
        assert (load(base)(IDS).logits - expected).abs().max() > 0.1  # the adapter does something
        difference = (merged(IDS).logits - expected).abs().max()
    assert difference < tolerance * expected.abs().max()
    ours = load_model(out, ModelConfig.from_pretrained(out))
    assert torch.equal(ours.lm_head.weight, merged.lm_head.weight)
    assert torch.equal(ours.model.embed_tokens.weight, merged.model.embed_tokens.weight)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_it_answers_as_at_run_time(kind: str, tied: bool, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied)
    adapter = save_adapter(base, tmp_path / "adapter", **KINDS[kind])
    assert_same(base, adapter, tmp_path / "out", 1e-4)
    config, before = (json.loads((f / "config.json").read_text()) for f in (tmp_path / "out", base))
    assert config.pop("tie_word_embeddings") == (tied and kind not in TWO_TENSORS)
    before.pop("tie_word_embeddings")
    assert config == before


@pytest.mark.parametrize("kind", TIED_KINDS)
def test_what_is_trained_tied_stays_tied(kind: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    adapter = save_adapter(base, tmp_path / "adapter", **TIED_KINDS[kind])
    assert_same(base, adapter, tmp_path / "out", 1e-4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]


@pytest.mark.parametrize("kind", ["all linear layers", "both by LoRA"])
@pytest.mark.parametrize(
    ("dtype", "shard"),
    [(torch.bfloat16, "1GB"), (torch.float16, "1GB"), (torch.bfloat16, "20KB")],
    ids=["bfloat16", "float16", "in shards"],
)
def test_bases_of_other_types(kind: str, dtype: torch.dtype, shard: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", True, dtype, shard)
    assert (base / "model.safetensors.index.json").is_file() == (shard != "1GB")
    adapter = save_adapter(base, tmp_path / "adapter", **KINDS[kind])
    assert_same(base, adapter, tmp_path / "out", 0.05)  # rounded once
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {dtype}


def test_a_head_that_equals_the_embedding_is_no_head_of_its_own(tmp_path: Path) -> None:
    """Some folders hold the one tensor twice."""
    base = save_base(tmp_path / "base", tied=True)
    tensors = load_file(base / "model.safetensors")
    for head, tied in (
        (tensors["model.embed_tokens.weight"].clone(), True),
        (-tensors["model.embed_tokens.weight"], False),
    ):
        save_file(tensors | {"lm_head.weight": head}, base / "model.safetensors", {"format": "pt"})
        config = ModelConfig.from_pretrained(base)
        assert config.tie_word_embeddings is tied
        assert torch.equal(load_model(base, config).lm_head.weight, head)


# Tokens that the adapter added


def save_tokenizer(folder: Path, *tokens: str) -> None:
    vocabulary = {chr(33 + i): i for i in range(64)} | {t: 64 + i for i, t in enumerate(tokens)}
    model = models.WordLevel(vocabulary, unk_token="!")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(folder)


@pytest.mark.parametrize("added", [(), ("<tool>",)])
def test_tokens_that_the_adapter_added_are_kept(added: tuple[str, ...], tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    save_tokenizer(base)
    adapter = save_adapter(base, tmp_path / "adapter")
    save_tokenizer(adapter, *added)
    (adapter / "tokenizer_config.json").write_text(
        json.dumps(json.loads((adapter / "tokenizer_config.json").read_text()) | {"mark": 1})
    )
    merge(base, adapter, tmp_path / "out")
    vocabulary = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out").get_vocab()
    assert vocabulary.get("<tool>") == (64 if added else None)
    kept = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert ("mark" in kept) == bool(added)  # where nothing was added, all files are the base's


def test_a_token_without_a_row_is_refused(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    save_tokenizer(base)
    adapter = save_adapter(base, tmp_path / "adapter")
    save_tokenizer(adapter, *(f"<{i}>" for i in range(VOCABULARY)))
    with pytest.raises(AdapterError, match=r"the token '<95>' with id 159, .* has 96 rows"):
        merge(base, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Damage


def change(**tensors: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Change the first tensor whose name holds a word."""

    def changed(adapter: Path) -> None:
        found = load_file(adapter / WEIGHTS)
        for word, function in tensors.items():
            name = next(name for name in sorted(found) if word in name)
            found[name] = function(found[name])
        save_file(found, adapter / WEIGHTS, {"format": "pt"})

    return changed


def without_one(adapter: Path) -> None:
    found = load_file(adapter / WEIGHTS)
    del found[min(found)]
    save_file(found, adapter / WEIGHTS, {"format": "pt"})


def cut(name: str) -> Callable[[Path], None]:
    def halved(adapter: Path) -> None:
        data = (adapter / name).read_bytes()
        (adapter / name).write_bytes(data[: len(data) // 2])

    return halved


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights cut off": (cut(WEIGHTS), "is damaged"),
    "weights empty": (lambda adapter: (adapter / WEIGHTS).write_bytes(b""), "is damaged"),
    "config cut off": (cut("adapter_config.json"), "is damaged"),
    "not a number": (change(lora_A=lambda a: a * torch.nan), "lora_A.* holds NaN"),
    "infinity": (change(lora_B=lambda b: b / 0.0), "holds NaN or infinity"),
    "a tensor is missing": (without_one, "Not in both"),
    "another width": (change(lora_A=lambda a: a[:, :32].contiguous()), "another base"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_with_its_reason(damage: str, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    adapter = save_adapter(base, tmp_path / "adapter")
    function, words = DAMAGES[damage]
    function(adapter)
    with pytest.raises(AdapterError, match=words) as caught:
        merge(base, adapter, tmp_path / "out")
    assert ("another base" in str(caught.value)) == (words in ("another base", "Not in both"))
    assert not (tmp_path / "out").exists()


def test_an_option_that_peft_cannot_merge(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    adapter = save_adapter(base, tmp_path / "adapter", lora_bias=True)
    with pytest.raises(AdapterError, match=r"cannot be merged: .*bias"):
        merge(base, adapter, tmp_path / "out")


def test_a_vocabulary_that_was_resized(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", tied=True)
    larger = load(base)
    larger.resize_token_embeddings(VOCABULARY + 8)
    larger.save_pretrained(tmp_path / "larger")
    adapter = save_adapter(tmp_path / "larger", tmp_path / "adapter", modules_to_save=BOTH)
    with pytest.raises(AdapterError, match="of 104 rows, and the base has 96: its vocabulary"):
        merge(base, adapter, tmp_path / "out")


def test_a_weight_too_large_for_the_bases_type(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", True, torch.float16)
    adapter = save_adapter(base, tmp_path / "adapter")
    change(lora_B=lambda b: b + 1e6)(adapter)
    with pytest.raises(AdapterError, match=r"q_proj.weight is too large for float16"):
        merge(base, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()
