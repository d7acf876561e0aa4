"""Causal grouped-query attention for one request: the reference to read, and the fast path.

Attention is the only operation of the model that looks at requests. All others work on a flat
batch of tokens and need not know where one request ends and the next begins.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Say which keys each query may see.

    The queries are the last tokens of the sequence: query `i` sits at position
    `num_keys - num_queries + i`, and sees every key up to that position.

    Returns:
        bool [num_queries, num_keys], True where the query may look.
    """
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return visible.tril(diagonal=num_keys - num_queries)


def attention_reference(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The textbook form: scores, mask, softmax, weighted sum. Same contract as `attention`."""
    num_queries, num_heads, _ = query.shape
    num_keys, num_kv_heads, _ = key.shape
    # GQA: query heads 0..G-1 share KV head 0, the next G share KV head 1, and so on.
    group_size = num_heads // num_kv_heads
    key = key.repeat_interleave(group_size, dim=1)  # [T_k, H, D]
    value = value.repeat_interleave(group_size, dim=1)  # [T_k, H, D]
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale  # [H, T_q, T_k]
    scores = scores.masked_fill(~causal_mask(num_queries, num_keys, query.device), -torch.inf)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.einsum("hqk,khd->qhd", weights, value)  # [T_q, H, D]


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal grouped-query attention for one request, on PyTorch's fused kernels.

    Grouped-query attention: Ainslie et al. 2023, "GQA", section 2.

    Args:
        query: [T_q, H, D], the new tokens' queries. Query `i` sits at position `T_k - T_q + i`.
        key: [T_k, H_kv, D], the keys of all tokens so far, the new ones last.
        value: [T_k, H_kv, D], their values.
        scale: what scores are multiplied by, usually `D ** -0.5`.

    Returns:
        [T_q, H, D]
    """
    num_queries, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = key.shape
    keys, values = key.transpose(0, 1), value.transpose(0, 1)  # [H_kv, T_k, D]

    if num_queries == 1:
        # Decode. One query sees every key, so no mask is needed, and the heads of a group can pose
        # as the positions of a sequence: each KV head is read once for its whole group.
        grouped = query.view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(grouped[None], keys[None], values[None], scale=scale)
        return out.reshape(1, num_heads, head_dim)

    # A whole prompt starts at position 0; a later chunk of one needs a mask shifted by its start.
    whole = num_queries == num_keys
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],  # [1, H, T_q, D]
        keys[None],
        values[None],
        attn_mask=None if whole else causal_mask(num_queries, num_keys, query.device),
        is_causal=whole,
        scale=scale,
        enable_gqa=num_heads != num_kv_heads,
    )
    return out[0].transpose(0, 1)
