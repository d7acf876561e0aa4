"""How tokens are guessed ahead. vLLM's names, checked when made."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

METHODS = ("ngram", "draft_model", "medusa", "eagle", "custom_class")
WITH_TREES = ("medusa", "eagle")
REJECTION_SAMPLE_METHODS = ("standard", "block")


class TokenProposer(Protocol):
    """Guesses from the tokens so far, and from nothing else."""

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        """At most `num_speculative_tokens` tokens that may follow `token_ids`."""


@dataclass(frozen=True)
class SpeculativeConfig:
    """Speculative decoding: guess tokens cheaply, verify them all in one pass of the model.

    Args:
        method: "ngram", copy what followed the last tokens earlier in the text; "draft_model", ask
            a smaller model; "medusa", ask heads on the model's own hidden state; "eagle", a layer
            that goes on from it; "custom_class".
        num_speculative_tokens: guesses per request and step, at most.
        model: folder of the draft model, the Medusa heads, or the EAGLE layer.
        prompt_lookup_min: shortest n-gram to look up.
        prompt_lookup_max: longest n-gram to look up.
        tree_widths: Medusa and EAGLE only. Guess a tree: its root has the best `tree_widths[0]`
            tokens as children, each of them the best `tree_widths[1]` after it, and so on. (A
            Medusa head guesses the same tokens after each of them.)
        adaptive: choose each request's number of guesses from how many of its last were accepted.
        draft_token_cost: adaptive only. What a guess costs, drafting and verifying, relative to a
            step without any. Measure it (notebook 07), for it depends on machine and batch.
        rejection_sample_method: how a chain of guesses is verified where answers are random and
            have no seed: "standard", one guess after the other; "block", all of them together.
        proposer: for "custom_class", an object with `propose(token_ids, num_speculative_tokens)`.

    Raises:
        ValueError: an argument is out of range, or missing for the method, or of no use to it.
    """

    method: str
    num_speculative_tokens: int = 4
    model: str | Path | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    tree_widths: tuple[int, ...] | None = None
    adaptive: bool = False
    draft_token_cost: float = 0.1
    rejection_sample_method: str = "standard"
    proposer: TokenProposer | None = None

    def __post_init__(self) -> None:
        def require(condition: bool, message: str) -> None:
            if not condition:
                raise ValueError(f"speculative_config: {message}")

        k, method = self.num_speculative_tokens, self.method
        require(method in METHODS, f"unknown method {method!r}. Expected {', '.join(METHODS)}.")
        require(
            isinstance(k, int) and k >= 1,
            f"num_speculative_tokens must be an integer of at least 1, got {k!r}.",
        )
        require(
            1 <= self.prompt_lookup_min <= self.prompt_lookup_max,
            f"expected 1 <= prompt_lookup_min <= prompt_lookup_max, got "
            f"{self.prompt_lookup_min} and {self.prompt_lookup_max}.",
        )
        require(
            self.draft_token_cost > 0,
            f"draft_token_cost must be above 0, got {self.draft_token_cost!r}.",
        )
        require(
            self.rejection_sample_method in REJECTION_SAMPLE_METHODS,
            f"unknown rejection_sample_method {self.rejection_sample_method!r}. Expected "
            f"{' or '.join(REJECTION_SAMPLE_METHODS)}.",
        )
        needs_model = method in ("draft_model", *WITH_TREES)
        require(
            (self.model is not None) == needs_model,
            f"method {method!r} {'needs' if needs_model else 'takes no'} model.",
        )
        require(
            (self.proposer is not None) == (method == "custom_class"),
            "a proposer belongs to method 'custom_class', and to no other.",
        )
        if (widths := self.tree_widths) is not None:
            require(method in WITH_TREES, "tree_widths belongs to method 'medusa' or 'eagle'.")
            require(
                all(isinstance(w, int) and w >= 1 for w in widths) and len(widths) > 0,
                f"tree_widths must be positive integers, got {widths!r}.",
            )
            require(not self.adaptive, "a tree has one size: adaptive must be False.")
            object.__setattr__(self, "num_speculative_tokens", tree_size(widths))


def tree_size(widths: tuple[int, ...]) -> int:
    """Nodes of a tree in which each node of depth `d` has `widths[d]` children."""
    return sum(prod(widths[: depth + 1]) for depth in range(len(widths)))
