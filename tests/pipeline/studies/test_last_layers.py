"""The last layers alone give the loss of the whole model."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from utils.pipeline.stages.packed_batches import ATTENTION, Tokens, answer_loss, pack
from utils.pipeline.studies.last_layers import keep_last_layers, last_layers_loss


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(ATTENTION)
    return model


@pytest.mark.parametrize("keep", [1, 2])
def test_loss_is_that_of_the_whole_model(keep: int) -> None:
    model = tiny()
    batches = [
        pack([Tokens([5, 6, 7, 8], [9, 10, 2]), Tokens([5, 6, 11], [12, 2])]),
        pack([Tokens([1, 2, 3], [4, 2])]),
    ]
    with torch.no_grad():
        whole = [answer_loss(model, batch) for batch in batches]
    handed_up = keep_last_layers(model, batches, keep)
    assert len(model.model.layers) == keep
    alone = [last_layers_loss(model, *each) for each in zip(batches, handed_up, strict=True)]
    torch.testing.assert_close(torch.stack(alone), torch.stack(whole))
    alone[0].backward()
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("keep", [0, 3])
def test_some_layers_must_go_and_some_must_stay(keep: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 2 of the model's 3 layers"):
        keep_last_layers(tiny(), [], keep)
