"""Two experiments on real replicas: a cache warmed behind a router's back, and a replica killed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from utils.routing.fleet.replicas import Replicas
from utils.routing.fleet.workload import PATIENCE, GroupedPrompt, complete, prompt_groups


@dataclass
class WarmedReport:
    """Where prompts went whose contexts a replica had computed, unknown to the router.

    Attributes:
        warmed: the replica that knew each prompt's context.
        chosen: the replica that the router sent it to; None if that cannot be told.
    """

    warmed: list[int]
    chosen: list[int | None]

    @property
    def num_right(self) -> int:
        return sum(a == b for a, b in zip(self.warmed, self.chosen, strict=True))

    def __str__(self) -> str:
        return f"{self.num_right} of {len(self.warmed)} prompts went where their context was"


def warm_behind(
    replicas: Replicas, num_prompts: int = 10, num_words: int = 110, seed: int = 0
) -> tuple[list[GroupedPrompt], list[int]]:
    """Send a prompt of each of `num_prompts` groups to a replica directly, the same number to each.

    Returns:
        Another prompt of each group, to be sent through a router; and the replica that knows its
        group. The order is random: whoever takes replicas in turns is right half the time.
    """
    known, asked = (
        sorted(prompts, key=lambda prompt: prompt.group)
        for prompts in _halves(prompt_groups(num_prompts, 2, num_words, seed))
    )
    owners = [i % len(replicas) for i in range(num_prompts)]
    random.Random(seed).shuffle(owners)
    clients = [httpx.Client(base_url=u, timeout=PATIENCE, trust_env=False) for u in replicas.urls]
    for prompt, owner in zip(known, owners, strict=True):
        complete(clients[owner], replicas.model, prompt)
    for client in clients:
        client.close()
    return asked, owners


def ask_warmed(
    url: str, replicas: Replicas, asked: Sequence[GroupedPrompt], owners: Sequence[int]
) -> WarmedReport:
    """Send prompts through a router, one after the other, and see where each of them goes."""
    chosen: list[int | None] = []
    name = "vllm:prefix_cache_queries_total"
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        for prompt in asked:
            before = [reading.value(name) for reading in replicas.readings()]
            complete(client, replicas.model, prompt)
            after = [reading.value(name) for reading in replicas.readings()]
            grown = [i for i, value in enumerate(after) if value > before[i]]
            chosen.append(grown[0] if len(grown) == 1 else None)
    return WarmedReport(list(owners), chosen)


@dataclass
class KillReport:
    """What became of requests that were under way when a replica was killed.

    Attributes:
        answers: by request, the text of each complete answer; None where it broke off.
        begun: by request, whether its first token had come before it was complete or broke off.
        errors: what clients were told.
    """

    answers: list[str | None]
    begun: list[bool]
    errors: list[str] = field(default_factory=list)

    @property
    def num_complete(self) -> int:
        return sum(answer is not None for answer in self.answers)

    @property
    def num_lost(self) -> int:
        """Answers that had begun, and broke off."""
        return sum(a is None and b for a, b in zip(self.answers, self.begun, strict=True))

    @property
    def num_refused(self) -> int:
        """Requests that got no answer at all."""
        return sum(a is None and not b for a, b in zip(self.answers, self.begun, strict=True))

    def __str__(self) -> str:
        return (
            f"{len(self.answers)} requests: {self.num_complete} complete, {self.num_lost} broken "
            f"off in the middle, {self.num_refused} refused"
        )


def kill_under_load(
    url: str,
    replicas: Replicas,
    prompts: Sequence[GroupedPrompt],
    victim: int = 0,
    max_tokens: int = 40,
    num_begun: int | None = None,
) -> KillReport:
    """Send all prompts at once as streams, and kill a replica in the middle.

    Args:
        victim: the replica that is killed. It does not come back: `replicas.restart(victim)`.
        max_tokens: of each answer.
        num_begun: the replica is killed as soon as so many answers have begun; by default, half.
    """
    needed = len(prompts) // 2 if num_begun is None else num_begun
    answers: list[str | None] = [None] * len(prompts)
    begun, errors = [threading.Event() for _ in prompts], []

    def one(i: int) -> None:
        body = {
            "model": replicas.model,
            "prompt": prompts[i].text,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            answers[i] = _read_stream(url, body, begun[i])
        except (httpx.HTTPError, RuntimeError) as error:
            errors.append(str(error) or type(error).__name__)

    with ThreadPoolExecutor(len(prompts)) as pool:
        jobs = [pool.submit(one, i) for i in range(len(prompts))]
        while sum(event.is_set() for event in begun) < needed and not all(j.done() for j in jobs):
            time.sleep(0.005)
        replicas.kill(victim)
    # Not as it was when the replica was killed: a token can be on its way in that moment, and an
    # answer that breaks off after it is lost, and not refused.
    return KillReport(answers, [event.is_set() for event in begun], errors)


def _read_stream(url: str, body: dict[str, Any], begun: threading.Event) -> str:
    """The text of a streamed answer. Raises a RuntimeError where it breaks off or is refused."""
    text, ended = "", False
    with (
        httpx.Client(timeout=PATIENCE, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        if response.is_error:
            raise RuntimeError(f"status {response.status_code}: {response.read().decode()[:200]}")
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                ended = True
                break
            data = json.loads(line.removeprefix("data: "))
            if "error" in data:
                raise RuntimeError(data["error"]["message"])
            begun.set()
            text += "".join(choice["text"] for choice in data["choices"])
    if not ended:
        raise RuntimeError("The stream ended in the middle of an answer.")
    return text


def _halves(prompts: Sequence[GroupedPrompt]) -> tuple[list[GroupedPrompt], list[GroupedPrompt]]:
    middle = len(prompts) // 2
    return list(prompts[:middle]), list(prompts[middle:])
