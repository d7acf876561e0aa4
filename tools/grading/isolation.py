"""Run a command that nobody trusts: without network, other files, other processes, or much memory.

The kernel's namespaces do it, by `unshare` of util-linux, which every Linux has; no right of an
administrator is needed. `enter.py` builds the file system from inside. What a namespace does not
bound is watched: memory, processes, and what is written to the one folder that is shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ENTER = Path(__file__).with_name("enter.py")
NAMESPACES = ("--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts")
KEPT = (  # nothing secret
    *("PATH", "LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS"),
    *("COURSE_CACHE", "COURSE_ARTIFACTS", "COURSE_PROFILE"),
)
GIB = 1024**3
LOOK = 0.1  # seconds between two looks at what the command uses


@dataclass(frozen=True)
class Limits:
    """What a command may use: bytes of memory, processes, bytes in the folder it shares."""

    memory: int = 6 * GIB
    processes: int = 64
    shared: int = 1024**2


@dataclass(frozen=True)
class Room:
    """What a command sees of the files: `read` as they are, `write` too, and nothing else.

    `home` is where it starts: an empty folder. `files` are copied there, path -> its text.
    """

    home: str
    read: tuple[str, ...]
    write: tuple[str, ...] = ()


def unavailable() -> str:
    """Why nothing can be isolated here, or ""."""
    if not shutil.which("unshare"):
        return "There is no `unshare` (package util-linux) here: namespaces are Linux's."
    room = Room("/", _system())
    done = subprocess.run(_command(room, ["true"]), capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip() or "unshare failed")[-500:]


def run(room: Room, command: list[str], limits: Limits | None = None) -> int:
    """Run a command in a room: its exit code, or 137 if it used too much and was ended."""
    limits = limits or Limits()
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": room.home, "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(_command(room, command), env=environment, close_fds=True)
    parent = os.getppid()
    try:
        with _attentive():
            while process.poll() is None and os.getppid() == parent:
                if reason := _too_much(process.pid, room, limits):
                    print(f"Ended: {reason}", file=sys.stderr)
                    return 137
                time.sleep(LOOK)
            return process.returncode or 0
    finally:
        process.kill()  # the rest goes with it: --kill-child
        process.wait()


@contextlib.contextmanager
def _attentive() -> Iterator[None]:
    """Neither interrupted nor crowded out; afterwards this process is as it was."""
    # A notebook's cell is interrupted by a signal to the group. It is the command's, not ours.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):  # an administrator's processes have no limit but our looks
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, priority)
        signal.signal(signal.SIGINT, handler)


def _command(room: Room, command: list[str]) -> list[str]:
    """`python -I`: the folder that holds `enter.py` must not be a place to import from."""
    python = [sys.executable, "-I", str(ENTER), json.dumps(asdict(room))]
    # Whoever of the chain dies, what is below dies with it.
    ours = ["setpriv", "--pdeathsig=KILL", "--", "unshare", *NAMESPACES, "--fork"]
    return [*ours, "--kill-child=SIGKILL", "--", *python, *command]


def _system() -> tuple[str, ...]:
    """Programs, libraries and this Python; of /etc just what they cannot do without."""
    etc = ("ld.so.cache", "localtime", "nsswitch.conf", "passwd", "group", "fonts", "alternatives")
    paths = ["/usr", "/bin", "/lib", "/lib64", "/sbin", *(f"/etc/{name}" for name in etc)]
    paths += [sys.prefix, sys.base_prefix, str(ENTER)]
    paths += ["/sys/devices/system/cpu", "/sys/devices/system/node"]
    return tuple(path for path in paths if os.path.lexists(path))


def _too_much(pid: int, room: Room, limits: Limits) -> str:
    """What the command and its descendants use beyond the limits, in words, or ""."""
    memory = number = 0
    files: dict[int, int] = {}
    try:
        for process in psutil.Process(pid).children(recursive=True):
            number += 1
            with contextlib.suppress(OSError):  # gone meanwhile
                memory += _resident(process.pid)
                files |= _in_memory(process.pid)
    except psutil.Error:
        return ""
    memory += sum(files.values())
    if number > limits.processes:
        return f"more than {limits.processes} processes"
    if memory > limits.memory:
        return f"more than {limits.memory / GIB:.1f} GiB of memory"
    shared = sum(f.stat().st_size for w in room.write for f in Path(w).rglob("*") if f.is_file())
    return "too much was written beside its answers" if shared > limits.shared else ""


def _resident(pid: int) -> int:
    """Bytes of a process's own memory, with what it shares with others, but for files' pages."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(
        int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:"))
    )


def _in_memory(pid: int) -> dict[int, int]:
    """The files without a name that a process holds (`memfd_create`): inode -> bytes.

    They are memory, and nobody's while they are not mapped.
    """
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(link).startswith("/memfd:"):
                status = link.stat()
                found[status.st_ino] = status.st_blocks * 512
    return found


def main() -> None:
    """A kernel's command line: `isolation.py --home H --read R ... --write W ... -- COMMAND`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--read", action="append", default=[])
    parser.add_argument("--write", action="append", default=[])
    parser.add_argument("command", nargs="+")
    told = parser.parse_args()
    room = Room(told.home, (*_system(), *told.read), tuple(told.write))
    sys.exit(run(room, told.command))


if __name__ == "__main__":
    main()
