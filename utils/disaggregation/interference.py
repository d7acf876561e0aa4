"""What long prompts do to a stream of tokens, with prefill and decode together or apart."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from utils.disaggregation.vllm_servers import complete, events
from utils.processes.server import LocalServer

WARM_UP_TOKENS = 10  # of the stream, before anything is measured


@dataclass(frozen=True)
class Interference:
    """One stream, and what came in between. All times in seconds.

    Attributes:
        gaps: between neighbouring tokens of the stream, in order.
        long_ttfts: until the first token of each long prompt.
    """

    gaps: list[float]
    long_ttfts: list[float]

    @property
    def longest_gap(self) -> float:
        """How long the reader of the stream has waited at worst."""
        return max(self.gaps)

    @property
    def median_gap(self) -> float:
        """How long it usually took."""
        return statistics.median(self.gaps)


def measure_interference(
    decode: LocalServer,
    stream_prompt: Sequence[int],
    long_prompts: Sequence[Sequence[int]],
    long_to: LocalServer | None,
    *,
    every: float = 0.5,
    quiet_seconds: float = 3.0,
    max_tokens: int = 1500,
) -> Interference:
    """Stream from a server while long prompts arrive, and take the time between tokens.

    The stream is read from the decode server itself, so that the proxy's own share of a core does
    not count. Long prompts answer with one token.

    Args:
        decode: the server that streams.
        stream_prompt: token ids of a short prompt.
        long_prompts: token ids. Nobody may have sent them before: they would be found in a cache.
        long_to: who gets the long prompts: `decode` itself, or a proxy. None: nobody sends them.
        every: seconds from one long prompt to the next.
        quiet_seconds: how long to measure where there are no long prompts.
        max_tokens: the most that the stream can give.

    Raises:
        RequestRefused: a server answered with an error.
        RuntimeError: the stream ended before the long prompts were answered.
    """
    times: list[float] = []
    running, enough = threading.Event(), threading.Event()

    def stream() -> None:
        try:
            for event in events(decode, stream_prompt, max_tokens):
                if event["choices"]:
                    times.append(time.perf_counter())
                if len(times) > WARM_UP_TOKENS:
                    running.set()
                if enough.is_set():
                    return
        finally:
            running.set()

    def send(number: int) -> float:
        assert long_to is not None
        time.sleep(number * every)
        return complete(long_to, long_prompts[number], 1).ttft

    with ThreadPoolExecutor(1 + len(long_prompts)) as pool:
        streaming = pool.submit(stream)
        running.wait()
        begin = time.perf_counter()
        try:
            if long_to is None:
                time.sleep(quiet_seconds)
                ttfts = []
            else:
                ttfts = list(pool.map(send, range(len(long_prompts))))
        finally:
            end = time.perf_counter()
            too_short = streaming.done()
            time.sleep(0.2)  # the gap that the last long prompt has made shall end
            enough.set()
    streaming.result()
    if too_short:
        raise RuntimeError(
            f"The stream ended after {len(times)} tokens, before all long prompts were answered. "
            "Send fewer or shorter ones, or raise max_tokens."
        )
    pairs = [(a, b) for a, b in pairwise(times) if b > begin and a < end]
    return Interference([b - a for a, b in pairs], ttfts)
