"""Subprocesses that leave nothing behind: watched memory, no orphans, errors that are shown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from utils.pipeline.supervisor import MARK, PATIENCE

TAIL_LINES = 25
SUPERVISOR = Path(__file__).with_name("supervisor.py")


class WorkerError(RuntimeError):
    """A subprocess failed. The message holds the end of what it wrote to stderr."""


def supervised(command: Sequence[str]) -> list[str]:
    """A command that does the same, and never outlives this process, however that one ends.

    `supervisor.py` runs it. End it with `stop`.
    """
    return [sys.executable, str(SUPERVISOR), str(os.getpid()), *command]


def program_pid(process: subprocess.Popen[str]) -> int:
    """The number of the program behind a supervised process that is running."""
    return psutil.Process(process.pid).children()[0].pid


def run_worker(command: Sequence[str], env: dict[str, str], name: str) -> None:
    """Run a command to its end.

    Args:
        command: program and arguments.
        env: the complete environment.
        name: what it does, for the error message.

    Raises:
        WorkerError: the command failed.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    process = subprocess.Popen(
        supervised(command), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip
    try:
        assert process.stderr is not None
        stop_when_killed(process)
        for line in process.stderr:
            tail.append(line.rstrip())
        process.wait()
    finally:
        stop(process)
    if process.returncode:
        reason = (
            "was killed, perhaps for memory (see docs/troubleshooting.md),"
            if process.returncode < 0
            else "failed"
        )
        raise WorkerError(
            f"{name} {reason} (exit code {process.returncode}). The end of its output:\n"
            + "\n".join(tail)
        )


def stop(process: subprocess.Popen[Any]) -> None:
    """End a supervised process and all its descendants: politely first, then by force.

    Also when it has ended already: if it was killed, it could not end its family itself.
    """
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(PATIENCE + 5)
    except subprocess.TimeoutExpired:  # even the supervisor is stuck: on a stopped machine, say
        process.kill()
        process.wait()
    if process.returncode == -signal.SIGKILL:
        family += _marked(process.pid)
    while family:
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        family = _marked(process.pid) if process.returncode == -signal.SIGKILL else []


def stop_when_killed(process: subprocess.Popen[Any]) -> None:
    """See to it that no pipe to a supervised process stays open when its supervisor is killed.

    What is left of its family would hold the other end, and who reads would wait for it.
    """

    def watch() -> None:
        process.wait()
        stop(process)

    threading.Thread(target=watch, daemon=True).start()


def _marked(supervisor: int) -> list[psutil.Process]:
    """What the program of a supervisor that was killed has started, and is still there."""
    return [member for member in psutil.process_iter(["environ", "status"])
            if member.info["status"] != psutil.STATUS_ZOMBIE
            and (member.info["environ"] or {}).get(MARK) == str(supervisor)]  # fmt: skip


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class PeakMemory:
    """Context manager: the peak memory of this process and its descendants, sampled.

    `peak` is in bytes, the sum of the resident sets. Pages that processes share count in each of
    them, so the true peak is a little lower.
    """

    def __init__(self, interval: float = 0.5) -> None:
        self.interval = interval
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while True:
            total = 0
            for process in (this, *this.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # it ended meanwhile
            self.peak = max(self.peak, total)
            if self._done.wait(self.interval):
                return
