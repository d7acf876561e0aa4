"""EAGLE's layer: it guesses the model's next hidden state from its last one and the newest token.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
https://arxiv.org/abs/2401.15077, section 4.1. In vLLM: `model_executor/models/llama_eagle.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from utils.engine.attention.batch import Batch
from utils.engine.config.model import ModelConfig
from utils.engine.models.llama import DEFAULT_OPS, LlamaDecoderLayer, LlamaOps, rotary_cos_sin
from utils.engine.models.weights import fill_from_safetensors


class EagleLlamaModel(nn.Module):
    """One decoder layer, and a product that makes its input of two vectors.

    Token `t` follows the token before it, for which the model computed the hidden state `h`. From
    `h` and the embedding of `t` the layer computes what the model would make of `t`, or nearly so.
    The model's own `lm_head` turns that into scores for the token after `t`.

    Embedding and head are the model's own. The layer has no norm at its input, as in the paper's
    code, and none at its end: `h` is what the model's last norm gave, and so is what is guessed.
    """

    def __init__(self, config: ModelConfig, ops: LlamaOps = DEFAULT_OPS) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer = LlamaDecoderLayer(config, 0, ops)
        layer.input_layernorm = nn.Identity()  # type: ignore[assignment]
        self.layers = nn.ModuleList([layer])

    def forward(self, embedded: Tensor, before: Tensor, positions: Tensor, batch: Batch) -> Tensor:
        """Guess the model's hidden states of some tokens.

        Args:
            embedded: [T, hidden], the tokens in the model's own embedding.
            before: [T, hidden], the hidden state of the token before each: the model's, or where
                that is a guess itself, what this returned for it.
            positions: [T], within each request.
            batch: whose tokens these are, and where the keys and values before them lie.

        Returns:
            [T, hidden], ready for the model's `lm_head`.
        """
        config = self.config
        cos, sin = rotary_cos_sin(positions, config.head_dim, config.rope_theta, embedded.dtype)
        x = self.fc(torch.cat([embedded, before], dim=-1))
        hidden: Tensor = self.layers[0](x, cos, sin, batch)
        return hidden


def load_eagle(
    path: str | Path,
    target: ModelConfig,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    ops: LlamaOps = DEFAULT_OPS,
) -> EagleLlamaModel:
    """Load a layer that was trained for a model of this shape.

    Raises:
        ValueError: the folder holds no such layer, or one for another model.
    """
    config = ModelConfig.from_pretrained(path)
    for name in ("vocab_size", "hidden_size", "rope_theta"):
        if getattr(config, name) != getattr(target, name):
            raise ValueError(
                f"The EAGLE layer in {path} was trained for a model with {name}="
                f"{getattr(config, name)}, and this one has {getattr(target, name)}. Train it for "
                f"this model."
            )
    if config.num_hidden_layers != 1:
        raise ValueError(
            f"{path} holds {config.num_hidden_layers} layers. Expected one, as EAGLE has."
        )
    with torch.device("meta"):
        model = EagleLlamaModel(config, ops)
    model = model.to(dtype).to_empty(device=device).requires_grad_(False)
    fill_from_safetensors(model, Path(path))
    return model
