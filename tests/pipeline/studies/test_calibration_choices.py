"""The kinds of calibration data that notebook 12 compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from utils.pipeline.stages.folders import TRAIN_FILE
from utils.pipeline.studies.calibration_choices import CHOICES, choice_windows, layer_inputs
from utils.pipeline.task.data import write_jsonl
from utils.pipeline.task.messages import generate


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / TRAIN_FILE, generate("train", 400))
    return folder


def test_windows_hold_what_the_choice_says(
    model_path: Path, data_dir: Path, tokenizer: Any
) -> None:
    texts = {}
    for choice in CHOICES:
        windows = choice_windows(choice, model_path, data_dir, 12)
        texts[choice] = "\n".join(map(tokenizer.decode, windows))
    assert texts["customers"].count('"order_id": ') > 20 and "Emma" not in texts["customers"]
    assert "Emma" in texts["novel"] and '"order_id"' not in texts["novel"]
    assert '"order_id": ' in texts["customers and novel"]
    assert "Emma" in texts["customers and novel"]
    assert "order_id" not in texts["random tokens"] and "Emma was" not in texts["random tokens"]


@pytest.mark.parametrize("choice", CHOICES)
def test_small_sizes_begin_the_large_ones(model_path: Path, data_dir: Path, choice: str) -> None:
    many = choice_windows(choice, model_path, data_dir, 10)
    assert [len(window) for window in many] == [512] * 10
    assert len({tuple(window) for window in many}) == 10
    assert choice_windows(choice, model_path, data_dir, 10) == many
    assert choice_windows(choice, model_path, data_dir, 10, seed=1) != many


@pytest.mark.parametrize(
    ("choice", "num_windows", "message"),
    [
        ("poems", 2, "Unknown choice 'poems'"),
        ("novel", 0, "expected at least 1"),
        ("novel", 60, "not 60|Too little calibration data"),
    ],
)
def test_refuses(
    model_path: Path, data_dir: Path, choice: str, num_windows: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choice_windows(choice, model_path, data_dir, num_windows)


def test_inputs_of_a_layer(hf_model: Any) -> None:
    windows, block = [[1, 2, 3], [4, 5]], hf_model.model.layers[1]
    found = layer_inputs(hf_model, 1, ["mlp.gate_proj", "mlp.down_proj"], windows)
    assert found["mlp.gate_proj"].shape == (5, hf_model.config.hidden_size)
    assert found["mlp.down_proj"].shape == (5, hf_model.config.intermediate_size)
    # down_proj is given what comes out of the rest of the MLP.
    x = found["mlp.gate_proj"].to(hf_model.dtype)
    with torch.inference_mode():
        hidden = block.mlp.act_fn(block.mlp.gate_proj(x)) * block.mlp.up_proj(x)
    torch.testing.assert_close(found["mlp.down_proj"], hidden.float(), rtol=1e-3, atol=1e-4)
    assert len(hf_model.model.layers) == hf_model.config.num_hidden_layers
    assert not block.mlp.gate_proj._forward_pre_hooks
