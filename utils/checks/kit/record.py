"""The record of progress: a line of JSON for each check that somebody runs in a notebook.

A line says when, which exercise of which lab, what the check said, and how many points it gave. It
holds no code, no answer and no name, and nothing sends it anywhere. `COURSE_PROGRESS=off` in the
environment, and nothing is written.

The file lies in the user's own folder for state, not in `$COURSE_CACHE`: a class shares that cache
and may only read it, one learner's points are not the next one's, and a cache may be deleted at any
time, which a record may not. It is only ever appended to, each line by one write, so two kernels at
once lose nothing, and a line that a full disk cut off costs itself alone. Whatever goes wrong here,
the check's answer is the same.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from utils.checks.kit.feedback import Feedback

FOLDER, FILE = "from-kv-cache-to-vllm", "progress.jsonl"
LAB = re.compile(r"utils\.checks\.lab_(\w+)")  # the module that a lab's checks stand in
OFF = {"off", "no", "false", "0"}


@dataclass(frozen=True)
class Entry:
    """What one run of a check gave. `of` are the points that there were to have."""

    at: str
    lab: str
    exercise: str
    status: str
    points: float
    of: float


def record_file() -> Path:
    """Where this user's record lies, whether there is one yet or not.

    `$XDG_STATE_HOME` moves it, as it moves every program's state; a relative path does not count.

    Raises:
        RuntimeError: this user has no home folder.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    folder = state if state.is_absolute() else Path.home() / ".local" / "state"
    return folder / FOLDER / FILE


def is_off() -> bool:
    """Whether the user wants no record."""
    return os.environ.get("COURSE_PROGRESS", "").strip().lower() in OFF


def note(check: Callable[..., Any], feedback: Feedback) -> str:
    """Append what a lab's check said to the record, if somebody runs it in a notebook.

    Never raises: no folder, no right to write and no room on the disk are no learner's mistake.

    Returns:
        The number of the lab, such as "02"; nothing if nothing was noted.
    """
    with contextlib.suppress(Exception):
        lab = LAB.fullmatch(check.__module__)
        if lab is None or is_off() or not _somebody_is_there() or _is_solution():
            return ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        points, of = float(feedback.points), float(feedback.max_points)
        _append(Entry(now, lab[1], check.__name__, feedback.status, points, of))
        return lab[1]
    return ""


def read_record() -> list[Entry]:
    """Every line of the record that can be read, oldest first; the others are passed over.

    Raises:
        OSError: there is a record, but it cannot be opened.
        RuntimeError: this user has no home folder.
    """
    try:
        text = record_file().read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [entry for line in text.split("\n") if (entry := _entry(line)) is not None]


def _append(entry: Entry) -> None:
    file = record_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = json.dumps(asdict(entry)).encode() + b"\n"
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size:  # behind half a line, begin a new one
            os.lseek(handle, size - 1, os.SEEK_SET)
            line = line if os.read(handle, 1) == b"\n" else b"\n" + line
        os.write(handle, line)
    finally:
        os.close(handle)


def _entry(line: str) -> Entry | None:
    """What a line says, or None if it is damaged."""
    try:
        found = json.loads(line)
        at, lab, exercise, status = (found[n] for n in ("at", "lab", "exercise", "status"))
        points, of = float(found["points"]), float(found["of"])
        datetime.fromisoformat(at)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    words = all(isinstance(text, str) for text in (lab, exercise, status))
    if not words or not 0 <= points <= of < math.inf:
        return None
    return Entry(at, lab, exercise, status, points, of)


def _somebody_is_there() -> bool:
    """Whether a person runs this cell, in JupyterLab or the like.

    Whoever sits there can answer `input()`, and so every frontend tells the kernel that it may ask.
    Programs that run notebooks (nbgrader, nbconvert, nbval, `make verify`) tell it that it may not.
    Only a test that opens JupyterLab in a browser looks like a person: pytest says that it runs.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    asks = getattr(getattr(shell, "kernel", None), "_allow_stdin", False)
    return bool(asks) and "PYTEST_VERSION" not in os.environ


def _is_solution() -> bool:
    """Whether the notebook is one of `solutions/`: to read and run it is not to have solved it."""
    return "solutions" in Path(os.environ.get("JPY_SESSION_NAME", "")).parts
