"""The Llama forward pass on a flat batch of tokens: RMSNorm, RoPE, GQA, SwiGLU.

All tokens of all requests go through the linear layers as one `[num_tokens, hidden]` tensor. Only
attention looks at requests. Shapes: T tokens, H query heads, H_kv key/value heads, D head_dim,
I intermediate_size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.engine.attention.attention import attention
from utils.engine.attention.batch import Batch, ContiguousBatch
from utils.engine.attention.ops import Attention, PagedAttention, ReshapeAndCache
from utils.engine.config.model import ModelConfig


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each token's vector to root mean square 1, then by `weight`: [T, hidden] as `x`.

    The statistics are taken in float32 whatever the dtype of `x`. Zhang & Sennrich 2019, "RMSNorm".
    """
    x32 = x.float()
    variance = x32.square().mean(dim=-1, keepdim=True)
    return weight * (x32 * torch.rsqrt(variance + eps)).to(x.dtype)


def rotary_cos_sin(
    positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation angles: [T] positions -> two tensors [T, D].

    Pair `i` of a head turns by `position * theta ** (-2i / D)`. The angles of the D/2 pairs stand
    twice, once for each half of the head. Su et al. 2021, "RoFormer", section 3.2.
    """
    pair = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    inverse_frequency = 1.0 / theta ** (pair / head_dim)  # [D / 2]
    angles = positions[:, None].float() * inverse_frequency  # [T, D / 2]
    angles = torch.cat((angles, angles), dim=-1)  # [T, D]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of numbers by its token's angle.

    As in Hugging Face's weights, number `i` is paired with number `i + D/2`.

    Args:
        x: [T, heads, D]
        cos: [T, D]
        sin: [T, D]

    Returns:
        [T, heads, D]
    """
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)  # each pair turned by 90 degrees
    return x * cos[:, None] + turned * sin[:, None]


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's gate, `silu(gate) * up`: [T, 2 * I] -> [T, I]. Shazeer 2020, "GLU Variants"."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@dataclass(frozen=True)
class LlamaOps:
    """The functions the model is built from. Pass your own: `LlamaOps(rms_norm=mine)`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    apply_rotary: Callable[[Tensor, Tensor, Tensor], Tensor] = apply_rotary
    attention: Attention = attention
    silu_and_mul: Callable[[Tensor], Tensor] = silu_and_mul
    paged_attention: PagedAttention | None = None
    reshape_and_cache: ReshapeAndCache | None = None


DEFAULT_OPS = LlamaOps()


class AllLayers(Protocol):
    """Runs all layers of a model in one call: kernels in C++, or a CUDA graph."""

    def takes(self, batch: Batch) -> bool:
        """Whether it can run this batch."""

    def __call__(
        self, model: LlamaModel, input_ids: Tensor, positions: Tensor, batch: Batch
    ) -> Tensor:
        """What the last layer makes of these tokens: [T, hidden]."""


class RMSNorm(nn.Module):
    def __init__(self, config: ModelConfig, ops: LlamaOps) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.eps = config.rms_norm_eps
        self.rms_norm = ops.rms_norm

    def forward(self, x: Tensor) -> Tensor:
        return self.rms_norm(x, self.weight, self.eps)


class LlamaAttention(nn.Module):
    """Attention with its projections. Q, K and V come from one matrix product, not from three."""

    def __init__(self, config: ModelConfig, layer: int, ops: LlamaOps) -> None:
        super().__init__()
        self.layer, self.ops = layer, ops
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.scale = config.head_dim, config.head_dim**-0.5
        self.num_qk_heads = self.num_heads + self.num_kv_heads
        qkv_size = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, qkv_size, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        num_tokens = x.shape[0]
        qkv = self.qkv_proj(x).view(num_tokens, -1, self.head_dim)  # [T, H + 2 * H_kv, D]
        # Queries and keys turn by the same angles, so one call rotates both. Values do not turn.
        qk = self.ops.apply_rotary(qkv[:, : self.num_qk_heads], cos, sin)
        query, key = qk[:, : self.num_heads], qk[:, self.num_heads :]
        value = qkv[:, self.num_qk_heads :]

        attended = batch.attend(self.layer, query, key, value, self.ops, self.scale)  # [T, H, D]
        return self.o_proj(attended.reshape(num_tokens, -1))


class LlamaMLP(nn.Module):
    """SwiGLU. Gate and up come from one matrix product, not from two."""

    def __init__(self, config: ModelConfig, ops: LlamaOps) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.silu_and_mul = ops.silu_and_mul

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.silu_and_mul(self.gate_up_proj(x)))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int, ops: LlamaOps) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config, ops)
        self.self_attn = LlamaAttention(config, layer, ops)
        self.post_attention_layernorm = RMSNorm(config, ops)
        self.mlp = LlamaMLP(config, ops)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, batch)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, config: ModelConfig, ops: LlamaOps) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, i, ops) for i in layers)
        self.norm = RMSNorm(config, ops)
        self.head_dim, self.rope_theta = config.head_dim, config.rope_theta
        self.packed_weights: list[Tensor] = []  # where `pack_linears` has made them

    def embed(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the first layer takes: hidden states [T, hidden], cosines and sines [T, D]."""
        x: Tensor = self.embed_tokens(input_ids)
        return x, *rotary_cos_sin(positions, self.head_dim, self.rope_theta, x.dtype)


class LlamaForCausalLM(nn.Module):
    """A Llama or Mistral model for inference. Modules are named as in Hugging Face's weights."""

    def __init__(self, config: ModelConfig, ops: LlamaOps = DEFAULT_OPS) -> None:
        super().__init__()
        self.config, self.ops = config, ops
        self.model = LlamaModel(config, ops)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        # A faster way through all layers, where there is one. `worker/forward_pass.py` takes it.
        self.all_layers: AllLayers | None = None
        self.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        batch: Batch | None = None,
        all_layers: AllLayers | None = None,
    ) -> Tensor:
        """Run all tokens of a flat batch through all layers.

        Args:
            input_ids: [T], the tokens of all requests, one request after the other.
            positions: [T], each token's position within its own request.
            batch: whose tokens these are, and where the tokens before them are. None: all belong
                to one request, nothing comes before, and nothing is kept.
            all_layers: runs the layers, and takes this batch. None: one layer after the other.

        Returns:
            Hidden states [T, hidden], ready for `compute_logits`.
        """
        batch = batch or ContiguousBatch([len(input_ids)], [None])
        if all_layers is not None:
            x = all_layers(self.model, input_ids, positions, batch)
        else:
            x, cos, sin = self.model.embed(input_ids, positions)
            for layer in self.model.layers:
                x = layer(x, cos, sin, batch)
        return self.model.norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary: [N, hidden] -> [N, vocab_size]."""
        return self.lm_head(hidden)
