"""A server on this machine, in a process of its own, which never outlives who started it."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from utils.processes.supervised import Program, WorkerError, program_pid

HOST = "127.0.0.1"
# Seconds until a server must be ready. On a GPU vLLM first compiles the model.
START_PATIENCE = 900 if torch.cuda.is_available() else 300


class PortInUse(OSError):
    """Another program listens on the port that a server was to have."""


class LocalServer(Program):
    """An OpenAI-compatible server, ready to answer. It listens on the loopback interface only.

    Attributes:
        pid: the number of the server's process.

    Args:
        command: program and arguments; `--host`, `--port` and the port are appended.
        env: the complete environment.
        model: the name under which the server knows its model.
        name: what it is, for messages.
        port: None takes a free one.
        verbose: say that it starts, and when it is ready.

    Raises:
        PortInUse: the port is taken. Nothing was started then.
        WorkerError: it ended, or was not ready in time; with the end of its output.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        model: str,
        *,
        name: str = "The server",
        port: int | None = None,
        verbose: bool = False,
    ) -> None:
        if port is not None:
            require_free(port)
        self.port = port or free_port()
        self.url, self.model, self.name = f"http://{HOST}:{self.port}", model, name
        self._verbose = verbose
        super().__init__([*command, "--host", HOST, "--port", str(self.port)], env)
        try:
            self._wait_until_ready()
        except BaseException:  # also when the cell is interrupted
            self.stop()
            raise
        self.pid = program_pid(self.process)

    def get(self, path: str, timeout: float = 10.0) -> str:
        """GET a path such as "/health" or "/metrics"."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as response:
            return response.read().decode()

    def chat(self, messages: list[dict[str, str]], max_tokens: int, timeout: float = 300.0) -> str:
        """One greedy chat completion; returns its text."""
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0.0,
        }
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())["choices"][0]["message"]["content"]

    def _wait_until_ready(self) -> None:
        begin = last_dot = time.monotonic()
        self._say(f"Starting {self.name} on port {self.port} ")
        while self.alive and time.monotonic() < begin + START_PATIENCE:
            try:
                self.get("/health", timeout=2)
                self._say(f" ready after {time.monotonic() - begin:.1f} s.\n")
                return
            except OSError:  # not listening yet, or not healthy yet
                time.sleep(0.2)
            if time.monotonic() > last_dot + 1:
                last_dot = time.monotonic()
                self._say(".")
        what = f"was not ready after {START_PATIENCE} s" if self.alive else "ended"
        message = f"{self.name} {what}. The end of its output:\n{self.log()}"
        raise WorkerError(message, self.log(num_lines=100_000))

    def _say(self, text: str) -> None:
        if self._verbose:
            print(text, end="", flush=True)


def start_together(
    start: Callable[[int], LocalServer], count: int, what: str, verbose: bool
) -> list[LocalServer]:
    """`start(0)`, `start(1)`, ... at the same time; all of them, or none.

    Args:
        start: starts the server of that number.
        what: what they are, for the line that says when they are ready (if `verbose`).

    Raises:
        WorkerError: one of them did not start. The others are stopped.
    """
    begin = time.monotonic()
    if verbose:
        print(f"Starting {count} of {what} ...", end="", flush=True)
    with ThreadPoolExecutor(count) as pool:
        jobs = [pool.submit(start, number) for number in range(count)]
    errors = [error for job in jobs if (error := job.exception())]
    servers = [job.result() for job in jobs if not job.exception()]
    if errors:
        for server in servers:
            server.stop()
        raise errors[0]
    if verbose:
        ports = ", ".join(str(server.port) for server in servers)
        print(f" ready on ports {ports} after {time.monotonic() - begin:.1f} s.")
    return servers


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def require_free(port: int) -> None:
    """Raise `PortInUse` if somebody listens on a port of this machine."""
    listener(port).close()


def listener(port: int, host: str = HOST) -> socket.socket:
    """A socket that is bound to a port, and refuses connections until somebody listens on it.

    Raises:
        PortInUse: the port is taken.
        ValueError: there is no such port.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port={port} is out of range. Expected 1 to 65535, or 0 for any.")
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last server's may linger
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise PortInUse(
            f"Port {port} of {host} cannot be used ({error.strerror}): another program has it, "
            f"perhaps a server that you started before. Stop that one, or choose another port."
        ) from error
    return bound


def as_options(arguments: dict[str, Any]) -> list[str]:
    """Keyword arguments as a command line: True is the option alone, and False `--no-` it."""
    options: list[str] = []
    for key, value in arguments.items():
        option = key.replace("_", "-")
        if value is False:
            options.append(f"--no-{option}")
        else:
            options += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return options
