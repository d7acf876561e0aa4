"""What lab 07b calls right, held against the engine."""

from __future__ import annotations

import torch

from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_07b import trees
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.spec_decode.tree import follow_tree


def test_the_engine_agrees_about_trees():
    for tokens, parents, target in (inputs.args for inputs in sample(trees.draw_walk, 150)):
        path = follow_tree(tokens, parents, target)
        assert trees.longest_right_path(tokens, parents, target) == path
        assert torch.equal(trees.seen(parents), tree_attention_mask(parents))
    assert max(len(inputs.args[1]) for inputs in sample(trees.draw_walk, 150)) > 64


def test_a_wrong_mask_comes_with_its_picture():
    mask = trees.seen([-1, -1])
    yours = mask.clone()
    yours[2, 1] = True
    figure, _ = trees.draw_masks(mask, yours)
    crosses = [[text.get_position() for text in ax.texts] for ax in figure.axes]
    assert crosses == [[], [(1, 2)]]  # column 1, row 2
