"""How many bytes a model's weights and its KV cache take, from the model's configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class ModelShape:
    """The few numbers of a `config.json` that decide memory.

    Attributes:
        name: how people call the model.
        num_parameters: of the whole model (all experts of a mixture).
        num_hidden_layers: transformer layers.
        hidden_size: width of the residual stream, often written d_model.
        num_attention_heads: query heads per layer.
        num_key_value_heads: KV heads per layer. Equal to the query heads in MHA, 1 in MQA,
            between the two in GQA.
        head_dim: numbers per head.
        mla_latent_size: numbers cached per token and layer under multi-head latent attention
            (the compressed KV plus the shared rotary key), or 0 where K and V are cached.
        layers_per_kv: how many neighbouring layers share one KV cache (cross-layer attention).
        kind: the name of the attention variant.
    """

    name: str
    num_parameters: float
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    mla_latent_size: int = 0
    layers_per_kv: int = 1

    @property
    def kind(self) -> str:
        if self.mla_latent_size:
            return "MLA"
        if self.num_key_value_heads == self.num_attention_heads:
            name = "MHA"
        else:
            name = "MQA" if self.num_key_value_heads == 1 else "GQA"
        return (
            name if self.layers_per_kv == 1 else f"{name}, a cache per {self.layers_per_kv} layers"
        )


# Each row is read from the model's published config.json; Hunyuan-Large from arXiv 2411.02265,
# section 2, DeepSeek-V3 from arXiv 2412.19437, section 4.2.
MODEL_SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("SmolLM2-135M", 134_515_008, 30, 576, 9, 3, 64),
        ModelShape("SmolLM2-1.7B", 1.71e9, 24, 2048, 32, 32, 64),
        ModelShape("Falcon-7B", 7.22e9, 32, 4544, 71, 1, 64),
        ModelShape("Llama-2-7B", 6.74e9, 32, 4096, 32, 32, 128),
        ModelShape("Mistral-7B", 7.25e9, 32, 4096, 32, 8, 128),
        ModelShape("Llama-3.1-8B", 8.03e9, 32, 4096, 32, 8, 128),
        ModelShape("OPT-13B", 12_853_473_280, 40, 5120, 40, 40, 128),
        ModelShape("Llama-2-13B", 13.02e9, 40, 5120, 40, 40, 128),
        ModelShape("Llama-3.1-70B", 70.554e9, 80, 8192, 64, 8, 128),
        ModelShape("Hunyuan-Large", 389e9, 64, 6400, 80, 8, 128, layers_per_kv=2),
        ModelShape("DeepSeek-V3", 671e9, 61, 7168, 128, 128, 128, mla_latent_size=512 + 64),
    )
}


def kv_bytes_per_token(shape: ModelShape, bytes_per_value: float = 2) -> float:
    """Bytes that one token of one sequence occupies in the KV cache.

    2 x layers x kv_heads x head_dim x bytes: one key and one value per layer and KV head. Under
    MLA one latent vector per layer takes their place (DeepSeek-V2, arXiv 2405.04434, section 2.1).
    Layers that share a cache store it once (cross-layer attention, arXiv 2405.12981).
    """
    caches = -(-shape.num_hidden_layers // shape.layers_per_kv)
    if shape.mla_latent_size:
        return caches * shape.mla_latent_size * bytes_per_value
    return 2 * caches * shape.num_key_value_heads * shape.head_dim * bytes_per_value


def weight_bytes(shape: ModelShape, bytes_per_parameter: float = 2) -> float:
    """Bytes of the weights: 2 per parameter in 16 bit, 0.5 in 4 bit."""
    return shape.num_parameters * bytes_per_parameter


def requests_that_fit(
    shape: ModelShape,
    memory_bytes: float,
    num_tokens: int,
    *,
    bytes_per_parameter: float = 2,
    bytes_per_value: float = 2,
    other_share: float = 0.05,
) -> int:
    """How many sequences of `num_tokens` tokens find room beside the weights.

    `other_share` is the part of memory for activations and the runtime itself.
    """
    free = memory_bytes * (1 - other_share) - weight_bytes(shape, bytes_per_parameter)
    return max(0, int(free // (kv_bytes_per_token(shape, bytes_per_value) * num_tokens)))
