"""What breaks, and what does not; refusals against vLLM's own."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from utils.distributed.hardware import cluster
from utils.distributed.layouts import Layout
from utils.distributed.problems import find_problems
from utils.distributed.shapes import SHAPES

H100 = cluster("H100", "NVLink 4", "InfiniBand NDR")
SLOW = cluster("H100", "PCIe 4 x16", "Ethernet 10G", gpus_per_server=1)


def kinds(model: str, layout: Layout, where=H100, requests: int = 8, context: int = 1024):
    return [
        (p.kind, p.sentence) for p in find_problems(SHAPES[model], layout, where, requests, context)
    ]


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("Llama-3-8B", Layout()),
        ("Llama-3-70B", Layout(4)),
        ("Llama-3-70B", Layout(1, 4)),
        ("Llama-3-70B", Layout(4, 1, 2)),
        ("Mixtral-8x7B", Layout(1, 1, 4, True)),
        ("SmolLM2-135M", Layout(1, 1, 8)),
    ],
    ids=str,
)
def test_nothing_breaks(model: str, layout: Layout) -> None:
    assert kinds(model, layout) == []


@pytest.mark.parametrize(
    ("model", "layout", "kind", "words"),
    [
        ("SmolLM2-135M", Layout(2), "refused", "9 query heads cannot be divided by TP=2"),
        ("SmolLM2-135M", Layout(4, uneven=True), "refused", "3 KV heads cannot be dealt out to 4"),
        ("Llama-3-8B", Layout(1, 33), "refused", "32 layers are fewer than PP=33"),
        ("Llama-3-8B", Layout(1, 1, 2, True), "refused", "has no experts"),
        ("Mixtral-8x7B", Layout(1, 1, 16, True), "refused", "8 experts are fewer than the 16"),
        ("Mixtral-8x7B", Layout(1, 1, 3), "refused", "14336 columns cannot be divided by TP x DP"),
        ("Llama-3-70B", Layout(), "does not fit", "131 GiB of weights"),
        ("Llama-3-70B", Layout(16), "waste", "each head is kept 2 times"),
        ("DeepSeek-V3", Layout(16, 2), "waste", "MLA has one cached vector"),
        ("SmolLM2-135M", Layout(2, uneven=True), "waste", "some have 2, some 1"),
        ("Llama-3-8B", Layout(1, 3), "waste", "32 layers in 3 stages: some have 11, some 10"),
        ("Mixtral-8x7B", Layout(1, 1, 3, True), "waste", "8 experts on 3 ranks"),
    ],
    ids=str,
)
def test_each_problem_is_told(model: str, layout: Layout, kind: str, words: str) -> None:
    found = kinds(model, layout)
    assert any(k == kind and words in sentence for k, sentence in found), found
    if kind == "refused":
        assert {k for k, _ in found} == {"refused"}


def test_the_cache_does_not_fit() -> None:
    ((kind, sentence),) = kinds("Llama-3-8B", Layout(), requests=64, context=16384)
    assert kind == "does not fit"
    assert "64 x 16,384 tokens" in sentence and "which is 29 of the requests" in sentence


def test_the_bubble() -> None:
    ((kind, sentence),) = kinds("Llama-3-8B", Layout(1, 8), requests=2)
    assert kind == "waste" and "2 requests for 8 stages" in sentence and "25%" in sentence


def test_slow_links() -> None:
    """The same link that is too slow to add up over is fast enough to pass on over."""
    assert kinds("Llama-3-70B", Layout(1, 4), SLOW) == []
    ((kind, sentence),) = kinds("Llama-3-70B", Layout(4), SLOW)
    assert kind == "slow" and "Adding up over Ethernet 10G" in sentence
    found = kinds("Mixtral-8x7B", Layout(1, 1, 4, True), SLOW, requests=64)
    assert [kind for kind, _ in found] == ["slow"] and "experts and back" in found[0][1]


def test_every_layout_has_an_answer() -> None:
    """Thousands of combinations, as the widget offers them: no error, and whole sentences."""
    sizes, sentences = (1, 3, 8, 32), set()
    for model, (tp, pp, dp) in itertools.product(SHAPES, itertools.product(sizes, repeat=3)):
        for ep, requests in itertools.product((False, True), (1, 1024)):
            found = kinds(model, Layout(tp, pp, dp, ep), SLOW, requests, 4096)
            sentences |= {sentence for _, sentence in found}
    assert all(sentence.endswith(".") for sentence in sentences) and len(sentences) > 100


@pytest.mark.parametrize("tensor_parallel_size", [1, 2, 3, 4, 9])
def test_refusals_of_heads_are_vllms(tensor_parallel_size: int, tmp_path: Path) -> None:
    config = pytest.importorskip("vllm.config")
    shape = SHAPES["SmolLM2-135M"]
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "dtype": "float32",
                "hidden_size": shape.hidden_size,
                "intermediate_size": shape.intermediate_size,
                "num_hidden_layers": 2,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "vocab_size": 100,
                "max_position_embeddings": 64,
            }
        )
    )
    model = config.ModelConfig(str(tmp_path), tokenizer=str(tmp_path), skip_tokenizer_init=True)
    parallel = config.ParallelConfig(
        tensor_parallel_size=tensor_parallel_size, distributed_executor_backend="mp"
    )
    refused = False
    try:
        model.verify_with_parallel_config(parallel)
    except ValueError as error:
        assert "must be divisible" in str(error)
        refused = True
    ours = [sentence for _, sentence in kinds("SmolLM2-135M", Layout(tensor_parallel_size))]
    assert refused == any("query heads cannot be divided" in sentence for sentence in ours)
