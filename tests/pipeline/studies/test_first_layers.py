"""A model's first layers compute what they compute in the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from utils.hub import load_hf_model, load_tokenizer
from utils.pipeline.studies.first_layers import layers_output, save_first_layers

TEXT = "Water boils at 100 degrees."


def test_they_give_what_they_give_in_the_whole_model(model_path: Path, tmp_path: Path) -> None:
    folder = save_first_layers(model_path, tmp_path / "two", 2)
    token_ids = load_tokenizer(folder)(TEXT).input_ids
    assert token_ids == load_tokenizer(model_path)(TEXT).input_ids
    small, whole = (load_hf_model(path, dtype=torch.float32) for path in (folder, model_path))
    assert len(small.model.layers) == 2
    with torch.inference_mode():
        states = whole(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    assert torch.allclose(layers_output(small, token_ids), states[2][0], atol=1e-4)
    assert not torch.allclose(layers_output(small, token_ids), states[1][0], atol=1e-1)


@pytest.mark.parametrize("num_layers", [0, 31])
def test_a_number_of_layers_that_it_has_not(
    num_layers: int, model_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"num_layers={num_layers}: expected 1 to 30"):
        save_first_layers(model_path, tmp_path / "none", num_layers)
