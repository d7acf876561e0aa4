"""Prompts in groups that share a beginning, and what became of them on real replicas."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from utils.routing.fleet.replicas import Replicas
from utils.routing.policies import RoutingRequest
from utils.routing.router.block_names import block_names
from utils.serving.scrape import Reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WORDS = (
    "river",
    "stone",
    "market",
    "winter",
    "engine",
    "garden",
    "music",
    "doctor",
    "letter",
    "bridge",
    "silver",
    "forest",
    "teacher",
    "island",
    "history",
    "window",
    "copper",
    "harbour",
)
PATIENCE = 300.0  # seconds for one answer


@dataclass(frozen=True)
class GroupedPrompt:
    """A prompt of a group: a context that all of its group begin with, and a question."""

    group: int
    text: str


def prompt_groups(
    num_groups: int = 7, requests_per_group: int = 5, num_words: int = 110, seed: int = 0
) -> list[GroupedPrompt]:
    """Prompts of several groups, in rounds: each group once in a round, in mixed order.

    Args:
        num_words: in what a group shares; about a token each.
        seed: another seed gives other contexts, of which nothing is cached anywhere. The order of
            the groups is the same, so that runs can be compared.
    """
    rng, order = random.Random(seed), random.Random(0)
    contexts = [
        f"Note {seed}.{group}: " + " ".join(rng.choices(WORDS, k=num_words)) + "."
        for group in range(num_groups)
    ]
    return [
        GroupedPrompt(group, f"{contexts[group]} Question {number}: what is it about?")
        for number in range(requests_per_group)
        for group in order.sample(range(num_groups), num_groups)
    ]


def routing_requests(
    prompts: Sequence[GroupedPrompt], tokenizer: PreTrainedTokenizerBase, block_size: int
) -> list[RoutingRequest]:
    """The prompts as a router sees them, with the group as the session."""
    requests = []
    for i, prompt in enumerate(prompts):
        tokens = tokenizer.encode(prompt.text)
        names = block_names(tokens, block_size)
        requests.append(RoutingRequest(i, names, len(tokens), f"group {prompt.group}"))
    return requests


def predicted_hit_rate(
    requests: Sequence[RoutingRequest],
    block_size: int,
    choose: Callable[[RoutingRequest], int] = lambda request: 0,
) -> float:
    """The hit rate, if replica `choose(request)` gets each one, and no cache is ever full.

    By default one replica gets them all: there can be no better. Requests are sent one after the
    other. Of each prompt at least one token is computed, cached or not.
    """
    caches: dict[int, set[object]] = {}
    hits = 0
    for request in requests:
        cache = caches.setdefault(choose(request), set())
        usable = request.block_hashes[: (request.num_tokens - 1) // block_size]
        missing = (i for i, name in enumerate(usable) if name not in cache)
        hits += block_size * next(missing, len(usable))
        cache.update(request.block_hashes)
    return hits / max(1, sum(request.num_tokens for request in requests))


@dataclass
class RunReport:
    """What became of some prompts, by the replicas' own counters.

    Attributes:
        num_requests: how many each replica answered.
        queries: prompt tokens that each replica looked up in its prefix cache.
        hits: those that it found there.
        seconds: for all of them.
        errors: what the failed ones were told.
    """

    num_requests: list[int]
    queries: list[int]
    hits: list[int]
    seconds: float
    errors: list[str] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return sum(self.hits) / max(1, sum(self.queries))

    def __str__(self) -> str:
        failed = f", {len(self.errors)} failed: {self.errors[0]}" if self.errors else ""
        return f"hit rate {self.hit_rate:.1%}, requests per replica {self.num_requests}{failed}"


def run_prompts(
    url: str, replicas: Replicas, prompts: Sequence[GroupedPrompt], max_tokens: int = 1
) -> RunReport:
    """Send prompts to a router (or a replica) one after the other, with their group as session."""
    before, begin, errors = replicas.readings(), time.perf_counter(), []
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        for prompt in prompts:
            try:
                complete(client, replicas.model, prompt, max_tokens)
            except httpx.HTTPError as error:
                errors.append(str(error))
    seconds = time.perf_counter() - begin
    gained = [now.since(then) for now, then in zip(replicas.readings(), before, strict=True)]
    return report(gained, seconds, errors)


def report(gained: Sequence[Reading], seconds: float, errors: list[str]) -> RunReport:
    """A report from what each replica's metrics have gained."""

    def counts(name: str) -> list[int]:
        return [int(reading.value(name)) for reading in gained]

    return RunReport(
        counts("vllm:e2e_request_latency_seconds_count"),
        counts("vllm:prefix_cache_queries_total"),
        counts("vllm:prefix_cache_hits_total"),
        seconds,
        errors,
    )


def complete(client: httpx.Client, model: str, prompt: GroupedPrompt, max_tokens: int = 1) -> str:
    """The greedy answer to one prompt. Raises an `httpx.HTTPError` with what the server said."""
    body = {"model": model, "prompt": prompt.text, "max_tokens": max_tokens, "temperature": 0}
    session = f"group {prompt.group}"
    headers = {"x-session-id": session, "x-smg-routing-key": session}
    response = client.post("/v1/completions", json=body, headers=headers)
    if response.is_error:
        raise httpx.HTTPStatusError(
            f"status {response.status_code}: {response.text[:200]}",
            request=response.request,
            response=response,
        )
    return response.json()["choices"][0]["text"]
