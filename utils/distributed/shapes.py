"""Models by the numbers of their `config.json`, and how many parameters each of their parts has."""

from __future__ import annotations

from dataclasses import dataclass

from utils.engine.config.model import ModelConfig


@dataclass(frozen=True)
class Shape:
    """What decides memory and traffic. Fields bear the names of Hugging Face's `config.json`.

    A mixture of experts (MoE) has `num_experts` in its layers from `first_k_dense_replace` on, of
    which each token visits `num_experts_per_tok`, and all tokens the `num_shared_experts`.
    Multi-head latent attention (MLA) is told by a `kv_lora_rank`: one vector of
    `kv_lora_rank + qk_rope_head_dim` numbers is cached for all heads (DeepSeek-V2, arXiv
    2405.04434, section 2.1). `head_dim` is then that of the part of a key that is not rotated.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0
    first_k_dense_replace: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @classmethod
    def of(cls, config: ModelConfig, name: str = "model") -> Shape:
        """The shape of a model of the course's engine."""
        return cls(
            name,
            config.num_hidden_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.vocab_size,
            config.tie_word_embeddings,
        )

    def is_moe(self, layer: int) -> bool:
        return self.num_experts > 0 and layer >= self.first_k_dense_replace

    @property
    def is_mla(self) -> bool:
        return self.kv_lora_rank > 0


# Each row is read from the model's published config.json.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, tie_word_embeddings=True),
        Shape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256),
        Shape("Llama-3-70B", 80, 8192, 28672, 64, 8, 128, 128256),
        Shape("Llama-3.1-405B", 126, 16384, 53248, 128, 8, 128, 128256),
        Shape(
            "Mixtral-8x7B",
            32,
            4096,
            14336,
            32,
            8,
            128,
            32000,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=14336,
        ),
        Shape(
            "DeepSeek-V3",
            61,
            7168,
            18432,
            128,
            128,
            128,
            129280,
            num_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            num_shared_experts=1,
            first_k_dense_replace=3,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
    )
}


def attention_parameters(shape: Shape, num_heads: int, num_kv_heads: int) -> int:
    """Parameters of attention in one layer, with so many of the heads. MLA has no KV heads.

    What a rank needs whole, however few heads it has, is in it: MLA's projections to the latent
    vectors, and their norms.
    """
    hidden = shape.hidden_size
    if not shape.is_mla:
        return hidden * shape.head_dim * (2 * num_heads + 2 * num_kv_heads)
    latent = shape.kv_lora_rank + shape.qk_rope_head_dim
    whole = hidden * (shape.q_lora_rank + latent) + shape.q_lora_rank + shape.kv_lora_rank
    per_head = (
        shape.q_lora_rank * (shape.head_dim + shape.qk_rope_head_dim)
        + shape.kv_lora_rank * (shape.head_dim + shape.v_head_dim)
        + shape.v_head_dim * hidden
    )
    return whole + num_heads * per_head


def mlp_parameters(shape: Shape, width: int) -> int:
    """Parameters of a SwiGLU with so many columns: gate, up and down."""
    return 3 * shape.hidden_size * width


def norm_and_router_parameters(shape: Shape, layer: int) -> int:
    """What every rank that has the layer holds whole: two norms, and the router of an MoE."""
    router = shape.num_experts * shape.hidden_size if shape.is_moe(layer) else 0
    return 2 * shape.hidden_size + router


def num_parameters(shape: Shape) -> int:
    """Parameters of the whole model; an MoE with all its experts."""
    total = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    total += shape.hidden_size  # the last norm
    for layer in range(shape.num_hidden_layers):
        total += attention_parameters(shape, shape.num_attention_heads, shape.num_key_value_heads)
        total += norm_and_router_parameters(shape, layer)
        if shape.is_moe(layer):
            experts = shape.num_experts + shape.num_shared_experts
            total += experts * mlp_parameters(shape, shape.moe_intermediate_size)
        else:
            total += mlp_parameters(shape, shape.intermediate_size)
    return total


def active_parameters(shape: Shape) -> int:
    """Parameters that one token is multiplied with: of an MoE, only the experts that it visits.

    The table of embeddings is looked up, not multiplied with; the output layer is.
    """
    idle = 0
    for layer in range(shape.num_hidden_layers):
        if shape.is_moe(layer):
            unvisited = shape.num_experts - shape.num_experts_per_tok
            idle += unvisited * mlp_parameters(shape, shape.moe_intermediate_size)
    embeddings = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    return num_parameters(shape) - idle - embeddings
