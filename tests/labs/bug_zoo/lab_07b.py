"""Right answers to lab 07b, written differently; most wrong ones are in `lab_07b.yaml`."""

from __future__ import annotations

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_07b import answers
from utils.engine.spec_decode.tree import follow_tree as engines_follow_tree

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 tree_attention_mask


@right("tree_attention_mask")
def by_walking_up(parents):
    mask = torch.zeros(1 + len(parents), 1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess in range(len(parents)):
        node = guess
        while node != -1:
            mask[guess + 1, node + 1] = True
            node = parents[node]
    return mask


@right("tree_attention_mask")
def by_powers(parents):
    """Reachable in any number of steps up."""
    mask = torch.eye(1 + len(parents))
    for guess, parent in enumerate(parents):
        mask[guess + 1, parent + 1] = 1
    return torch.linalg.matrix_power(mask, 1 + len(parents)) > 0


# 2 follow_tree


@right("follow_tree")
def the_engines_walk(draft_token_ids, parents, target_token_ids):
    return engines_follow_tree(draft_token_ids, parents, target_token_ids)


@right("follow_tree")
def recursively(draft_token_ids, parents, target_token_ids, node=-1):
    for child, parent in enumerate(parents):
        if parent == node and draft_token_ids[child] == target_token_ids[node + 1]:
            return [child, *recursively(draft_token_ids, parents, target_token_ids, child)]
    return []
