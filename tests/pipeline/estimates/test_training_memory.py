"""Memory of training: the formulas against real tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from utils.pipeline.estimates.measure_memory import count_step, model_bytes
from utils.pipeline.estimates.train_shapes import ALL_LINEAR, ATTENTION, TRAIN_SHAPES, TrainShape
from utils.pipeline.estimates.training_memory import (
    METHODS,
    nf4_bits_per_weight,
    nf4_bytes,
    training_memory,
)
from utils.pipeline.stages.finetune import TrainSettings, add_lora, load_nf4
from utils.sim.memory import MODEL_SHAPES

SETTINGS = TrainSettings(steps=1, batch_size=1, learning_rate=1e-3, lora_r=8, lora_alpha=16)
IDS = torch.arange(100, 164).reshape(2, 32)


@pytest.fixture
def build(small_model_dir: Path) -> Callable[[str], Any]:
    def build(method: str) -> Any:
        if method == "qlora":
            model = load_nf4(small_model_dir, SETTINGS)
            model.set_attn_implementation("sdpa")
        else:
            model = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.bfloat16)
        return model.train() if method == "full" else add_lora(model, SETTINGS).train()

    return build


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_formula_meets_the_tensors(
    method: Any, checkpointing: bool, build: Callable[[str], Any], small_model_dir: Path
) -> None:
    model = build(method)
    shape = TrainShape.from_config(AutoConfig.from_pretrained(small_model_dir))
    memory = training_memory(shape, method, IDS.numel(), r=8, checkpointing=checkpointing)
    assert model_bytes(model) == memory.weights
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    before = [p.detach().clone() for p in model.parameters()]
    counted = count_step(model, IDS)
    assert counted["weights"] == memory.weights
    assert counted["gradients"] == memory.gradients
    assert counted["optimizer"] == memory.optimizer
    # Not in the formula: what is not per token and width, such as rotary angles.
    assert counted["activations"] == pytest.approx(memory.activations + memory.logits, rel=0.005)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_recomputed_is_one_layer() -> None:
    shape = TRAIN_SHAPES["SmolLM2-135M"]
    short = TrainShape(**{**vars(shape), "num_hidden_layers": 1})
    plain = training_memory(short, "full", 100)
    last_norm = 100 * (4 + 2 + 2) * shape.hidden_size
    again = training_memory(shape, "full", 100, checkpointing=True)
    assert again.recomputed == plain.activations - last_norm
    assert plain.recomputed == 0


@pytest.mark.parametrize("name", TRAIN_SHAPES)
def test_shapes_agree_with_the_calculators(name: str) -> None:
    """The other list of shapes, of notebook 02, was read from the same files."""
    shape, other = TRAIN_SHAPES[name], MODEL_SHAPES[name]
    assert shape.num_parameters() == pytest.approx(other.num_parameters, rel=0.002)
    for field in (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ):
        assert getattr(shape, field) == getattr(other, field)


def test_shape_is_read_from_a_config(model_path: Path) -> None:
    config = AutoConfig.from_pretrained(model_path)
    assert TrainShape.from_config(config, "SmolLM2-135M") == TRAIN_SHAPES["SmolLM2-135M"]


def test_published_numbers() -> None:
    assert TRAIN_SHAPES["Mistral-7B"].num_parameters() == 7_248_023_552
    # Dettmers et al., section 3: 0.5 bits for the scales become 0.127 by double quantization.
    assert nf4_bits_per_weight(False) == 4.5
    assert nf4_bits_per_weight() == pytest.approx(4.127, abs=5e-4)
    full = training_memory(TRAIN_SHAPES["Mistral-7B"], "full", 0)
    assert full.total == 16 * TRAIN_SHAPES["Mistral-7B"].num_parameters()  # ZeRO, section 3.1


def test_large_tensors_have_the_stated_bits() -> None:
    for double in (False, True):
        bits = 8 * nf4_bytes(2**24, double) / 2**24
        assert bits == pytest.approx(nf4_bits_per_weight(double), rel=1e-3)


def test_lora_parameters() -> None:
    shape = TRAIN_SHAPES["Mistral-7B"]
    assert shape.lora_parameters(16) == 41_943_040  # what peft prints for all linear layers
    assert shape.lora_parameters(16, ["q_proj", "v_proj"]) == 6_815_744
    assert shape.lora_parameters(8, ATTENTION) * 2 == shape.lora_parameters(16, ATTENTION)
    memory = training_memory(shape, "lora", 0, r=8, target_modules=ATTENTION, paged_optimizer=True)
    assert memory.optimizer == 0
    assert memory.gradients == 2 * shape.lora_parameters(8, ATTENTION)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dora"}, "method must be one of full, lora, qlora"),
        ({"num_tokens": -1}, "must not be negative"),
        ({"num_predicted": 101}, "must lie between 0 and num_tokens"),
        ({"method": "lora", "r": 0}, "r must be at least 1"),
        ({"method": "lora", "target_modules": ["query"]}, "unknown: \\['query'\\]"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_memory(
            **{"shape": TRAIN_SHAPES["Mistral-7B"], "method": "full", "num_tokens": 100} | arguments
        )


def test_all_linear_are_the_linears() -> None:
    assert set(ALL_LINEAR) == set(TRAIN_SHAPES["Mistral-7B"].linears())
