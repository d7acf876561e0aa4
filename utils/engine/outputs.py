"""What the engine returns. vLLM's names."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Logprob:
    """Log probability of a token, and its rank among all tokens (1 is the most likely)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, Logprob] | None]


@dataclass
class EngineCoreOutput:
    """What a step of the engine's core gave one request. It can leave the process.

    Args:
        finish_reason: see `CompletionOutput`; None while the request goes on.
        stop_reason: the stop token that ended it; None for end-of-sequence.
        new_logprobs: of each new token; empty unless asked for.
        prompt_logprobs: see `RequestOutput`.
        scheduled_ts: when the request was first let run, in seconds of `time.perf_counter`.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    new_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    scheduled_ts: float | None = None


@dataclass
class RequestMetrics:
    """When things happened to a request, in seconds of a monotonic clock."""

    arrival_time: float = field(default_factory=time.perf_counter)
    scheduled_ts: float | None = None  # when it was first let run
    token_ts: list[float] = field(default_factory=list)  # when each token of the answer came
    num_preemptions: int = 0

    def record_token(self) -> None:
        self.token_ts.append(time.perf_counter())

    @property
    def num_generation_tokens(self) -> int:
        return len(self.token_ts)

    @property
    def first_token_ts(self) -> float | None:
        return self.token_ts[0] if self.token_ts else None

    @property
    def last_token_ts(self) -> float | None:
        return self.token_ts[-1] if self.token_ts else None

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival until it was first let run."""
        return None if self.scheduled_ts is None else self.scheduled_ts - self.arrival_time

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds; queueing included."""
        return self.token_ts[0] - self.arrival_time if self.token_ts else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds. None before the second token."""
        if len(self.token_ts) < 2:
            return None
        return (self.token_ts[-1] - self.token_ts[0]) / (len(self.token_ts) - 1)

    @property
    def inter_token_latencies(self) -> list[float]:
        """Seconds between each token and the one before it. Near 0 for accepted guesses."""
        return [later - earlier for earlier, later in itertools.pairwise(self.token_ts)]

    @property
    def e2e_latency(self) -> float | None:
        """Seconds from arrival to the last token so far."""
        return self.token_ts[-1] - self.arrival_time if self.token_ts else None


@dataclass
class CompletionOutput:
    """One answer.

    Args:
        cumulative_logprob: log probability of all tokens together; None unless asked for.
        finish_reason: "stop" (end-of-sequence, stop string or stop token), "length", "abort",
            "error" (its grammar became too complex to follow), or None while it is growing.
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
        prompt_logprobs: of each token of the prompt, once it is computed; None for the first one,
            which nothing precedes. None in all unless asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
