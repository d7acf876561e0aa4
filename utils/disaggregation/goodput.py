"""Goodput: how many requests per second a GPU serves within its limits, with prefill and decode
together on it, or apart.

A simulator of one figure: figure 1 of Zhong et al., "DistServe: Disaggregating Prefill and Decoding
for Goodput-optimized Large Language Model Serving", OSDI 2024, https://arxiv.org/abs/2401.09670
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from utils.serving.load_generator import poisson_arrivals


@dataclass(frozen=True)
class StepTimes:
    """How long a step takes on one GPU. All times in seconds.

    A prefill step of prompts with n_1, n_2, ... tokens:
    `prefill_step + prefill_token * sum(n) + prefill_pair * sum(n^2)`. A decode step of B requests
    with C tokens of context together: `decode_step + decode_context * C + decode_request * B`.

    Args:
        kv_tokens: for how many tokens of keys and values there is room.
    """

    prefill_step: float
    prefill_token: float
    prefill_pair: float
    decode_step: float
    decode_context: float
    decode_request: float
    kv_tokens: int

    def prefill(self, lengths: Sequence[int]) -> float:
        """Seconds of a step that reads prompts of these lengths."""
        pairs = sum(n * n for n in lengths)
        tokens = self.prefill_token * sum(lengths) + self.prefill_pair * pairs
        return self.prefill_step + tokens

    def decode(self, num_requests: int, context: int) -> float:
        """Seconds of a step that gives each of `num_requests` one token."""
        seconds = self.decode_context * context + self.decode_request * num_requests
        return self.decode_step + seconds

    def slower(self, factor: float) -> StepTimes:
        """A GPU, or an engine, on which each step takes `factor` times as long."""
        seconds = {f.name: factor * getattr(self, f.name) for f in fields(self)}
        return replace(self, **seconds | {"kv_tokens": self.kv_tokens})


# OPT-13B: 40 layers of width 5,120, 16 bits a number. Its weights take 26 GB, and vLLM takes 90 %
# of the A100's 80 GB.
KV_BYTES = 2 * 40 * 5120 * 2  # a token's keys and values
KV_TOKENS = int((0.9 * 80e9 - 26e9) / KV_BYTES)
MAX_BATCHED_TOKENS = 2048  # of prompts in a step: OPT's longest, and vLLM's default for it then
NVLINK = 600e9  # bytes per second between two A100 (data sheet)


@dataclass(frozen=True)
class Workload:
    """Requests that come at random (Poisson), all of the same lengths in tokens."""

    prompt_tokens: int = 512
    output_tokens: int = 64
    num_requests: int = 2000
    seed: int = 0

    def arrivals(self, rate: float) -> list[float]:
        """Seconds at which requests come, `rate` per second on average."""
        return poisson_arrivals(rate, self.num_requests, self.seed)


@dataclass(frozen=True)
class Slo:
    """Service level objective: this share of requests within these seconds."""

    ttft: float = 0.4
    tpot: float = 0.04
    share: float = 0.9


PAPERS_SLO = Slo()


@dataclass(frozen=True)
class Latencies:
    """Of each request: seconds to the first token, and per further token. NaN: not measured."""

    ttft: np.ndarray
    tpot: np.ndarray

    def kept(self, slo: Slo) -> tuple[bool, bool]:
        """Is the limit of TTFT kept, and that of TPOT? What was not measured is kept."""
        ttft, tpot = (
            np.nan if np.isnan(values).all() else np.nanquantile(values, slo.share)
            for values in (self.ttft, self.tpot)
        )
        return not ttft > slo.ttft, not tpot > slo.tpot


def serve_together(times: StepTimes, work: Workload, rate: float) -> Latencies:
    """One GPU does both, as vLLM did then: prompts first, in steps of their own."""
    arrivals = work.arrivals(rate)
    first, last = _run(times, work, arrivals, prefill=True, decode=True)
    return _latencies(work, arrivals, first, first, last)


def serve_prefill(times: StepTimes, work: Workload, rate: float) -> Latencies:
    """One GPU that only reads prompts."""
    arrivals = work.arrivals(rate)
    first, _ = _run(times, work, arrivals, prefill=True, decode=False)
    return _latencies(work, arrivals, first, None, None)


def serve_decode(times: StepTimes, work: Workload, rate: float) -> Latencies:
    """One GPU that only writes; requests come with their first token and their KV cache."""
    arrivals = work.arrivals(rate)
    _, last = _run(times, work, arrivals, prefill=False, decode=True)
    return _latencies(work, arrivals, None, arrivals, last)


def serve_apart(
    times: StepTimes,
    work: Workload,
    rate: float,
    num_prefill: int,
    num_decode: int,
    bytes_per_second: float = NVLINK,
) -> Latencies:
    """Some GPUs read prompts by turns, others write by turns; between them goes the KV cache.

    `rate` is that of all of them together.
    """
    arrivals = work.arrivals(rate)
    first, last = [0.0] * len(arrivals), [0.0] * len(arrivals)
    for gpu in range(num_prefill):
        first[gpu::num_prefill], _ = _run(
            times, work, arrivals[gpu::num_prefill], prefill=True, decode=False
        )
    moved = work.prompt_tokens * KV_BYTES / bytes_per_second
    order = sorted(range(len(first)), key=first.__getitem__)
    for gpu in range(num_decode):
        mine = order[gpu::num_decode]
        _, ends = _run(times, work, [first[i] + moved for i in mine], prefill=False, decode=True)
        for i, end in zip(mine, ends, strict=True):
            last[i] = end
    return _latencies(work, arrivals, first, first, last)


def highest_rate(
    serve: Callable[[float], Latencies],
    slo: Slo = PAPERS_SLO,
    limit: str = "both",
    most: float = 60.0,
) -> float:
    """The highest rate at which the limits are kept, found by halving, to 0.02 requests/s.

    Args:
        serve: from a rate to latencies, such as `lambda rate: serve_together(times, work, rate)`.
        limit: "ttft", "tpot" or "both".
        most: where to begin from.

    Raises:
        ValueError: there is no such limit.
    """
    if limit not in ("ttft", "tpot", "both"):
        raise ValueError(f"{limit=}; expected 'ttft', 'tpot' or 'both'.")
    low, high = 0.0, most
    while high - low > 0.02:
        middle = (low + high) / 2
        ttft, tpot = serve(middle).kept(slo)
        good = {"ttft": ttft, "tpot": tpot, "both": ttft and tpot}[limit]
        low, high = (middle, high) if good else (low, middle)
    return low


def _run(
    times: StepTimes, work: Workload, arrivals: Sequence[float], *, prefill: bool, decode: bool
) -> tuple[list[float], list[float]]:
    """One GPU, step by step: for each request, when its first and its last token are there.

    All requests have the same length. So they leave in the order in which they came.
    """
    first, last = [math.nan] * len(arrivals), [math.nan] * len(arrivals)
    clock, arrived, steps, running, context = 0.0, 0, 0, 0, 0
    waiting: deque[int] = deque()
    leaving: deque[tuple[int, int]] = deque()  # the decode step after which it is done; its number
    in_a_step = max(1, MAX_BATCHED_TOKENS // work.prompt_tokens) if prefill else len(arrivals)
    whole = work.prompt_tokens + work.output_tokens
    while arrived < len(arrivals) or waiting or running:
        if not waiting and not running:
            clock = max(clock, arrivals[arrived])
        while arrived < len(arrivals) and arrivals[arrived] <= clock:
            waiting.append(arrived)
            arrived += 1
        if joining := min(len(waiting), in_a_step, times.kv_tokens // whole - running):
            batch = [waiting.popleft() for _ in range(joining)]
            if prefill:
                clock += times.prefill([work.prompt_tokens] * joining)
            for number in batch:
                first[number] = clock
            if decode:
                running += joining
                context += joining * (work.prompt_tokens + 1)
                leaving.extend((steps + work.output_tokens - 1, number) for number in batch)
        elif running:
            clock += times.decode(running, context)
            steps += 1
            context += running
            while leaving and leaving[0][0] == steps:
                last[leaving.popleft()[1]] = clock
                running -= 1
                context -= whole
    return first, last


def _latencies(
    work: Workload,
    arrivals: Sequence[float],
    first: Sequence[float] | None,
    began: Sequence[float] | None,
    last: Sequence[float] | None,
) -> Latencies:
    nothing = np.full(len(arrivals), np.nan)
    ttft = nothing if first is None else np.array(first) - np.array(arrivals)
    tpot = nothing
    if began is not None and last is not None:
        tpot = (np.array(last) - np.array(began)) / (work.output_tokens - 1)
    return Latencies(ttft, tpot)
