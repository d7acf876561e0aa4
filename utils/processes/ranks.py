"""Processes that work together, one for each rank, started and ended from a notebook.

A function that stands in a cell can be run on them: it travels by value. The first rank that fails
ends them all, and its traceback is shown in the cell. They end with the process that started them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from utils.processes.interrupts import held_interrupts

ROOT = Path(__file__).resolve().parents[2]
START_PATIENCE_S = 120.0


class RankError(RuntimeError):
    """A rank failed, died, or did not answer in time. All ranks have been ended."""


class RankProcesses:
    """`world_size` processes, joined by `torch.distributed`. Each keeps its state between calls.

    Args:
        world_size: how many.
        timeout: seconds that a call may take, and that a rank waits for another one.
        backend: of `torch.distributed`; "gloo" on CPUs, "nccl" on cards.

    Raises:
        ValueError: `world_size` is not a positive integer.
        RankError: a process did not start.
    """

    def __init__(self, world_size: int, timeout: float = 300.0, backend: str = "gloo") -> None:
        if not isinstance(world_size, int) or world_size < 1:
            raise ValueError(f"world_size must be a positive integer, got {world_size!r}.")
        self.world_size, self.timeout = world_size, timeout
        self._calls = 0
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        # Also when this object is thrown away, or the interpreter ends.
        self._end = weakref.finalize(self, _end_all, self._processes, self._folder)
        try:
            self._start(backend)
        except BaseException:
            self.close()
            raise

    def _start(self, backend: str) -> None:
        settings = {
            # Nothing leaves this machine.
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.world_size)),
            "PYTHONPATH": os.pathsep.join(
                dict.fromkeys([str(ROOT), *(p or "." for p in sys.path)])
            ),
        }
        with Listener(str(self._folder / "door"), "AF_UNIX", authkey=None) as door:
            for rank in range(self.world_size):
                log = (self._folder / f"{rank}.log").open("wb")
                with log:
                    self._processes.append(
                        subprocess.Popen(
                            [
                                sys.executable,
                                "-P",
                                str(Path(__file__).with_name("rank.py")),
                                str(self._folder),
                                str(rank),
                                str(self.world_size),
                                backend,
                                str(self.timeout),
                            ],
                            env=os.environ | settings,
                            stdin=subprocess.PIPE,
                            stdout=None,
                            stderr=log,
                            start_new_session=True,  # an interrupt is for the cell
                        )
                    )
            by_rank: dict[int, Connection] = {}
            for _ in range(self.world_size):
                connection = self._accept(door)
                by_rank[connection.recv()] = connection
        self._connections = [by_rank[rank] for rank in range(self.world_size)]

    def _accept(self, door: Listener) -> Connection:
        """The next rank that knocks. None of them may have ended before."""
        socket: Any = door._listener._socket  # type: ignore[attr-defined]
        end = time.monotonic() + START_PATIENCE_S
        while not wait([socket], timeout=0.1):
            self._refuse_the_dead()
            if time.monotonic() > end:
                raise RankError(f"A rank did not start within {START_PATIENCE_S:.0f} s.")
        return door.accept()

    def call(self, function: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
        """Run `function(*args, **settings)` on every rank, at the same time.

        Returns:
            What it returned on each rank, in their order. Numbers, texts, tensors: it is pickled.

        Raises:
            RankError: a rank raised something, ended, or took longer than `timeout`.
        """
        import cloudpickle  # only who starts ranks needs it

        return self.send(cloudpickle.dumps((function, args, settings)))

    def send(self, job: bytes) -> list[Any]:
        """As `call`, of what is pickled already."""
        if not self.alive:
            raise RankError("The ranks have ended. Start them anew.")
        try:
            return self._exchange(job)
        except BaseException as error:
            # After a rank's failure the others would wait for it for ever. An interrupt harms
            # nobody, because it comes between messages.
            if not isinstance(error, KeyboardInterrupt):
                self.close()
            raise

    def _exchange(self, job: bytes) -> list[Any]:
        self._calls += 1
        message = pickle.dumps(self._calls) + job
        results: dict[int, Any] = {}
        texts: dict[int, str] = {}
        end = time.monotonic() + self.timeout
        with held_interrupts():  # to all ranks or to none: one alone would wait for the others
            for rank, connection in enumerate(self._connections):
                try:
                    connection.send_bytes(message)
                except OSError:
                    raise self._error_of(rank) from None
        ranks: dict[Any, int] = {c: rank for rank, c in enumerate(self._connections)}
        while len(results) < self.world_size:
            ready: Any = wait(self._connections, timeout=max(0.0, end - time.monotonic()))
            if not ready:
                missing = sorted(set(range(self.world_size)) - results.keys())
                raise RankError(
                    f"Rank {missing[0]} did not answer within {self.timeout:.0f} s. A rank that "
                    f"waits for a message which nobody sends looks like this."
                )
            for connection in ready:
                rank = ranks[connection]
                try:
                    with held_interrupts():  # half an answer would be read with the next one
                        answer = connection.recv_bytes()
                except (EOFError, OSError):
                    raise self._error_of(rank) from None
                number, error, printed, result = pickle.loads(answer)
                if number != self._calls:
                    continue  # the answer to a call that was interrupted
                texts[rank] = printed
                if error:
                    _show(texts)
                    time.sleep(0.2)  # it may fail because another has died, and is not yet gone
                    self._refuse_the_dead()
                    raise RankError(f"Rank {rank} failed:\n{error}")
                results[rank] = result
        _show(texts)
        return [results[rank] for rank in range(self.world_size)]

    def _refuse_the_dead(self) -> None:
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                raise self._error_of(rank)

    def _error_of(self, rank: int) -> RankError:
        """How a rank ended, in words."""
        process = self._processes[rank]
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        log = (self._folder / f"{rank}.log").read_text(errors="replace").strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        hint = (
            " The system does that when memory runs out: see docs/troubleshooting.md."
            if code == -9
            else ""
        )
        return RankError(f"Rank {rank} {how}.{hint}" + (f"\n{log[-2000:]}" if log else ""))

    @property
    def alive(self) -> bool:
        return self._end.alive

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """End all ranks. May be called twice."""
        for connection in self._connections:
            connection.close()
        self._end()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _show(texts: dict[int, str]) -> None:
    """Print what ranks have printed, in the order of the ranks."""
    for rank in sorted(texts):
        for line in texts[rank].splitlines():
            print(f"[rank {rank}] {line}")


def _end_all(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        if process.stdin:
            process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 300.0,
    **settings: Any,
) -> list[Any]:
    """Start `world_size` ranks, run `function` once on each, and end them.

    The function learns who it is from `torch.distributed.get_rank()`. Returns what each returned.

    Raises:
        RankError: see `RankProcesses.call`.
    """
    with RankProcesses(world_size, timeout) as ranks:
        return ranks.call(function, *args, **settings)
