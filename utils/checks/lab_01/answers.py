"""Right answers to lab 01: those of the solution. A mistake in `words.yaml` is an edit of one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.engine.config.model import ModelConfig


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    mean_square = x32.pow(2).mean(dim=-1, keepdim=True)  # [T, 1]
    return (weight * (x32 * torch.rsqrt(mean_square + eps))).to(x.dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)  # each [T, heads, D / 2]
    turned = torch.cat((-second, first), dim=-1)  # [T, heads, D]
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    t_q, heads, _ = query.shape
    t_k, kv_heads, _ = key.shape
    group = heads // kv_heads
    key = key.repeat_interleave(group, dim=1)  # [T_k, H, D]
    value = value.repeat_interleave(group, dim=1)  # [T_k, H, D]
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale  # [H, T_q, T_k]
    position = torch.arange(t_q, device=query.device)[:, None] + t_k - t_q  # [T_q, 1]
    future = torch.arange(t_k, device=query.device)[None, :] > position  # [T_q, T_k]
    weights = scores.masked_fill(future, float("-inf")).float().softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights.to(query.dtype), value)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def token_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    if temperature == 0:
        return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)
    logits = logits / temperature
    if top_k > 0:
        smallest_kept = logits.topk(min(top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
    probabilities, order = logits.softmax(dim=-1).sort(descending=True)
    sum_before = probabilities.cumsum(dim=-1) - probabilities
    if top_p < 1:
        probabilities = probabilities * (sum_before < top_p)
    probabilities = probabilities / probabilities.sum()
    return torch.zeros_like(probabilities).scatter(0, order, probabilities)


def generate(
    model: Any, prompt_token_ids: list[int], max_tokens: int, eos_token_ids: set[int]
) -> list[int]:
    new_token_ids: list[int] = []
    while len(new_token_ids) < max_tokens:
        logits = model(torch.tensor(prompt_token_ids + new_token_ids))  # [T, vocab]
        token_id = int(logits[-1].argmax())
        new_token_ids.append(token_id)
        if token_id in eos_token_ids:
            break
    return new_token_ids


def forward_cost(config: ModelConfig, num_tokens: int, bytes_per_parameter: int) -> tuple[int, int]:
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim
    attention_weights = config.hidden_size * (2 * q_size + 2 * kv_size)  # q, o and k, v
    mlp_weights = 3 * config.hidden_size * config.intermediate_size  # gate, up, down
    weights = config.num_hidden_layers * (attention_weights + mlp_weights)
    weights += config.hidden_size * config.vocab_size  # the LM head
    return 2 * weights * num_tokens, weights * bytes_per_parameter
