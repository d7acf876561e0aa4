"""Trees of guesses: several continuations verified in one pass. Their root is the last token.

Miao et al. 2024, "SpecInfer", section 4.2; Cai et al. 2024, "Medusa", section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence


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
