"""Runs a program and ends it, with all that it started, when the process that wanted it is gone.

    python supervisor.py PID PROGRAM ARGUMENT...

A process that is killed cannot end what it started, and a program that is not ours does not watch
its parent. So this small one stands between. It is run by its path and imports nothing heavy: it
watches from the first moment, long before the program has imported torch. `process.supervised`
writes the command.

PID is the process that wants the program. It is handed down, because the parent that one sees after
the start may already be another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

LOOK_EVERY = 0.2  # seconds
PATIENCE = 10.0  # seconds for a program to end politely
# Of Linux' prctl: the signal that a process gets when its parent dies; and: what a dying child
# leaves behind becomes ours, so that it can be found.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# In the environment of the program and of all that it starts: this process's number. If this one is
# killed, with the program, `process.stop` finds the others by it.
MARK = "COURSE_SUPERVISOR"


def supervise(parent: int, command: list[str]) -> int:
    """Run `command` until it ends, `parent` ends, or somebody asks by SIGTERM; its exit status."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, lambda *_: None)  # an interrupt is the program's own affair
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    try:
        env = os.environ | {MARK: str(os.getpid())}
        process = subprocess.Popen(command, env=env, preexec_fn=_die_with_supervisor)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        while os.getppid() == parent and not asked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=LOOK_EVERY)
        if not asked:
            return 1
        _end_politely(process)
        return process.wait()
    finally:
        while family := _descendants(process):  # one may have started another meanwhile
            _signal(family, signal.SIGKILL)
            time.sleep(0.01)


def _end_politely(process: subprocess.Popen[bytes]) -> None:
    """Ask all of them to end, and wait; the program itself is killed if it does not."""
    _signal(_descendants(process), signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while _descendants(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """All that the program started and that still runs, and the program."""
    import psutil

    process.poll()
    family = []
    for member in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if member.status() != psutil.STATUS_ZOMBIE:
                family.append(member)
            elif member.ppid() == os.getpid() and member.pid != process.pid:
                os.waitpid(member.pid, os.WNOHANG)  # it became ours; it waits to be counted
    return family


def _signal(family: list[psutil.Process], number: int) -> None:
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, number)


def _die_with_supervisor() -> None:
    """In the child, before the program starts."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    status = supervise(int(sys.argv[1]), sys.argv[2:])
    if status < 0:  # ended by a signal: end in the same way, so that who waits for us sees it
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
