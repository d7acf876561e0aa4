"""Traces of a whole cluster: conversations that share prefixes, by the million.

`conversations` draws them from published statistics. `public_traces.py` reads real ones.

Its numbers are those of the chat trace in Mooncake (FAST'25, table 2): mean prompt 12,035 tokens,
mean answer 343, and 40 % of the prompt tokens could come from a cache without limit. That share
nearly sets how many turns a conversation has: what was said before is most of a further prompt.
The spreads of the lengths are those of the published file. Our own choices: the shapes (log-normal
prompts, gamma answers, geometric numbers of turns), the length of a further message, the pause
between two turns, and that tenants are of unequal size (Zipf).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Row = tuple[int, float, Hashable, int, int, list[int]]

MEAN_PROMPT, MEAN_OUTPUT = 12_035, 343
PROMPT_SPREAD, OUTPUT_SPREAD = 1.3, 0.73  # standard deviation / mean
MEAN_MESSAGE = 500
THINK_SECONDS = 60.0
MAX_OPENING = 120_000  # tokens; a context of 128 K leaves room for the turns that follow


class ClusterTrace(Protocol):
    """What the simulator needs of a trace; arrays are `[num_requests]`, in order of arrival.

    Attributes:
        block_size: tokens in a block.
        arrivals: seconds from the first one.
        num_tokens: prompt tokens.
        output_lens: tokens of the answers.
    """

    @property
    def block_size(self) -> int: ...

    @property
    def arrivals(self) -> np.ndarray: ...

    @property
    def num_tokens(self) -> np.ndarray: ...

    @property
    def output_lens(self) -> np.ndarray: ...

    def __len__(self) -> int: ...

    def rows(self) -> Iterator[Row]:
        """(number, arrival, session, prompt tokens, answer tokens, names of the full blocks).

        Equal names are equal blocks behind equal blocks.
        """


@dataclass(frozen=True)
class Conversations:
    """A generated `ClusterTrace`: session s has the blocks first[s], first[s] + 1, ...

    They lie behind the blocks of its tenant's system prompt. So a million prompts of 24 blocks need
    a few numbers each.
    """

    block_size: int
    arrivals: np.ndarray
    num_tokens: np.ndarray
    output_lens: np.ndarray
    sessions: np.ndarray  # [num_requests]
    first_block: np.ndarray  # [num_requests]: of the session
    tenants: np.ndarray  # [num_requests]
    system_blocks: int

    def __len__(self) -> int:
        return len(self.arrivals)

    def rows(self) -> Iterator[Row]:
        count = self.system_blocks
        systems = {k: list(range(-count * (k + 1), -count * k)) for k in set(self.tenants.tolist())}
        columns = (
            self.arrivals,
            self.sessions,
            self.num_tokens,
            self.output_lens,
            self.first_block,
            self.tenants,
            self.num_tokens // self.block_size,
        )
        for number, (now, session, tokens, output, first, tenant, blocks) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            names = [*systems[tenant], *range(first, first + blocks - count)]
            yield number, now, session, tokens, output, names


def conversations(
    num_requests: int,
    rate: float,
    seed: int = 0,
    *,
    num_tenants: int = 1,
    system_blocks: int = 1,
    block_size: int = 512,
    mean_prompt: float = MEAN_PROMPT,
    mean_output: float = MEAN_OUTPUT,
    cache_ratio: float = 0.4,
    think_seconds: float = THINK_SECONDS,
) -> Conversations:
    """Conversations of several turns; each prompt repeats all that was said before.

    Args:
        num_requests: how many.
        rate: mean requests per second, once as many conversations go on as end; they begin as a
            Poisson process.
        seed: equal seeds, equal traces.
        num_tenants: each has a system prompt of its own; tenant k gets a share like 1/(k + 1).
        system_blocks: full blocks of each system prompt.
        block_size: tokens in a block.
        mean_prompt, mean_output: tokens.
        cache_ratio: share of the prompt tokens that a cache without limit can give.
        think_seconds: mean pause between two turns.

    Raises:
        ValueError: an argument is out of its range, or the mean prompt is too short for the rest.
    """
    if num_requests < 1 or num_tenants < 1 or block_size < 1 or system_blocks < 0:
        raise ValueError(
            "num_requests, num_tenants and block_size must be at least 1 and system_blocks 0 or "
            f"more, not {num_requests}, {num_tenants}, {block_size} and {system_blocks}"
        )
    if not rate > 0 or not 0 <= cache_ratio < 1 or mean_output < 1 or think_seconds < 0:
        raise ValueError(
            "rate must be positive (requests per second), cache_ratio 0 to 1, mean_output at least "
            "1 token and think_seconds 0 or more, not "
            f"{rate}, {cache_ratio}, {mean_output} and {think_seconds}"
        )
    # Of a further turn, all tokens of the turn before it are there, in whole blocks; of a first
    # one, the system prompt. Solved for the share of further turns.
    system = system_blocks * block_size
    further = (cache_ratio * mean_prompt - system) / (mean_prompt - system - block_size / 2)
    further = min(max(further, 0.0), 0.95)
    growth = MEAN_MESSAGE + mean_output
    opening = mean_prompt - system - growth * further / (1 - further)
    if opening < 1:
        raise ValueError(
            f"a mean prompt of {mean_prompt} tokens is too short for system prompts of {system} "
            f"tokens and {cache_ratio:.0%} of cached tokens; raise mean_prompt"
        )
    rng = np.random.default_rng(seed)
    # Conversations go on beginning until after the last request that is kept.
    num_sessions = int(num_requests * (1 - further) + 5 * think_seconds * rate) + 1
    turns = rng.geometric(1 - further, num_sessions)
    ends = turns.cumsum()
    total = int(ends[-1])
    session = np.repeat(np.arange(num_sessions), turns)
    is_first = np.zeros(total, dtype=bool)
    is_first[ends - turns] = True

    begins = rng.exponential(1 / (rate * (1 - further)), num_sessions).cumsum()
    pauses = np.where(is_first, 0.0, rng.exponential(think_seconds, total))
    arrivals = begins[session] + _since_first(pauses, is_first, session)

    output = _whole(rng.gamma(1 / OUTPUT_SPREAD**2, mean_output * OUTPUT_SPREAD**2, total))
    message = _log_normal(rng, MEAN_MESSAGE, 1.0, total)
    message[is_first] = _log_normal(rng, opening, PROMPT_SPREAD, num_sessions) + system
    message = np.minimum(message, MAX_OPENING)
    said_before = np.concatenate([[0], output[:-1]])
    said_before[is_first] = 0
    num_tokens = _since_first(message + said_before, is_first, session).astype(np.int64)

    full_blocks = num_tokens // block_size
    most = np.zeros(num_sessions, dtype=np.int64)
    np.maximum.at(most, session, full_blocks)
    first_block = np.concatenate([[0], (most - system_blocks).cumsum()[:-1]])
    shares = 1 / np.arange(1, num_tenants + 1)
    tenant = rng.choice(num_tenants, num_sessions, p=shares / shares.sum())
    order = np.argsort(arrivals, kind="stable")[:num_requests]
    arrivals = arrivals[order] - arrivals[order[0]]
    return Conversations(
        block_size,
        arrivals,
        num_tokens[order],
        output[order],
        session[order],
        first_block[session][order],
        tenant[session][order],
        system_blocks,
    )


def _since_first(values: np.ndarray, is_first: np.ndarray, session: np.ndarray) -> np.ndarray:
    """Running sums that begin anew with each session."""
    sums = values.cumsum()
    before = sums[is_first] - values[is_first]
    return sums - before[session]


def _log_normal(rng: np.random.Generator, mean: float, spread: float, size: int) -> np.ndarray:
    variance = math.log(1 + spread**2)
    return _whole(rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), size))


def _whole(lengths: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)
