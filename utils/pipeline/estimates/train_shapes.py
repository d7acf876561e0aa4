"""Shapes of the models that are trained: which linear layers, how wide, how many parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL_LINEAR = ATTENTION + MLP


@dataclass(frozen=True)
class TrainShape:
    """The numbers of a Llama-like `config.json` that decide how much memory training takes."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool

    @classmethod
    def from_config(cls, config: Any, name: str = "") -> TrainShape:
        """Read the shape from a transformers config of the Llama family (Mistral included)."""
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            name=name or config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=head_dim,
            tie_word_embeddings=config.tie_word_embeddings,
        )

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in_features, out_features) of the seven linear layers of one decoder layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, self.q_size),
            "k_proj": (hidden, self.kv_size),
            "v_proj": (hidden, self.kv_size),
            "o_proj": (self.q_size, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    def linear_parameters(self) -> int:
        """Weights in the linear layers of all decoder layers: what QLoRA quantizes."""
        return self.num_hidden_layers * sum(i * o for i, o in self.linears().values())

    def other_parameters(self) -> int:
        """Embedding, output layer (if it is not the embedding) and norms: they stay in 16 bit."""
        tables = 1 if self.tie_word_embeddings else 2
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return tables * self.vocab_size * self.hidden_size + norms

    def num_parameters(self) -> int:
        """All weights of the model."""
        return self.linear_parameters() + self.other_parameters()

    def lora_parameters(self, r: int, target_modules: Sequence[str] = ALL_LINEAR) -> int:
        """Trained numbers: A has r x in_features, B has out_features x r, for each target.

        Raises:
            ValueError: r below 1, or a target that no decoder layer has.
        """
        linears = self.linears()
        unknown = sorted(set(target_modules) - set(linears))
        if r < 1 or unknown:
            raise ValueError(
                f"r must be at least 1, got {r}; target_modules must be among "
                f"{', '.join(linears)}; unknown: {unknown or 'none'}."
            )
        return self.num_hidden_layers * sum(r * sum(linears[name]) for name in set(target_modules))


# From the models' published config.json. Mistral-7B is mistralai/Mistral-7B-Instruct-v0.3.
TRAIN_SHAPES = {
    shape.name: shape
    for shape in (
        TrainShape("SmolLM2-135M", 49152, 576, 1536, 30, 9, 3, 64, True),
        TrainShape("SmolLM2-1.7B", 49152, 2048, 8192, 24, 32, 32, 64, True),
        TrainShape("Mistral-7B", 32768, 4096, 14336, 32, 32, 8, 128, False),
    )
}
