"""The folder that stages write to: one run at a time, and each stage's folder whole or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORK_PREFIX = ".unfinished-"
ELSEWHERE = "Give another folder: --out, or the environment variable COURSE_ARTIFACTS."
READ_ONLY = (errno.EACCES, errno.EROFS, errno.EPERM)


class StageError(RuntimeError):
    """A stage cannot run, or failed. The message says which, and what to do."""


@contextmanager
def locked(out: Path, wait: bool) -> Iterator[None]:
    """Make the folder, and keep a second run out of it. The lock dies with the process.

    A folder that nobody can write to needs no lock: its stages may be complete.

    Raises:
        StageError: the folder cannot be made; or, unless this is to `wait`, another run is active.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StageError(f"Cannot make the folder {out}: {error.strerror}. {ELSEWHERE}") from error
    try:
        file = (out / ".lock").open("w")
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                raise StageError(
                    f"Another run is writing to {out}. Wait for it, or use another --out."
                ) from error
            print(f"Another run is writing to {out.name}/: waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work_folder(out: Path, name: str) -> Path:
    """A new folder beside that of the stage, to be filled.

    Raises:
        StageError: nothing can be written there.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{name}-", dir=out))
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise StageError(
            f"The stage {name!r} must be run, but {out} cannot be written to. {ELSEWHERE}"
        ) from error


def replace(work: Path, target: Path) -> None:
    """Put `work` in the place of `target`; at every moment the target is whole or absent."""
    old = work.with_name(f"{work.name}-old")
    if target.exists():
        os.replace(target, old)  # removed with what is left over
    os.replace(work, target)
    shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(out: Path) -> None:
    """Remove what runs have left that were killed."""
    for folder in out.glob(f"{WORK_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
