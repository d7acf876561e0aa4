"""Virtual environments in the course's cache folder: built on first use, complete or absent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MARKER = "complete"


def build(
    folder: Path,
    lock: Path,
    bytes_needed: int,
    install: Callable[[Path], None],
    announcement: str,
    no_space: Callable[[str], RuntimeError],
) -> Path:
    """Return the Python of the environment in `folder`; build the environment if it is not there.

    It is built in a folder beside its final one, marked and renamed. A killed build is taken up
    where it stopped. Of several processes, one builds and the others wait.

    Args:
        lock: the file with its exact versions.
        install: called with the path of its Python; creates the environment and fills it.
        announcement: what to print before a build.
        no_space: makes the error, from words that say how much is needed, where, and is free.
    """
    if (folder / MARKER).is_file():
        return folder / "bin" / "python"
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < bytes_needed:
        raise no_space(
            f"{bytes_needed / 1e9:.0f} GB in {folder.parent}, and {free / 1e9:.1f} GB are free"
        )
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / MARKER).is_file():  # else another process built it while this one waited
            print(announcement, flush=True)
            started = time.monotonic()
            work = folder.with_suffix(".building")
            install(work / "bin" / "python")
            (work / MARKER).write_text(lock.read_text())
            os.replace(work, folder)
            print(f"Built in {time.monotonic() - started:.0f} s.", flush=True)
    return folder / "bin" / "python"


def run(
    command: list[str], env: dict[str, str], failed: Callable[[str], RuntimeError], advice: str
) -> None:
    """Run a step of an installation quietly. Where it fails, raise `failed` with its last lines."""
    result = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise failed(
            f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed (exit code "
            f"{result.returncode}). Check the network and the disk, then run it again: it goes on "
            "where it stopped (docs/troubleshooting.md has the usual reasons). "
            f"{advice}Its last lines:\n{tail}"
        )


def find_uv() -> str | None:
    """uv beside this Python or on the path, or None."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def package_sources() -> dict[str, str]:
    """uv reads none of pip's settings, so translate those that say where packages come from."""
    found = {}
    settings = {"index-url": "UV_DEFAULT_INDEX", "find-links": "UV_FIND_LINKS"}
    for setting, variable in settings.items():
        command = [sys.executable, "-m", "pip", "config", "get", f"global.{setting}"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0 and variable not in os.environ:
            found[variable] = ",".join(result.stdout.split())
    return found
