"""What the throughput benchmark computes from its measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.limits import least_seconds
from benchmarks.throughput import in_words, shared_prefix, sharegpt, summary
from utils.engine import LlamaForCausalLM, ModelConfig
from utils.viz.model.roofline import Machine


def run(seconds: float, *tokens: list[int]) -> dict[str, Any]:
    return {"seconds": seconds, "tokens": list(tokens)}


def test_summary_takes_ratios_within_rounds() -> None:
    """The machine is ten times slower in the second round, and ours twice as fast in each."""
    runs = [
        {"ours": run(1.0, [1, 2], [3]), "vLLM": run(2.0, [1, 2], [4])},
        {"ours": run(10.0, [1, 2], [3]), "vLLM": run(20.0, [1, 2], [3])},
        {"ours": run(1.0, [1, 2], [3]), "vLLM": run(3.0, [1, 2], [3])},
    ]
    result = summary(runs, num_tokens=30)
    assert result["vLLM"]["ours_is_faster"] == 2.0
    assert result["vLLM"]["tokens_per_s"] == 30 / 3.0
    assert (result["vLLM"]["same_as_ours"], result["vLLM"]["answers"]) == (1, 2)
    assert result["ours"]["ours_is_faster"] == 1.0
    assert result["ours"]["same_as_ours"] == 2


def test_an_engine_that_fails_is_reported_and_harms_no_other() -> None:
    runs = [{"ours": run(1.0, [1]), "HF": {"error": "no memory"}, "vLLM": run(2.0, [1])}]
    result = summary(runs, num_tokens=1)
    assert result["HF"] == {"error": "no memory"}
    assert result["vLLM"]["ours_is_faster"] == 2.0


def test_others_are_reported_if_ours_fails() -> None:
    result = summary([{"ours": {"error": "no memory"}, "HF": run(2.0, [1])}], num_tokens=1)
    assert result["ours"] == {"error": "no memory"}
    assert result["HF"] == {"tokens_per_s": 0.5, "seconds": [2.0]}
    assert "HF 0 tok/s" in in_words(result)


def test_least_flops_are_those_of_the_weights(model_path: Path) -> None:
    """Where arithmetic decides, time is two FLOPs per weight and token, and those of attention."""
    config = ModelConfig.from_pretrained(model_path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    per_layer = sum(p.numel() for p in model.model.layers[0].parameters() if p.ndim == 2)
    weights = config.num_hidden_layers * per_layer
    head = model.lm_head.weight.numel()
    workload = shared_prefix(4, ())
    prompts, max_tokens = workload.prompts, workload.max_tokens
    flops = least_seconds(prompts, max_tokens, config, Machine(1.0, float("inf")), 4, shared=192)
    prompt_tokens, new_tokens = 192 + 4 * 64, 4 * 63
    products = 2 * weights * (prompt_tokens + new_tokens) + 2 * head * 4 * 64
    width = config.num_attention_heads * config.head_dim * config.num_hidden_layers
    decode_keys = 4 * sum(256 + step for step in range(1, 64))
    attention = 4 * width * (128 * prompt_tokens + decode_keys)
    assert flops == pytest.approx(products + attention, rel=1e-9)


def test_least_bytes_are_weights_and_cache(model_path: Path) -> None:
    """Where memory decides, each step reads all weights, and the keys and values kept so far."""
    config = ModelConfig.from_pretrained(model_path)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    matrices = sum(
        p.numel() for p in model.parameters() if p.ndim == 2
    )  # the embedding is the head
    workload = shared_prefix(2, ())
    prompts, max_tokens = workload.prompts, workload.max_tokens
    machine = Machine(float("inf"), 1.0)
    num_bytes = least_seconds(prompts, max_tokens, config, machine, 2, shared=192)
    per_token = config.kv_bytes_per_token(torch.bfloat16)
    cached = sum(192 + 2 * (64 + step) for step in range(1, 64))
    assert num_bytes == pytest.approx(64 * 2 * matrices + per_token * cached, rel=1e-9)


def test_workloads_fit_the_engines() -> None:
    workload = sharegpt(32, 8, ())
    assert len(workload.prompts) == len(workload.max_tokens) == 32
    assert len(set(map(len, workload.prompts))) > 16
    assert all(
        p and n > 0 and len(p) + n <= 1536
        for p, n in zip(workload.prompts, workload.max_tokens, strict=True)
    )
    first, second = shared_prefix(2, ()).prompts
    assert first[:192] == second[:192] and first[192:] != second[192:]
