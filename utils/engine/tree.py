"""Trees of guesses: several continuations verified in one pass. Their root is the last token.

Miao et al. 2024, "SpecInfer", section 4.2; Cai et al. 2024, "Medusa", section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def tree_depths(parents: Sequence[int]) -> list[int]:
    """How many guesses lie on the way from the root to each node, itself included.

    Raises:
        ValueError: a parent does not come before its child.
    """
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"Node {node} has parent {parent}. Expected -1 to {node - 1}.")
        depths.append(1 if parent == -1 else depths[parent] + 1)
    return depths


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


def follow_tree(
    draft_token_ids: Sequence[int], parents: Sequence[int], sampled: Sequence[int]
) -> list[int]:
    """Walk from the root to a child as long as the model wants what the child holds.

    Args:
        draft_token_ids: the m guesses.
        parents: of each guess.
        sampled: 1 + m tokens, what the model itself drew after the root and after each node.

    Returns:
        The accepted nodes, from the root's child downwards.
    """
    children = {(p, t): i for i, (p, t) in enumerate(zip(parents, draft_token_ids, strict=True))}
    path: list[int] = []
    node = -1
    while (node := children.get((node, sampled[node + 1]), -1)) != -1:
        path.append(node)
    return path
