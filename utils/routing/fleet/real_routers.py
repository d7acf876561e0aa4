"""Start the field's own routers in front of replicas: `smg` and `vllm-router`, both in Rust.

`vllm-router` is the vLLM project's; `smg` is the Shepherd Model Gateway. Both descend from SGLang's
router, and come as wheels.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import HOST, LocalServer, as_options, free_port
from utils.serving.scrape import Reading, parse

PROGRAMS = {"smg": ("smg", "launch"), "vllm-router": ("vllm-router",)}


class NoReplicaAnswers(RuntimeError):
    """A router was to be started, and there is nobody behind it."""


class RealRouter(LocalServer):
    """A router of the field in a process of its own. Stop it as any `LocalServer`."""

    def __init__(self, *arguments: Any, metrics_port: int, **options: Any) -> None:
        self.metrics_port = metrics_port
        super().__init__(*arguments, **options)

    def metrics(self) -> Reading:
        """What the router counts. It shows that on a port of its own."""
        url = f"http://{HOST}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            return parse(response.read().decode())


def real_router(
    program: str,
    policy: str,
    urls: Sequence[str],
    model: str,
    *,
    kv_events: Mapping[str, str] | None = None,
    kv_event_block_size: int | None = None,
    port: int | None = None,
    verbose: bool = True,
    **options: Any,
) -> RealRouter:
    """Start a router on a local port, a free one unless told.

    Args:
        program: "smg" or "vllm-router".
        policy: one of the program's: "round_robin", "cache_aware", ... (`--help` lists them).
        urls: of the replicas.
        model: what the replicas call their model.
        kv_events: for the policy "kv_aware": by URL of the replica, where it publishes its events.
        kv_event_block_size: tokens in a block of the replicas' caches, for "kv_aware".
        options: more of the program's command line, with underscores.

    Raises:
        ValueError: an unknown program, or "kv_aware" without what it needs.
        NoReplicaAnswers: none of the replicas is healthy. (A router would wait for minutes.)
        PortInUse, WorkerError: see `LocalServer`; the second with the end of the router's log.
    """
    if program not in PROGRAMS:
        raise ValueError(f"Unknown router {program!r}. Expected one of {', '.join(PROGRAMS)}.")
    if policy == "kv_aware" and not (kv_events and kv_event_block_size):
        raise ValueError("kv_aware needs kv_events, a URL's endpoint each, and the block size.")
    require_live(urls)
    metrics_port = free_port()
    arguments: dict[str, Any] = {
        "policy": policy,
        "prometheus_host": HOST,
        "prometheus_port": metrics_port,
        "log_level": "warn" if program == "smg" else "warning",
        # A replica that dies is noticed after seconds, not minutes.
        "health_check_interval_secs": 2,
        "worker_startup_check_interval": 1,
    }
    command = [*as_options(arguments | options), "--worker-urls", *urls]
    if policy == "kv_aware":
        command += ["--kv-event-model", model, "--kv-event-block-size", str(kv_event_block_size)]
        for url, endpoint in (kv_events or {}).items():
            command += ["--kv-event-source", f"{url}={endpoint}"]
    python = pipeline_python()
    name, *rest = PROGRAMS[program]
    return RealRouter(
        [str(python.parent / name), *rest, *command],
        os.environ | worker_environment(),
        model,
        metrics_port=metrics_port,
        name=f"{program} ({policy})",
        port=port,
        verbose=verbose,
    )


def require_live(urls: Sequence[str]) -> None:
    """Raise `NoReplicaAnswers` unless one of the replicas, at least, says that it is healthy."""
    problems = []
    for url in urls:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
    raise NoReplicaAnswers(
        "No replica answers, so there is nothing to route to. Start one first.\n"
        + "\n".join(problems)
    )
