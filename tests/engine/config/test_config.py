"""`config.json` is read in both dialects, and what would give wrong numbers is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from utils.engine import LLM, EngineArgs, EngineConfig, ModelConfig


def test_reads_the_bundled_model(model_path: Path) -> None:
    config = ModelConfig.from_pretrained(model_path)
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.rope_theta, config.max_position_embeddings) == (100000.0, 8192)
    assert (config.tie_word_embeddings, config.eos_token_ids) == (True, (2,))
    assert config.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
        {"rope_parameters": "REMOVE", "rope_theta": 777.0},
        {"rope_parameters": "REMOVE", "rope_theta": 777.0, "rope_scaling": None},
    ],
)
def test_rope_theta_in_both_dialects(tiny_folder: Callable[..., Path], changes: dict) -> None:
    assert ModelConfig.from_pretrained(tiny_folder(**changes)).rope_theta == 777.0


def test_defaults_of_what_may_be_absent(tiny_folder: Callable[..., Path]) -> None:
    config = ModelConfig.from_pretrained(
        tiny_folder(head_dim=None, num_key_value_heads=None, tie_word_embeddings="REMOVE")
    )
    assert (config.head_dim, config.num_key_value_heads) == (12, 4)
    assert not config.tie_word_embeddings


def test_eos_from_generation_config_first(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder(eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert ModelConfig.from_pretrained(folder).eos_token_ids == (7, 8)
    (folder / "generation_config.json").unlink()
    assert ModelConfig.from_pretrained(folder).eos_token_ids == (5,)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*runs LlamaForCausalLM, Mis"),
        ({"architectures": None}, "Unsupported architecture none named"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8}}, "llama3"),
        ({"rope_parameters": "REMOVE", "rope_scaling": {"type": "linear", "factor": 2}}, "linear"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": "REMOVE"}, "lacks hidden_size"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "odd"),
    ],
)
def test_refuses_what_it_cannot_run(
    tiny_folder: Callable[..., Path], changes: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_pretrained(tiny_folder(**changes))


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        ModelConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        ModelConfig.from_pretrained(tmp_path)


MODEL = ModelConfig(99, 48, 80, 3, 4, 2, 12, max_position_embeddings=256, dtype=torch.bfloat16)


def created(
    model: ModelConfig, max_model_len: int | None, dtype: str = "auto", device: str = "cpu"
) -> EngineConfig:
    args = EngineArgs(max_model_len=max_model_len, dtype=dtype, device=device)
    return args.create_engine_config(model)


def test_engine_config() -> None:
    config = created(MODEL, None)
    assert (config.max_model_len, config.dtype) == (256, torch.bfloat16)
    assert config.device == torch.device("cpu")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((None, "float8", "cpu"), "Unknown dtype 'float8'. Expected auto"),
        ((None, "auto", "quantum"), "Unknown device 'quantum'"),
        ((257, "auto", "cpu"), "expected 2 to 256"),
        ((1, "auto", "cpu"), "expected 2 to 256"),
    ],
)
def test_engine_config_refuses(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        created(MODEL, *arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cuda_without_a_gpu() -> None:
    with pytest.raises(ValueError, match="no CUDA GPU"):
        created(MODEL, None, "auto", "cuda")


def test_limits(model_path: Path) -> None:
    with pytest.raises(ValueError, match="max_num_seqs must be at least 1"):
        LLM(model_path, max_num_seqs=0)
    with pytest.raises(ValueError, match="must be at least max_num_seqs=64"):
        LLM(model_path, max_num_batched_tokens=63)
    with pytest.raises(ValueError, match="more than the 64 bits"):
        LLM(model_path, seed=1 << 63)


def test_sliding_window(tiny_folder: Callable[..., Path]) -> None:
    model = ModelConfig.from_pretrained(tiny_folder(sliding_window=100))
    with pytest.raises(ValueError, match="Pass max_model_len=100 or less"):
        created(model, None)
    assert created(model, 100).max_model_len == 100
