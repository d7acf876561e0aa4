"""What the engine returns. vLLM's names."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Logprob:
    """Log probability of a token, and its rank among all tokens (1 is the most likely)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class RequestMetrics:
    """When things happened to a request, in seconds of a monotonic clock."""

    arrival_time: float = field(default_factory=time.perf_counter)
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    num_generation_tokens: int = 0

    def record_token(self) -> None:
        self.last_token_ts = time.perf_counter()
        if self.first_token_ts is None:
            self.first_token_ts = self.last_token_ts
        self.num_generation_tokens += 1

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds; queueing included."""
        return None if self.first_token_ts is None else self.first_token_ts - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds. None before the second token."""
        if not (self.first_token_ts and self.last_token_ts) or self.num_generation_tokens < 2:
            return None
        return (self.last_token_ts - self.first_token_ts) / (self.num_generation_tokens - 1)


@dataclass
class CompletionOutput:
    """One answer.

    Args:
        cumulative_logprob: log probability of all tokens together; None unless asked for.
        finish_reason: "stop" (end-of-sequence, stop string or stop token), "length", or None
            while the answer is growing.
        stop_reason: the stop string or stop token that ended it; None for end-of-sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """What the engine returns for a prompt.

    Args:
        prompt: None when token ids were given.
        outputs: the `n` answers.
        num_cached_tokens: tokens of the prompt whose keys and values were found in the prefix
            cache. None: the request has not been started.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
