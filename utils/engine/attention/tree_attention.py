"""Attention for a tree of guesses: several continuations looked at in one pass.

Miao et al. 2024, "SpecInfer", section 4.2; Cai et al. 2024, "Medusa", section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def tree_attention_mask(parents: Sequence[int]) -> Tensor:
    """Who may look at whom: bool [1 + m, 1 + m], row 0 and column 0 for the root.

    A node sees itself and its ancestors, the root among them. It does not see its siblings, which
    are other answers to the same question.
    """
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        mask[node + 1] |= mask[parent + 1]
    return mask


def tree_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention for a request whose last tokens are a tree.

    Args:
        query: [1 + m, H, D], of the root and its m nodes.
        key: [T_k, H_kv, D], of all tokens so far, root and nodes last.
        value: [T_k, H_kv, D]
        mask: see `tree_attention_mask`. What comes before the root is seen by all.

    Returns:
        [1 + m, H, D]
    """
    before = mask.new_ones(len(query), len(key) - len(query))
    out = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],  # [1, H, 1 + m, D]
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=torch.cat([before, mask], dim=1),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[0].transpose(0, 1)
