"""float16 from training to serving: what a T4 runs, which knows no bfloat16. Here on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.engine.tiny_engines import gaps_below_best
from utils.engine import LLM, SamplingParams
from utils.pipeline.stages.finetune import TrainSettings, finetune
from utils.pipeline.stages.merge import TOKENIZER_FILES, merge
from utils.pipeline.stages.packed_batches import encode
from utils.pipeline.task.messages import generate
from utils.vllm.engine_settings import EngineSettings
from utils.vllm.session import VllmSession

MAX_TOKENS = 24
NEAR_TIE = 0.1  # float16 has 11 bits: logits around 20 come in steps of 0.016
SETTINGS = TrainSettings(
    steps=4,
    batch_size=1,
    learning_rate=2e-2,
    lora_r=4,
    lora_alpha=8,
    dtype="float16",
    gradient_checkpointing=True,
)


@pytest.fixture(scope="module")
def base(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the real vocabulary: most CPUs multiply float16 a hundred times slower."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        dtype="bfloat16",
    )
    folder = tmp_path_factory.mktemp("float16") / "base"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for pattern in TOKENIZER_FILES:
        for file in model_path.glob(pattern):
            shutil.copy2(file, folder)
    return folder


def train(base: Path, out: Path, settings: TrainSettings) -> list[float]:
    out.mkdir()
    finetune(base, generate("train", 4), out, settings)
    losses: list[float] = json.loads((out / "loss.json").read_text())["loss"]
    return losses


@pytest.fixture(scope="module")
def trained(base: Path) -> Path:
    """An adapter, trained with the loss scaled up and with checkpointing, as on a T4."""
    train(base, base.parent / "adapter", SETTINGS)
    return base.parent / "adapter"


@pytest.fixture(scope="module")
def merged(base: Path, trained: Path) -> Path:
    merge(base, trained, base.parent / "merged")
    return base.parent / "merged"


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    return [tokens.prompt for tokens in encode(tokenizer, generate("held_out", 3))]


def test_training_in_float16(trained: Path) -> None:
    losses = json.loads((trained / "loss.json").read_text())["loss"]
    assert losses[-1] < losses[0]
    weights = load_file(trained / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    assert all(weight.isfinite().all() for weight in weights.values())
    assert all(weight.any() for name, weight in weights.items() if "lora_B" in name)


def test_it_learns_as_in_bfloat16(base: Path, trained: Path, tmp_path: Path) -> None:
    brain = train(base, tmp_path / "adapter", replace(SETTINGS, dtype="bfloat16"))
    half = json.loads((trained / "loss.json").read_text())["loss"]
    assert half == pytest.approx(brain, rel=0.05)


def assert_explained(
    folder: Path, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> None:
    """Each token is Hugging Face's choice after the same text in float32, near ties left aside."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer
        assert gaps_below_best(model, prompt, answer).max() < NEAR_TIE


def test_the_engine_serves_it(merged: Path, prompts: list[list[int]]) -> None:
    llm = LLM(merged, dtype="float16", max_model_len=1024)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert_explained(merged, prompts, [output.outputs[0].token_ids for output in outputs])


def test_vllm_serves_it(merged: Path, prompts: list[list[int]]) -> None:
    with VllmSession() as session:
        session.start(merged, **EngineSettings("float16", max_model_len=1024).arguments())
        answers = session.generate(prompts, max_tokens=MAX_TOKENS, ignore_eos=True)
    assert_explained(merged, prompts, answers.token_ids)
