"""Programs that leave nothing behind: no orphans, and errors that are shown."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TextIO

import psutil

from utils.processes.supervisor import MARK, PATIENCE

TAIL_LINES = 25
SUPERVISOR = Path(__file__).with_name("supervisor.py")


class WorkerError(RuntimeError):
    """A subprocess failed. The message holds the end of what it wrote to stderr.

    Attributes:
        log: all that a server wrote. Its last lines are often not those that say why.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def supervised(command: Sequence[str]) -> list[str]:
    """A command that does the same, and never outlives this process, however that one ends.

    `supervisor.py` runs it. End it with `stop`.
    """
    return [sys.executable, str(SUPERVISOR), str(os.getpid()), *command]


def program_pid(process: subprocess.Popen[str]) -> int:
    """The number of the program behind a supervised process that is running."""
    return psutil.Process(process.pid).children()[0].pid


def run_to_end(
    command: Sequence[str], env: dict[str, str], name: str, typed: str | None = None
) -> str:
    """Run a command to its end, and return what it printed.

    Args:
        command: program and arguments.
        env: the complete environment.
        name: what it does, for the error message.
        typed: what it reads from its standard input, as if someone typed it.

    Raises:
        WorkerError: the command failed.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            supervised(command),
            env=env,
            stdin=None if typed is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
        )
        stop_when_killed(process)
        try:
            printed, _ = process.communicate(typed)
        finally:  # also when the cell is interrupted
            stop(process)
        if process.returncode:
            killed = "was killed, perhaps for memory (see docs/troubleshooting.md),"
            how = killed if process.returncode < 0 else "failed"
            raise WorkerError(
                f"{name} {how} (exit code {process.returncode}). The end of its output:\n"
                f"{last_lines(errors)}"
            )
    return printed


class Program:
    """A supervised program that runs beside this one, until `stop()`.

    It also ends when nobody refers to it any more, and with this process, however that one ends. It
    runs in a session of its own: Jupyter sends the interrupt of a cell to all processes of the
    kernel's group, and an interrupted cell shall not end what later cells talk to.

    Attributes:
        process: the supervisor, which watches it.

    Args:
        command: program and arguments.
        env: the complete environment; None: this process's.
        lines: its input and output are pipes. Else what it prints goes into the log.
        keep_log: what it writes to stderr goes into the log. Else it is shown.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        *,
        lines: bool = False,
        keep_log: bool = True,
    ) -> None:
        log = tempfile.TemporaryFile("w+", errors="replace") if keep_log else None  # noqa: SIM115
        pipe = subprocess.PIPE if lines else None
        self._log = log
        self.process: subprocess.Popen[str] = subprocess.Popen(
            supervised(command),
            env=env,
            stdin=pipe,
            stdout=pipe or log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, stop, self.process)  # also runs when Python exits

    @property
    def alive(self) -> bool:
        """Is it still there? (It may be paused.)"""
        return self.process.poll() is None

    def log(self, num_lines: int = TAIL_LINES) -> str:
        """The end of what it wrote: so many lines."""
        return "" if self._log is None else last_lines(self._log, num_lines)

    def stop(self) -> None:
        """End it, with all that it started. Does nothing if it has ended."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def last_lines(log: TextIO, num_lines: int = TAIL_LINES) -> str:
    """The end of a file that a program writes to."""
    log.seek(0)
    return "".join(log.readlines()[-num_lines:])


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
    return [
        member
        for member in psutil.process_iter(["environ", "status"])
        if member.info["status"] != psutil.STATUS_ZOMBIE
        and (member.info["environ"] or {}).get(MARK) == str(supervisor)
    ]
