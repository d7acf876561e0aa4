"""What the engine counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PrefixCacheStats:
    """Counts since the start."""

    requests: int = 0
    queries: int = 0  # tokens looked up
    hits: int = 0  # of these, tokens found

    def record(self, num_tokens: int, num_hits: int) -> None:
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0


@dataclass
class SpecDecodingStats:
    """Counts of guessed tokens since the engine was made."""

    num_drafts: int = 0  # how many times a request's guesses were verified
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        per_position = self.num_accepted_tokens_per_pos
        per_position += [0] * (num_accepted_tokens - len(per_position))
        for position in range(num_accepted_tokens):
            per_position[position] += 1

    @property
    def acceptance_rate(self) -> float:
        """The part of the guessed tokens that was accepted."""
        return self.num_accepted_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verification: the accepted ones, and one more that the model gives anyway."""
        return 1 + self.num_accepted_tokens / max(1, self.num_drafts)
