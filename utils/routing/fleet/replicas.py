"""Several servers of the same model, of ours or of vLLM's, to stand behind a router."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import zmq

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import HOST, LocalServer, as_options, free_port, start_together
from utils.serving.scrape import Reading, scrape
from utils.vllm.engine_settings import EngineSettings, vllm_environment
from utils.vllm.serve import SERVER_MODULE

MODEL_NAME = "smol"
Start = Callable[..., LocalServer]  # of a number, and a port unless a free one will do


@dataclass
class Replicas:
    """Servers of one model. Use them in a `with` block, or `stop` them.

    Args:
        servers: all ready.
        block_size: tokens in a block of their caches.
        events: by a server's URL, where a router finds its KV events.
        replays: by a server's URL, where the past of its KV events is kept.
        proxies: what else must be closed at the end.
        start: starts a replica, given its number and its port.
    """

    servers: list[LocalServer]
    block_size: int
    events: dict[str, str]
    replays: dict[str, str]
    proxies: list[EventProxy]
    start: Start

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    @property
    def model(self) -> str:
        """What clients call the model."""
        return self.servers[0].model

    def readings(self) -> list[Reading]:
        """The metrics of each replica, now. An OSError if one does not answer."""
        return [scrape(url) for url in self.urls]

    def kill(self, index: int) -> None:
        """End one replica as a crash would: at once, in the middle of whatever it does."""
        server = psutil.Process(self.servers[index].pid)
        for process in (server, *server.children(recursive=True)):  # vLLM's engine is a child
            process.kill()
        self.servers[index].process.wait()

    def restart(self, index: int) -> None:
        """Start a replica that was killed anew, at the same URL, with an empty cache.

        Raises:
            PortInUse: it still runs, or another program has its port.
        """
        self.servers[index] = self.start(index, self.servers[index].port)

    def stop(self) -> None:
        """End all of them. Does nothing the second time."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(LocalServer.stop, self.servers))
        for proxy in self.proxies:
            proxy.close()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[LocalServer]:
        return iter(self.servers)

    def __len__(self) -> int:
        return len(self.servers)


class EventProxy:
    """Where a publisher that connects meets subscribers that connect: both ends listen here.

    vLLM's publisher connects to an endpoint such as tcp://127.0.0.1:5557, and so do routers. Two
    that only connect never meet, and neither of them complains.
    """

    def __init__(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._in, self._out = context.socket(zmq.SUB), context.socket(zmq.PUB)
        self._in.subscribe(b"")
        self.publish_to = f"tcp://{HOST}:{self._in.bind_to_random_port(f'tcp://{HOST}')}"
        self.subscribe_at = f"tcp://{HOST}:{self._out.bind_to_random_port(f'tcp://{HOST}')}"
        self.num_forwarded = 0
        self._open = True
        self._thread = threading.Thread(target=self._run, name="event-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._open = False
        self._thread.join()

    def _run(self) -> None:
        while self._open:
            if self._in.poll(100):
                self._out.send_multipart(self._in.recv_multipart())
                self.num_forwarded += 1
        self._in.close(linger=0)
        self._out.close(linger=0)


def course_replicas(
    num_replicas: int = 2,
    model: str | Path = "bundled",
    *,
    kv_events: bool = True,
    block_size: int = 16,
    verbose: bool = True,
    **options: Any,
) -> Replicas:
    """Start servers of ours at the same time, each with one thread.

    Args:
        kv_events: let each of them publish its KV events, and tokenize for routers.
        options: of `python -m utils.serving`, with underscores.

    Raises:
        WorkerError: one of them failed; none is left running then.
    """
    events = [f"tcp://{HOST}:{free_port()}" for _ in range(num_replicas)] if kv_events else []
    replays = [f"tcp://{HOST}:{free_port()}" for _ in events]

    def start(index: int, port: int | None = None) -> LocalServer:
        arguments: dict[str, Any] = {
            "model": model,
            "served_model_name": MODEL_NAME,
            "block_size": block_size,
        }
        arguments |= options
        if kv_events:
            arguments |= _event_options(events[index], replays[index])
        return LocalServer(
            [str(pipeline_python()), "-m", "utils.serving", *as_options(arguments)],
            os.environ | worker_environment() | {"OMP_NUM_THREADS": "1"},
            arguments["served_model_name"],
            name=f"replica {index} of ours",
            port=port,
        )

    servers = start_together(start, num_replicas, "our server", verbose)
    urls = [server.url for server in servers]
    return Replicas(
        servers,
        block_size,
        dict(zip(urls, events, strict=False)),
        dict(zip(urls, replays, strict=False)),
        [],
        start,
    )


def vllm_replicas(
    model_dir: Path,
    num_replicas: int = 2,
    *,
    settings: EngineSettings | None = None,
    verbose: bool = True,
    **options: Any,
) -> Replicas:
    """Start vLLM's servers at the same time, with KV events, each on a core of its own.

    Args:
        model_dir: a model in Hugging Face's format.
        options: of `vllm serve`, with underscores.

    Raises:
        WorkerError: one of them failed; none is left running then.
    """
    settings = settings or EngineSettings(max_model_len=1024)
    proxies = [EventProxy() for _ in range(num_replicas)]
    replays = [f"tcp://{HOST}:{free_port()}" for _ in proxies]  # here vLLM listens

    def start(index: int, port: int | None = None) -> LocalServer:
        arguments: dict[str, Any] = {"model": model_dir, "served_model_name": MODEL_NAME}
        arguments |= (
            settings.arguments()
            | _event_options(proxies[index].publish_to, replays[index])
            | options
        )
        env = vllm_environment() | worker_environment()
        if not torch.cuda.is_available():
            env |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": _core(index)}
        return LocalServer(
            [str(pipeline_python()), *SERVER_MODULE, *as_options(arguments)],
            env,
            arguments["served_model_name"],
            name=f"replica {index} of vLLM",
            port=port,
        )

    try:
        servers = start_together(start, num_replicas, "vLLM's server", verbose)
    except BaseException:
        for proxy in proxies:
            proxy.close()
        raise
    events = {s.url: p.subscribe_at for s, p in zip(servers, proxies, strict=True)}
    past = {server.url: replay for server, replay in zip(servers, replays, strict=True)}
    return Replicas(servers, settings.block_size, events, past, proxies, start)


def _event_options(endpoint: str, replay_endpoint: str) -> dict[str, Any]:
    config: Mapping[str, Any] = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint,
    }
    return {"kv_events_config": json.dumps(config), "enable_scale_out": True}


def _core(index: int) -> str:
    """The core of a replica: one each, as long as there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    return str(cores[index]) if index < len(cores) else "nobind"
