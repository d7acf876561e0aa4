"""Request traces: when requests come, how long they are, and which text they share.

Two published workloads set the lengths: ShareGPT and Alpaca, as the PagedAttention paper used them
(arXiv 2309.06180, section 6.1 and figure 11). Only their means are printed there:

============  =================  ==================
 workload      mean prompt        mean output
============  =================  ==================
 ShareGPT      161.31 tokens      337.99 tokens
 Alpaca         19.31 tokens       58.45 tokens
============  =================  ==================

The spread of ShareGPT's outputs follows from other numbers of the paper. A running request waits,
on average, for E[n²] / (2 E[n]) more tokens of its output length n. The reserved shares of figure 2
(13.3, 17.9 and 25.2 % of 15.7K slots), divided by the batch sizes of figure 13a (7.00, 9.81 and
13.62), make that 286 to 298 tokens, so the standard deviation is about 0.85 of the mean.

Our own choices: every other spread, the shapes (log-normal prompts, gamma outputs), prompts and
outputs independent of each other, and all that is said below about conversations and agents.
Arrivals are a Poisson process, as in the paper.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAX_TOTAL_LEN = 2048  # prompt and output together; the context length of OPT, the paper's model
MAX_PROMPT_LEN = 1024

# Shared prefix of the paper's translation workload with five examples (section 6.4).
SYSTEM_PROMPT_LEN = 341
AGENT_CONTEXT_LEN = 768
MEAN_TURNS = 6
MEAN_AGENT_CALLS = 12
THINK_SECONDS = 30.0


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        request_id: its place in the trace, from 0, in order of arrival.
        arrival_time: seconds since the trace began.
        segments: the prompt, as pairs (segment_id, num_tokens). Equal pairs are equal text, so
            requests share a prefix where their leading pairs are equal.
        output_len: tokens that the model writes.
    """

    request_id: int
    arrival_time: float
    segments: tuple[tuple[int, int], ...]
    output_len: int

    @property
    def prompt_len(self) -> int:
        return sum(num_tokens for _, num_tokens in self.segments)

    def prompt_token_ids(self, vocab_size: int) -> list[int]:
        """Random tokens that stand for the prompt, in [0, vocab_size); equal pairs, equal tokens.

        Raises:
            ValueError: `vocab_size` is not positive.
        """
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, not {vocab_size}")
        ids: list[int] = []
        for segment in self.segments:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(segment)))
            ids += generator.integers(vocab_size, size=segment[1]).tolist()
        return ids


def sharegpt_like_lengths(
    num_requests: int, seed: int, spread: float = 0.85
) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output lengths in tokens of ShareGPT-like requests, two int64 `[num_requests]`.

    The same lengths as those of `sharegpt_like`, without the objects: for large simulations.
    `spread` is the standard deviation of the outputs, as a multiple of their mean.

    Raises:
        ValueError: `num_requests` or `spread` is not positive.
    """
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, not {num_requests}")
    if not spread > 0:
        raise ValueError(f"spread must be positive, not {spread}")
    rng = np.random.default_rng([seed, 1])
    # 179.6 becomes 161.31 once the longest prompts are cut to 1,024 tokens.
    prompt_lens = np.minimum(_log_normal(rng, 179.6, 2.0, num_requests), MAX_PROMPT_LEN)
    output_lens = _gamma(rng, 337.99, spread, num_requests)
    return prompt_lens, np.minimum(output_lens, MAX_TOTAL_LEN - prompt_lens)


def sharegpt_like(num_requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Chat requests with nothing in common: mean prompt 161.31, mean output 337.99 tokens.

    Args:
        num_requests: how many.
        rate: mean arrivals per second.
        seed: equal seeds, equal traces.

    Raises:
        ValueError: `num_requests` or `rate` is not positive.
    """
    times = _arrival_times(num_requests, rate, seed)
    return _unrelated("sharegpt", times, *sharegpt_like_lengths(num_requests, seed), seed)


def alpaca_like(num_requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Short instructions with nothing in common: mean prompt 19.31, mean output 58.45 tokens.

    Arguments and errors as in `sharegpt_like`. The spreads (0.6 and 1.1 of the mean) are ours.
    """
    times = _arrival_times(num_requests, rate, seed)
    rng = np.random.default_rng([seed, 2])
    prompt_lens = _log_normal(rng, 19.31, 0.6, num_requests)
    output_lens = _gamma(rng, 58.45, 1.1, num_requests)
    return _unrelated("alpaca", times, prompt_lens, output_lens, seed)


def shared_system_prompt(num_requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """One system prompt of 341 tokens before every request; the rest as in `alpaca_like`."""
    ids = _segment_ids("system prompt", seed)
    system = (next(ids), SYSTEM_PROMPT_LEN)
    return [
        TraceRequest(
            r.request_id, r.arrival_time, (system, (next(ids), r.prompt_len)), r.output_len
        )
        for r in alpaca_like(num_requests, rate, seed)
    ]


def multi_turn_chat(num_requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Conversations: each prompt is all that was said before, and a new message.

    Messages and answers have ShareGPT-like lengths. Each answer is a segment of the prompts after
    it. Every arrival belongs to a random one of the open conversations. As many are open as let
    each think for 30 s on average, but no more than an eighth of the requests. A conversation ends
    after 6 turns on average, or when the next turn would pass 2,048 tokens; a new one then opens.

    Arguments and errors as in `sharegpt_like`.
    """
    times = _arrival_times(num_requests, rate, seed)
    messages, answers = sharegpt_like_lengths(num_requests, seed)
    rng = np.random.default_rng([seed, 3])
    ids = _segment_ids("chat", seed)
    history: list[list[tuple[int, int]]] = [[] for _ in range(_num_open(num_requests, rate))]
    trace = []
    for number, (message, answer) in enumerate(
        zip(messages.tolist(), answers.tolist(), strict=True)
    ):
        chat = int(rng.integers(len(history)))
        past = history[chat]
        length = sum(num_tokens for _, num_tokens in past) + message + answer
        if length > MAX_TOTAL_LEN or (past and rng.random() < 1 / MEAN_TURNS):
            past = []
        prompt = [*past, (next(ids), message)]
        trace.append(TraceRequest(number, float(times[number]), tuple(prompt), answer))
        history[chat] = [*prompt, (next(ids), answer)]
    return trace


def agents(num_requests: int, rate: float, seed: int) -> list[TraceRequest]:
    """Agents that work on tasks, all with the same long instructions; their paths branch.

    A prompt is the instructions (768 tokens, the same for all), a task, and the steps so far: each
    an answer of the model and what a tool returned. 7 of 10 calls go on from the newest call of
    their task; the others go back to a random earlier one and try another path from there. A task
    ends after 12 calls on average, or when a call would pass 2,048 tokens. Open tasks as in
    `multi_turn_chat`. Tasks, tool results and answers are Alpaca-like, the first two with four
    times the mean prompt. All of this is our choice.

    Arguments and errors as in `sharegpt_like`.
    """
    times = _arrival_times(num_requests, rate, seed)
    rng = np.random.default_rng([seed, 4])
    inputs = np.minimum(_log_normal(rng, 4 * 19.31, 0.6, num_requests), 512).tolist()
    answers = np.minimum(_gamma(rng, 58.45, 1.1, num_requests), 512).tolist()
    ids = _segment_ids("agents", seed)
    instructions = (next(ids), AGENT_CONTEXT_LEN)
    # Per task, the calls so far: each the prompt and the answer, which is what a next call extends.
    tasks: list[list[tuple[tuple[int, int], ...]]] = [
        [] for _ in range(_num_open(num_requests, rate))
    ]
    trace = []
    for number, (new, answer) in enumerate(zip(inputs, answers, strict=True)):
        calls = tasks[int(rng.integers(len(tasks)))]
        if calls and rng.random() < 1 / MEAN_AGENT_CALLS:
            calls.clear()
        base: tuple[tuple[int, int], ...] = (instructions,)
        if calls:
            base = calls[-1] if rng.random() < 0.7 else calls[int(rng.integers(len(calls)))]
            if sum(num_tokens for _, num_tokens in base) + new + answer > MAX_TOTAL_LEN:
                calls.clear()
                base = (instructions,)
        prompt = (*base, (next(ids), new))
        trace.append(TraceRequest(number, float(times[number]), prompt, answer))
        calls.append((*prompt, (next(ids), answer)))
    return trace


def _unrelated(
    kind: str, times: np.ndarray, prompt_lens: np.ndarray, output_lens: np.ndarray, seed: int
) -> list[TraceRequest]:
    lengths = zip(times.tolist(), prompt_lens.tolist(), output_lens.tolist(), strict=True)
    ids = _segment_ids(kind, seed)
    return [
        TraceRequest(number, time, ((next(ids), prompt_len),), output_len)
        for number, (time, prompt_len, output_len) in enumerate(lengths)
    ]


def _arrival_times(num_requests: int, rate: float, seed: int) -> np.ndarray:
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, not {num_requests}")
    if not rate > 0:
        raise ValueError(f"rate must be positive (requests per second), not {rate}")
    return np.random.default_rng([seed, 0]).exponential(1 / rate, num_requests).cumsum()


def _num_open(num_requests: int, rate: float) -> int:
    return max(2, min(round(rate * THINK_SECONDS), num_requests // 8))


def _segment_ids(kind: str, seed: int) -> Iterator[int]:
    """Ids that no other kind of trace and no other seed uses, so that their texts differ."""
    return itertools.count(zlib.crc32(f"{kind} {seed}".encode()) << 32)


def _log_normal(rng: np.random.Generator, mean: float, spread: float, size: int) -> np.ndarray:
    """Lengths of at least 1; `spread` is the standard deviation as a multiple of the mean."""
    variance = math.log(1 + spread**2)
    return _whole(rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), size))


def _gamma(rng: np.random.Generator, mean: float, spread: float, size: int) -> np.ndarray:
    """As `_log_normal`, with the lighter tail of a gamma distribution."""
    return _whole(rng.gamma(1 / spread**2, mean * spread**2, size))


def _whole(lengths: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)
