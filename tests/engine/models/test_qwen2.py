"""A second family: Qwen2's layers have a bias on queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.engine.tiny_engines import Oracle, nothing_is_held
from utils.engine import LLM, EngineArgs, ModelConfig, SamplingParams, SpeculativeConfig
from utils.engine.config.hf_config import SUPPORTED_ARCHITECTURES
from utils.engine.models.registry import MODELS

PROMPTS = [[3 + (i * 7 + j * j) % 10 for j in range(6 + 3 * i)] for i in range(5)]


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Qwen2ForCausalLM, Path]:
    """Random weights, and biases that matter: Hugging Face makes them 0."""
    folder = tmp_path_factory.mktemp("qwen2")
    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=2,
        tie_word_embeddings=True,
        sliding_window=16,
        use_sliding_window=False,
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(13)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def llm(qwen2: tuple[Qwen2ForCausalLM, Path]) -> LLM:
    return LLM(qwen2[1], max_model_len=64, num_gpu_blocks_override=20, block_size=4)


@torch.inference_mode()
def test_logits_are_huggingfaces(qwen2: tuple[Qwen2ForCausalLM, Path], llm: LLM) -> None:
    for prompt in PROMPTS:
        ids = torch.tensor(prompt)
        ours = llm.model.compute_logits(llm.model(ids, torch.arange(len(prompt))))
        torch.testing.assert_close(ours, qwen2[0](ids[None]).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("guesses", [None, SpeculativeConfig("ngram", 3, prompt_lookup_min=1)])
def test_tokens_are_huggingfaces(
    qwen2: tuple[Qwen2ForCausalLM, Path], llm: LLM, guesses: SpeculativeConfig | None
) -> None:
    """In an engine that preempts, in chunks, with prefix hits and with guesses."""
    oracle = Oracle(qwen2[0])
    changes = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "speculative_config": guesses}
    llm.llm_engine = llm.new_engine(changes)
    params = SamplingParams(temperature=0, max_tokens=14)
    for _ in range(2):
        for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params, False), strict=True):
            assert oracle.explains(prompt, output.outputs[0].token_ids, 14)
    assert llm.prefix_cache_stats.hits and nothing_is_held(llm)


def test_what_is_written_for_llama_refuses_it(qwen2: tuple[Qwen2ForCausalLM, Path]) -> None:
    for options in ({"kernels": "cpp"}, {"tensor_parallel_size": 2}):
        with pytest.raises(ValueError, match="Qwen2ForCausalLM runs in one process"):
            LLM(qwen2[1], device="cpu", max_model_len=64, **options)


def test_a_window_that_is_used_is_refused(tiny_folder: Callable[..., Path]) -> None:
    named = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16}
    unused = ModelConfig.from_pretrained(tiny_folder(**named, use_sliding_window=False))
    assert unused.sliding_window is None
    used = ModelConfig.from_pretrained(tiny_folder(**named, use_sliding_window=True))
    with pytest.raises(ValueError, match="Sliding-window"):
        EngineArgs(max_model_len=64, device="cpu").create_engine_config(used)


def test_each_architecture_has_a_class() -> None:
    assert tuple(MODELS) == SUPPORTED_ARCHITECTURES
    assert ModelConfig(9, 8, 8, 1, 1, 1, 8).architecture in MODELS
