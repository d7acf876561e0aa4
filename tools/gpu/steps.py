"""A check's steps: programs that run one after the other, each with a record of its own.

A record is written as soon as its step ends, so a check that is cut off leaves what it has, and
the next one repeats only what failed or changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from utils.processes.supervised import stop, supervised  # noqa: E402

PLUGIN = "tools.gpu.test_lines"  # writes what `read_tests` reads


@dataclass(frozen=True)
class Step:
    """A program, and how its result is read from the folder where it wrote; None: it left none.

    Args:
        limit_s: seconds after which it is stopped; what it has written until then counts.
        environment: added to this process's.
    """

    name: str
    title: str
    command: list[str]
    read: Callable[[Path], dict[str, Any] | None]
    limit_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)


# --- results -------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


def read_lines(log: Path) -> list[dict[str, Any]]:
    """The lines of a file that are JSON objects; one that was cut off in the middle is none."""
    found = []
    for line in log.read_text().splitlines() if log.is_file() else []:
        try:
            found.append(json.loads(line) if line.startswith("{") else None)
        except ValueError:
            continue
    return [line for line in found if line]


def read_tests(file: Path) -> dict[str, Any] | None:
    """Counts of a file that `test_lines` wrote, failed tests' names, and why some did not run.

    No test at all is no result.
    """
    lines = read_lines(file)
    failures = [line["test"] for line in lines if line["outcome"] == "failed"]
    not_run = {line["test"]: line["why"] for line in lines if line["outcome"] == "skipped"}
    passed = len(lines) - len(failures) - len(not_run)
    if passed + len(failures) == 0:
        return None
    return {"passed": passed, "failed": len(failures), "failures": failures, "not_run": not_run}


def read_cases(log: Path) -> dict[str, Any] | None:
    """The same of `tests.device.cases`, which prints a line of JSON for each case."""
    lines = read_lines(log)
    failures = [line["case"] for line in lines if line["problem"]]
    if not lines:
        return None
    return {"passed": len(lines) - len(failures), "failed": len(failures), "failures": failures}


# --- running -------------------------------------------------------------------------------------


def run_step(
    step: Step, work: Path, key: str, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run a step, or take over what it gave for the same `key`; its record.

    Its output is shown and kept in a log. The record: `key`, `seconds`, `exit_code` (None: stopped
    at its limit), `result`, and what `about` says.
    """
    file, log = work / f"{step.name}.json", work / f"{step.name}.log"
    before = read_json(file)
    if before and before["key"] == key and before["exit_code"] == 0 and before["result"]:
        print(f"{step.name}: done before, in {before['seconds']:.0f} s", flush=True)
        return before
    limit = f" (at most {step.limit_s:.0f} s)" if step.limit_s else ""
    print(f"\n{step.name}: {step.title}{limit}", flush=True)
    begin = time.monotonic()
    with log.open("wb") as kept:
        process = subprocess.Popen(
            supervised(step.command),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | step.environment,
        )
        over = threading.Event()

        def end() -> None:
            over.set()
            stop(process)

        clock = threading.Timer(step.limit_s, end) if step.limit_s else None
        try:
            if clock:
                clock.start()
            assert process.stdout is not None
            while chunk := process.stdout.read1(4096):  # type: ignore[attr-defined]
                kept.write(chunk)
                sys.stdout.write(chunk.decode(errors="replace"))
                sys.stdout.flush()
            code = process.wait()
        finally:
            if clock:
                clock.cancel()
            stop(process)
    record = {
        "key": key,
        **(about or {}),
        "seconds": round(time.monotonic() - begin, 1),
        "exit_code": None if over.is_set() else code,
        "result": step.read(work),
    }
    file.write_text(json.dumps(record, indent=1))
    ended = "stopped at its limit" if over.is_set() else f"exit code {code}"
    state = "done" if record["exit_code"] == 0 and record["result"] else f"FAILED ({ended}; {log})"
    print(f"{step.name}: {state}, {record['seconds']:.0f} s", flush=True)
    return record


def revision() -> str | None:
    """The commit, and whether files differ from it; None where git does not know these files."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        except FileNotFoundError:
            return ""
        return done.stdout.strip()

    commit, changes = git("rev-parse", "--short=10", "HEAD"), git("diff", "HEAD")
    if not commit:
        return None
    return f"{commit}+{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def file_name(card: str) -> str:
    """Of what belongs to a card, by the name that it gives itself."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def content(paths: Iterable[str]) -> str:
    """A hash of the programs and notebooks in these folders and files of the course."""
    found = hashlib.sha256()
    for path in map(ROOT.joinpath, sorted(paths)):
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.suffix in (".py", ".h", ".cpp", ".ipynb") and file.is_file():
                found.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]
