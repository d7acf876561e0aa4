"""The checks of lab 07b: what is drawn, and what is right.

Oracles: brute force over all paths of a tree; a record of which hidden state each text has got; the
engine without guesses, and with its own EAGLE proposer.
"""

from __future__ import annotations

from collections.abc import Callable

from utils.checks.kit.lab.lab import Lab
from utils.checks.lab_07b import answers, eagle_story, learners_engine, trees

LAB = Lab(__file__)

# Exercises 1 and 2: trees of guesses

tree_attention_mask = LAB.check(answers.tree_attention_mask, trees.draw_mask, trees.MASK)
follow_tree = LAB.check(answers.follow_tree, trees.draw_walk, trees.WALK)

# Exercise 3: hidden states in paged memory, and a chain of guesses

my_eagle_proposer = LAB.check(
    answers.MyEagleProposer,
    eagle_story.EagleStory.draw,
    eagle_story.EagleStory.judge(answers.MyEagleProposer),
    examples=250,
)

# Exercise 4: the engine with the learner's parts


@LAB.exercise
def engine(make_parts: Callable[[], learners_engine.Parts]) -> str:
    """Check `make_parts()`: each part by itself, then chains and trees in the engine."""
    parts = learners_engine.parts_of(make_parts)
    checks = (tree_attention_mask, follow_tree, my_eagle_proposer)
    learners_engine.each_speaks_first(parts, checks)
    return learners_engine.run(parts)
