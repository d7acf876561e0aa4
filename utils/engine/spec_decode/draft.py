"""Guessed tokens on their way from a proposer through the scheduler to verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from utils.engine.spec_decode.tree import tree_depths


@dataclass(frozen=True)
class Draft:
    """Tokens guessed to follow a request's last one: a chain, or a tree.

    Args:
        token_ids: the k guesses.
        parents: for a tree, each guess's parent: the index of an earlier guess, or -1 if it
            follows the request's last token. None: each guess follows the one before it.
        probs: [k, vocab_size], the distributions that a chain's guesses were drawn from. None:
            they were not drawn but chosen.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] | None = None
    probs: Tensor | None = None

    def first(self, num_tokens: int) -> Draft:
        """The first guesses. A tree stays one, since parents come before their children."""
        if num_tokens >= len(self.token_ids):
            return self
        return Draft(
            self.token_ids[:num_tokens],
            None if self.parents is None else self.parents[:num_tokens],
            None if self.probs is None else self.probs[:num_tokens],
        )

    def depths(self) -> Sequence[int]:
        """How many guesses lie before each score to verify: none, then those up to each guess."""
        if self.parents is None:
            return range(1 + len(self.token_ids))
        return [0, *tree_depths(self.parents)]

    def paths(self) -> list[list[int]]:
        """The guesses that lie before each score to verify: none, then up to each guess and it."""
        paths: list[list[int]] = [[]]
        for i, token_id in enumerate(self.token_ids):
            parent = i - 1 if self.parents is None else self.parents[i]
            paths.append([*paths[parent + 1], token_id])
        return paths


NO_DRAFT = Draft()
