"""How long clients wait for a first token when several of them ask a router at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from utils.routing.fleet.replicas import Replicas
from utils.routing.fleet.workload import GroupedPrompt, RunReport, prompt_groups, report
from utils.serving.load_generator import Body, LoadGenerator
from utils.serving.load_report import LoadReport


def mixed_notes(
    num_long: int = 3,
    num_short: int = 6,
    questions: int = 3,
    seed: int = 0,
    order: int | None = None,
) -> list[GroupedPrompt]:
    """Prompts about long notes (some 430 tokens) and short ones (some 30), in mixed order.

    Args:
        questions: prompts of each note.
        seed: another seed gives other notes.
        order: the order's own seed, so that other notes can come in the same order; by default
            it is `seed`.
    """
    long = prompt_groups(num_long, questions, 400, seed)
    short = [
        GroupedPrompt(num_long + prompt.group, prompt.text)
        for prompt in prompt_groups(num_short, questions, 8, seed + 1_000_000)
    ]
    prompts = long + short
    random.Random(seed if order is None else order).shuffle(prompts)
    return prompts


@dataclass
class WaitReport:
    """What clients measured and what the replicas counted.

    Attributes:
        ttfts: seconds to the first token of each request that got one, `[num_succeeded]`.
        run: hits and requests per replica, by the replicas' counters.
    """

    ttfts: np.ndarray
    run: RunReport

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.ttfts, percent))

    def __str__(self) -> str:
        return (
            f"hit rate {self.run.hit_rate:3.0%}, TTFT p50 {self.percentile(50):5.2f} s, "
            f"p90 {self.percentile(90):5.2f} s, requests per replica {self.run.num_requests}"
        )


def ask_together(
    url: str,
    replicas: Replicas,
    prompts: Sequence[GroupedPrompt],
    num_clients: int = 6,
    max_tokens: int = 8,
) -> WaitReport:
    """Let several clients send prompts to a router, each client one after the other.

    Args:
        prompts: taken by whichever client is free next.
        num_clients: how many requests are under way at once.
        max_tokens: of each answer.
    """
    bodies: list[Body] = [
        {
            "model": replicas.model,
            "prompt": prompt.text,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        for prompt in prompts
    ]

    async def send() -> LoadReport:
        async with LoadGenerator(url, "/v1/completions") as generator:
            return await generator.closed_loop(bodies, num_clients)

    before = replicas.readings()
    with ThreadPoolExecutor(1) as pool:  # a notebook has a loop of its own already
        load = pool.submit(asyncio.run, send()).result()
    gained = [now.since(then) for now, then in zip(replicas.readings(), before, strict=True)]
    good = [timing for timing in load.timings if timing.succeeded]
    errors = [timing.error or "no token" for timing in load.timings if not timing.succeeded]
    return WaitReport(
        np.array([timing.ttft for timing in good]), report(gained, load.seconds, errors)
    )
