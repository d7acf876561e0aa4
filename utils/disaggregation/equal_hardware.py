"""The same requests at the same times, for two engines that share the work in different ways."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from utils.engine.kv_transfer.engine_process import EngineProcess

VOCABULARY = (1000, 30000)  # token ids are drawn from this range


@dataclass(frozen=True)
class Arrival:
    """A request: seconds after the start, its kind, its prompt, and how many tokens it wants."""

    at: float
    kind: str
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Served:
    """One request as its reader saw it. All times in seconds.

    Attributes:
        ttft: from when it was due to its first token, so that a late start counts as waiting.
        times: of its tokens, after the start of the run.
    """

    kind: str
    ttft: float
    times: list[float]
    token_ids: list[int]

    @property
    def gaps(self) -> list[float]:
        """The waits between its tokens."""
        return [b - a for a, b in pairwise(self.times)]

    @property
    def longest_gap(self) -> float:
        """The longest wait between two of its tokens; 0.0 if it has only one."""
        return max(self.gaps, default=0.0)


Choose = Callable[[int, Arrival], EngineProcess]
WARM_UP = list(range(1000, 1048))  # a prompt: the first request of a process is slow


def traffic(
    kinds: dict[str, tuple[int, int]], count: int, seconds: float, seed: int = 0
) -> list[Arrival]:
    """Requests in random order at random times: `count` of each kind, over `seconds`.

    Nobody has sent these prompts before. The same seed gives the same times, lengths and prompts.

    Args:
        kinds: name -> (tokens of the prompt, tokens of the answer).

    Raises:
        ValueError: `count` or `seconds` is not positive.
    """
    if count < 1 or not seconds > 0:
        raise ValueError(f"{count=}, {seconds=}: both must be positive.")
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.repeat(list(kinds), count))
    arrivals = []
    for at, kind in zip(np.sort(rng.uniform(0, seconds, len(order))), order, strict=True):
        prompt_tokens, max_tokens = kinds[str(kind)]
        prompt = rng.integers(*VOCABULARY, prompt_tokens).tolist()
        arrivals.append(Arrival(float(at), str(kind), prompt, max_tokens))
    return arrivals


def replay(
    arrivals: Sequence[Arrival], choose: Choose, engines: Sequence[EngineProcess]
) -> list[Served]:
    """Send each request when it is due, and wait until all are answered.

    Args:
        arrivals: in the order of their times.
        choose: from a request's number and the request to the engine that answers it. It may tell
            other engines about the request.
        engines: all that take part. Before the start, each answers once, and forgets.

    Raises:
        EngineProcessError: an engine failed.
    """
    for engine in engines:
        engine.generate([WARM_UP], max_tokens=4)
        engine.reset_prefix_cache()
    begin, sent = time.perf_counter(), []
    for number, arrival in enumerate(arrivals):
        time.sleep(max(0.0, begin + arrival.at - time.perf_counter()))
        engine = choose(number, arrival)
        sent.append((engine, engine.submit(arrival.prompt, arrival.max_tokens)))
    served = []
    for arrival, (engine, ticket) in zip(arrivals, sent, strict=True):
        answer = engine.result(ticket)
        times = [moment - begin for moment in answer.times]
        served.append(Served(arrival.kind, times[0] - arrival.at, times, answer.token_ids))
    return served


def table(served: Mapping[str, Sequence[Served]]) -> str:
    """A line for each arrangement: gaps in ms over all answers, mean TTFT of each kind in s, when
    the last token came in s, and how many answers have the same tokens as in the first one."""
    kinds = sorted({answer.kind for answer in next(iter(served.values()))})
    firsts = next(iter(served.values()))
    heads = ["longest gap", "median gap", *(f"TTFT {kind}" for kind in kinds), "last token", "same"]
    lines = [f"{'':12}" + "".join(f"{head:>15}" for head in heads)]
    for name, answers in served.items():
        gaps = np.concatenate([answer.gaps for answer in answers])
        cells = [f"{1e3 * gaps.max():.0f} ms", f"{1e3 * np.median(gaps):.0f} ms"]
        for kind in kinds:
            cells.append(f"{np.mean([a.ttft for a in answers if a.kind == kind]):.2f} s")
        cells.append(f"{max(answer.times[-1] for answer in answers):.1f} s")
        same = sum(a.token_ids == b.token_ids for a, b in zip(answers, firsts, strict=True))
        cells.append(f"{same} of {len(answers)}")
        lines.append(f"{name:12}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)
