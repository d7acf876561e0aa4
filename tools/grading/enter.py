"""Build an isolated command's file system, from inside its namespaces, and become the command.

`isolation.py` starts this, by `python -I`: it must import nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

# Bytes for everything that is written: files in /tmp, at home, in /dev/shm. As much for memory that
# belongs to no process: System V's, and a file without a name.
SCRATCH = 1024**3
THREADS = 1024  # of all processes together; the kernel asks no administrator for it
DEVICES = ("null", "zero", "full", "random", "urandom")
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
RDONLY, NOSUID = 1, 2
# The command has no rights over its namespaces, not even those it could regain by another one.
LAST = (
    "unshare",
    "--user",
    "--map-user=1000",
    "--map-group=1000",
    "--",
    "setpriv",
    "--no-new-privs",
    "--",
)


def main() -> None:
    room, command = json.loads(sys.argv[1]), sys.argv[2:]
    loopback_up()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (THREADS, THREADS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (SCRATCH, SCRATCH))
    with contextlib.suppress(OSError):  # older kernels leave this to the machine's administrator
        Path("/proc/sys/kernel/shmall").write_text(str(SCRATCH // resource.getpagesize()))
    root = Path(mkdtemp(dir="/tmp"))
    mount("-t", "tmpfs", "-o", f"size={SCRATCH},mode=755", "tmpfs", str(root))
    for folder in ("proc", "dev/shm", "tmp", "old", room["home"].lstrip("/")):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path in room["read"]:
        show(root, path, read_only=True)
    for path in room["write"]:
        show(root, path, read_only=False)
    for name in DEVICES:
        show(root, f"/dev/{name}", read_only=False)
    mount("-t", "proc", "proc", str(root / "proc"))
    os.chdir(root)
    system = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}  # not in every user's PATH
    subprocess.run(["pivot_root", ".", "old"], env=system, check=True)
    os.chdir("/")
    subprocess.run(["umount", "--lazy", "/old"], check=True)
    os.rmdir("/old")
    os.chmod("/tmp", 0o777)
    os.chdir(room["home"])
    os.execvp(LAST[0], [*LAST, *command])


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def show(root: Path, path: str, read_only: bool) -> None:
    """Make a file or folder of the system visible under the new root, at its own path."""
    inside = root / path.lstrip("/")
    if inside.exists() or inside.is_symlink():
        return  # within a folder that is shown already
    inside.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(path):
        inside.symlink_to(os.readlink(path))
        return
    if os.path.isdir(path):
        inside.mkdir()
    else:
        inside.touch()
    mount("--rbind", path, str(inside))
    if read_only:
        make_read_only(str(inside))


def make_read_only(path: str) -> None:
    """Also what is mounted below it, which a remount would leave as it was."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("QQQQ", RDONLY | NOSUID, 0, 0, 0)
    if libc.syscall(
        SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, attributes, len(attributes)
    ):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot make {path} read-only: {os.strerror(error)}")


def loopback_up() -> None:
    """127.0.0.1 works: labs start servers of their own. Nothing else can be reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = 0x1 | 0x40  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", flags))  # SIOCSIFFLAGS


if __name__ == "__main__":
    main()
