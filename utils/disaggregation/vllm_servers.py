"""vLLM servers that share a store, and what they count: started once, used by many cells."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.hub import resolve_model
from utils.processes.server import LocalServer, as_options, start_together
from utils.serving.scrape import scrape
from utils.vllm.engine_settings import EngineSettings, vllm_environment
from utils.vllm.serve import SERVER_MODULE

CONNECTOR, MODULE = "ValkeyConnector", "utils.disaggregation.vllm_connector"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"


class RequestRefused(RuntimeError):
    """A server answered with an error. The message is the server's."""


@dataclass(frozen=True)
class Completion:
    """A greedy answer.

    Attributes:
        text, token_ids: what was answered.
        num_prompt_tokens, num_cached_tokens: of the prompt, and how many of them were not computed,
            wherever they came from.
        ttft: seconds until the first token; seconds: until the last one. By the client's clock.
        token_times: seconds from sending to each token.
    """

    text: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    ttft: float
    seconds: float
    token_times: list[float]


@dataclass(frozen=True)
class CacheCounts:
    """vLLM's counters, in tokens: looked up and found in its own memory, and in the store.

    The store is asked for what the own memory does not have, so `external_queries` are the tokens
    that were left.
    """

    queries: int
    hits: int
    external_queries: int
    external_hits: int

    def __sub__(self, earlier: CacheCounts) -> CacheCounts:
        return CacheCounts(
            self.queries - earlier.queries,
            self.hits - earlier.hits,
            self.external_queries - earlier.external_queries,
            self.external_hits - earlier.external_hits,
        )


def connected_servers(
    store_port: int,
    count: int = 2,
    *,
    model: str | Path = "bundled",
    connector: str = CONNECTOR,
    module: str = MODULE,
    python_path: Path | None = None,
    timeout: float = 0.5,
    extra_config: dict[str, Any] | None = None,
    failure_policies: Sequence[str] = ("recompute",),
    verbose: bool = True,
    **options: Any,
) -> list[LocalServer]:
    """Start vLLM servers at the same time, all with a connector to one store.

    They compute in float32, so that the same prompt gives the same tokens whoever computed its keys
    and values. Each has its own threads: on a CPU, a core of its own where there are enough.

    Args:
        store_port: of the Valkey server.
        count: how many servers.
        connector, module: a class and the module to import it from.
        python_path: a folder to look for the module in.
        timeout: seconds after which the connector treats an answer of the store as a miss.
        extra_config: further entries of `kv_connector_extra_config`.
        failure_policies: `kv_load_failure_policy` of the servers, by turns. "recompute" computes
            what could not be loaded; "fail", vLLM's default, ends the request with an error.
        verbose: say how long it took.
        options: further ones of `vllm serve`, with underscores.

    Raises:
        ValueError: there is no such policy.
        WorkerError: a server did not start. The others are stopped.
    """
    if not failure_policies or set(failure_policies) - {"recompute", "fail"}:
        raise ValueError(f"{failure_policies=}; expected 'recompute' or 'fail' for each server.")
    folder = resolve_model(str(model))
    transfer = {
        "kv_connector": connector,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"port": store_port, "timeout": timeout}
        | (extra_config or {}),
    }
    arguments: dict[str, Any] = {"model": folder, "served_model_name": folder.name}
    arguments |= EngineSettings(dtype="float32").arguments()
    arguments |= {"max_num_seqs": 8, "enable_prompt_tokens_details": True}
    arguments |= options
    paths = worker_environment()
    if python_path is not None:
        paths["PYTHONPATH"] = f"{python_path}{os.pathsep}{paths['PYTHONPATH']}"

    def start(number: int) -> LocalServer:
        policy = failure_policies[number % len(failure_policies)]
        mine = {"kv_transfer_config": json.dumps(transfer | {"kv_load_failure_policy": policy})}
        command = [str(pipeline_python()), *SERVER_MODULE, *as_options(mine | arguments)]
        env = vllm_environment() | paths | _own_core(number, count)
        return LocalServer(command, env, folder.name, name=f"vLLM server {number + 1}")

    return start_together(start, count, "vLLM's server", verbose)


def complete(
    server: LocalServer, prompt: str | Sequence[int], max_tokens: int = 16, **body: Any
) -> Completion:
    """One greedy completion, streamed, of exactly `max_tokens` tokens, and when each came.

    Args:
        server: vLLM's, or a proxy before it.
        prompt: text, or token ids.
        body: further fields of the request, such as `cache_salt`.

    Raises:
        RequestRefused: the server answered with an error, or the stream ended with one.
    """
    text = ""
    usage: dict[str, Any] = {}
    ids: list[int] = []
    times: list[float] = []
    begin = time.perf_counter()
    for event in events(server, prompt, max_tokens, **body):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["text"]
            ids += choice.get("token_ids") or []
            times.append(time.perf_counter() - begin)
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        text,
        ids,
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens") or 0,
        times[0] if times else float("nan"),
        time.perf_counter() - begin,
        times,
    )


def events(
    server: LocalServer, prompt: str | Sequence[int], max_tokens: int, **body: Any
) -> Iterator[dict[str, Any]]:
    """The events of such a completion, as they come. Whoever stops reading ends the request.

    Raises:
        RequestRefused: as `complete`.
    """
    fields = {
        "model": server.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    } | body
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps(fields).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RequestRefused(event["error"]["message"])
                    yield event
    except urllib.error.HTTPError as error:
        raise RequestRefused(f"status {error.code}: {error.read().decode()[:500]}") from None
    except (urllib.error.URLError, http.client.HTTPException) as error:
        raise RequestRefused(f"{server.name} does not answer to the end: {error!r}") from None


def cache_counts(server: LocalServer) -> CacheCounts:
    """Read vLLM's counters. Subtract an earlier reading: they only grow."""
    metrics = scrape(server.url)
    return CacheCounts(
        *(
            int(metrics.value(f"vllm:{name}_total"))
            for name in (
                "prefix_cache_queries",
                "prefix_cache_hits",
                "external_prefix_cache_queries",
                "external_prefix_cache_hits",
            )
        )
    )


def _own_core(number: int, count: int) -> dict[str, str]:
    """Where vLLM's threads run: two that share a core by turns would slow each other down."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if BINDING in os.environ:
        return {"OMP_NUM_THREADS": "1"}
    if len(cores) < count:
        return {BINDING: "nobind", "OMP_NUM_THREADS": "1"}
    share = len(cores) // count
    mine = cores[number * share : (number + 1) * share]
    return {BINDING: ",".join(map(str, mine)), "OMP_NUM_THREADS": str(len(mine))}
