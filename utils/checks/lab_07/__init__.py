"""The checks of lab 07.

Oracles: brute force over all matches, patterns and paths; the exact law of each step, and of all
that a sampler can do with its random numbers; a chi-square test; the engine without speculation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_07 import (
    costs,
    learners_engine,
    one_token,
    proposals,
    tree_masks,
    tree_walks,
    verification,
)
from utils.checks.lab_07.sampler.sampling import REJECTION_SAMPLE


@exercise("Exercise 1: propose", points=3)
def propose(function: Callable[..., list[int]]) -> str | Passed:
    """Check `propose(token_ids, prompt_lookup_min, prompt_lookup_max, num_speculative_tokens)`."""
    return proposals.PROPOSE.check(function)


@exercise("Exercise 2: verify_greedy", points=2)
def verify_greedy(function: Callable[..., list[int]]) -> str | Passed:
    """Check `verify_greedy(draft_token_ids, target_token_ids)`."""
    return verification.VERIFY_GREEDY.check(function)


@exercise("Exercise 3: is_accepted", points=2)
def is_accepted(function: Callable[..., bool]) -> str | Passed:
    """Check `is_accepted(token_id, target_probs, draft_probs, uniform)`."""
    return one_token.IS_ACCEPTED.check(function)


@exercise("Exercise 4: recovered_probs", points=2)
def recovered_probs(function: Callable[..., Tensor]) -> str | Passed:
    """Check `recovered_probs(target_probs, draft_probs)`."""
    return one_token.RECOVERED_PROBS.check(function)


@exercise("Exercise 5: rejection_sample", points=5)
def rejection_sample(function: Callable[..., list[int]]) -> str | Passed:
    """Check `rejection_sample(draft_token_ids, draft_probs, target_probs, generator)`."""
    return REJECTION_SAMPLE.check(function)


@exercise("Exercise 6: expected_tokens", points=1)
def expected_tokens(function: Callable[..., float]) -> str | Passed:
    """Check `expected_tokens(acceptance_rate, num_speculative_tokens)`."""
    return costs.EXPECTED_TOKENS.check(function)


@exercise("Exercise 7: choose_num_speculative_tokens", points=2)
def choose_num_speculative_tokens(function: Callable[..., int]) -> str | Passed:
    """Check `choose_num_speculative_tokens(acceptance_rate, max_num_..., draft_token_cost)`."""
    return costs.CHOOSE.check(function)


@exercise("Exercise 8: tree_attention_mask", points=3)
def tree_attention_mask(function: Callable[..., Tensor]) -> str | Passed:
    """Check `tree_attention_mask(parents)`."""
    return tree_masks.TREE_ATTENTION_MASK.check(function)


@exercise("Exercise 9: follow_tree", points=2)
def follow_tree(function: Callable[..., list[int]]) -> str | Passed:
    """Check `follow_tree(draft_token_ids, parents, target_token_ids)`."""
    return tree_walks.FOLLOW_TREE.check(function)


@exercise("Exercise 10: your parts run the engine", points=3)
def engine(make_parts: Callable[[], tuple[Any, Any]]) -> Passed:
    """Check `make_parts()`, a proposer and a rejection sampler: text, steps, distribution."""
    return learners_engine.run(make_parts)
