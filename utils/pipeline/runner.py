"""Runs a chain of stages: each complete or absent, done once, redone when something changed.

A stage is a function that fills an empty folder. It works beside its target; when it returns, a
`manifest.json` is added and the folder is renamed into place, which the file system does in one
step. So a folder with the stage's name is always complete, whenever the run was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from utils.environments.pipeline import package_version
from utils.pipeline.code_hashes import code_hashes
from utils.pipeline.manifests import (
    MANIFEST,
    file_hash,
    json_hash,
    outputs_of,
    require_manifest,
    sealed,
    sizes_of,
)
from utils.pipeline.stage_process import StageKilledError, call_stage
from utils.processes.peak_memory import PeakMemory

WORK_PREFIX = ".unfinished-"
ELSEWHERE = "Give another folder: --out, or the environment variable COURSE_ARTIFACTS."
READ_ONLY = (errno.EACCES, errno.EROFS, errno.EPERM)
_HERE = Path(__file__).parent


class StageError(RuntimeError):
    """A stage cannot run, or failed. The message says which, and what to do."""


@dataclass(frozen=True)
class Stage:
    """One step of the chain.

    Attributes:
        name: also the name of the output folder.
        function: called as `function(settings, inputs, out_dir)`, in a process of its own, so it
            must be importable. `inputs` maps each name in `needs` to its folder. Returns measures.
        needs: stages, or sources given to `Runner`, whose folders it reads.
        settings: everything else that its result depends on; plain JSON values.
        sources: files with code that the function starts. The result is made anew when they
            change, or the function, or any code of the course that these import.
        packages: the libraries whose versions it depends on.
        bytes_needed: free disk space without which it is not started.
        title: a few words for the header line.
    """

    name: str
    function: Callable[[dict[str, Any], dict[str, Path], Path], dict[str, Any]]
    needs: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    sources: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    bytes_needed: int = 0
    title: str = ""


def code_files(*patterns: str) -> tuple[Path, ...]:
    """The files of `utils/pipeline` that match, for `Stage.sources`.

    Raises:
        ValueError: a pattern matches none; a stage would not notice when its code changes.
    """
    found = {pattern: sorted(_HERE.glob(pattern)) for pattern in patterns}
    if nothing := [pattern for pattern, files in found.items() if not files]:
        raise ValueError(f"No file of {_HERE} matches {', '.join(nothing)}.")
    return tuple(file for files in found.values() for file in files)


class Runner:
    """Runs stages into subfolders of `out`.

    Args:
        out: the root of all outputs; made if missing.
        stages: in an order in which each comes after what it needs.
        sources: named folders from outside, such as the base model.
    """

    def __init__(self, out: Path, stages: list[Stage], sources: dict[str, Path]) -> None:
        self.out = out
        self.stages = {stage.name: stage for stage in stages}
        self.sources = sources
        self._source_hashes: dict[str, str] = {}
        self._verified: set[str] = set()  # stages whose files were read, in this run

    def run(self, names: list[str] | None = None, wait: bool = False) -> dict[str, dict[str, Any]]:
        """Run the named stages (default: all), skipping those complete and unchanged.

        Args:
            names: which stages.
            wait: for another run that writes to the same folder; otherwise it is an error.

        Returns:
            The manifest of every stage that was run or skipped.

        Raises:
            StageError: unknown name, missing input, no disk space, another run is active, or the
                stage's process was killed. Errors of the stage itself are passed on.
        """
        chosen = self.chosen(names)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StageError(
                f"Cannot make the folder {self.out}: {error.strerror}. {ELSEWHERE}"
            ) from error
        manifests = {}
        self._verified = set()
        with self._lock(wait):
            self._remove_leftovers()
            for number, stage in enumerate(chosen, start=1):
                header = f"[{number}/{len(chosen)}] {stage.name}: {stage.title or stage.name}"
                if not self.is_current(stage):
                    print(header, flush=True)
                    self._run_stage(stage)
                elif damage := self.damage(stage.name):
                    print(f"{header} - {damage}: made anew", flush=True)
                    self._run_stage(stage)
                else:
                    print(f"{header} - unchanged, skipped", flush=True)
                manifests[stage.name] = self.manifest(stage.name)
        return manifests

    def plan(self, names: list[str] | None = None) -> list[tuple[Stage, bool]]:
        """The stages that `run` would look at, and whether each would be skipped."""
        return [(stage, self.is_current(stage)) for stage in self.chosen(names)]

    def manifest(self, name: str) -> dict[str, Any]:
        """What is recorded about a complete stage.

        Raises:
            StageError: it is not complete.
        """
        try:
            manifest = json.loads((self.out / name / MANIFEST).read_text())
            require_manifest(manifest, name)
        except (OSError, ValueError) as error:
            raise StageError(
                f"The stage {name!r} has no complete output in {self.out}. Run it first."
            ) from error
        return manifest

    def is_current(self, stage: Stage) -> bool:
        """Is the stage's output complete, whole, and made from what is here now?"""
        try:
            manifest = self.manifest(stage.name)
            key = self._key(stage)
        except StageError:
            return False
        folder = self.out / stage.name
        sizes = {name: entry["bytes"] for name, entry in manifest["outputs"].items()}
        return manifest["key"] == key and sizes == sizes_of(folder)

    # --- one stage -------------------------------------------------------------------------------

    def _run_stage(self, stage: Stage) -> None:
        folders = self._input_folders(stage)
        self._check_space(stage)
        key = self._key(stage)
        work = self._work_folder(stage)
        try:
            begin = time.perf_counter()
            with PeakMemory() as memory:
                measures = call_stage(stage.function, stage.settings, folders, work)
            seconds = time.perf_counter() - begin
            manifest = {
                "stage": stage.name,
                "key": key,
                "inputs": self._input_hashes(stage),
                "settings": stage.settings,
                "versions": _versions(stage),
                "measures": measures,
                "seconds": round(seconds, 1),
                "peak_memory_bytes": memory.peak,
                "outputs": outputs_of(work),
            }
            text = json.dumps(sealed(manifest), indent=1, ensure_ascii=False)
            (work / MANIFEST).write_text(text)
            _replace(work, self.out / stage.name)
        except StageKilledError as error:
            raise StageError(
                f"The process of the stage {stage.name!r} was killed. Most often that means that "
                "the machine ran out of memory. Close other programs and run again: stages that "
                "are complete are not repeated. See docs/troubleshooting.md."
            ) from error
        except Exception as error:
            # Libraries wrap the system's error in their own, or only quote it (safetensors).
            if os.strerror(errno.ENOSPC) in str(error):
                raise StageError(_disk_full(stage, self.out)) from error
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"      done in {seconds:.0f} s, peak memory {memory.peak / 1e9:.1f} GB", flush=True)

    def _work_folder(self, stage: Stage) -> Path:
        try:
            return Path(tempfile.mkdtemp(prefix=f"{WORK_PREFIX}{stage.name}-", dir=self.out))
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            raise StageError(
                f"The stage {stage.name!r} must be run, but {self.out} cannot be written to. "
                f"{ELSEWHERE}"
            ) from error

    def _check_space(self, stage: Stage) -> None:
        free = shutil.disk_usage(self.out).free
        if free < stage.bytes_needed:
            raise StageError(
                f"{_disk_full(stage, self.out)} It needs about {_size(stage.bytes_needed)}; "
                f"{_size(free)} are free."
            )

    # --- what a result depends on ----------------------------------------------------------------

    def _key(self, stage: Stage) -> str:
        parts = {
            "stage": stage.name,
            "settings": stage.settings,
            "inputs": self._input_hashes(stage),
            "code": code_hashes(stage.function, stage.sources),
            "versions": _versions(stage),
        }
        return json_hash(parts)

    def _input_hashes(self, stage: Stage) -> dict[str, str]:
        return {name: self._folder_hash(name) for name in stage.needs}

    def _folder_hash(self, name: str) -> str:
        if name in self.sources:
            if name not in self._source_hashes:
                entries = outputs_of(self.sources[name])
                self._source_hashes[name] = json_hash(entries)
            return self._source_hashes[name]
        return json_hash(self.manifest(name)["outputs"])

    def _input_folders(self, stage: Stage) -> dict[str, Path]:
        for name in stage.needs:
            if name not in self.sources:
                self._check_whole(name)
        return {name: self.sources.get(name, self.out / name) for name in stage.needs}

    def _check_whole(self, name: str) -> None:
        """Raise when a stage that is needed is not complete, or not what it was."""
        if damage := self.damage(name):
            raise StageError(f"{damage}. Run the stage {name!r} again: it is made anew.")

    def damage(self, name: str) -> str | None:
        """The first file of a complete stage that is not as it was written, in words; or None.

        Every byte is read, once a run: a disk or a copy may change one without changing the length.
        """
        if name in self._verified:
            return None
        outputs, here = self.manifest(name)["outputs"], sizes_of(self.out / name)
        for file, entry in outputs.items():
            path = self.out / name / file
            if file not in here:
                return f"{path} is missing"
            if here[file] != entry["bytes"]:
                return f"{path} has another length than it had"
            if file_hash(path) != entry["sha256"]:
                return f"{path} has other contents than it had"
        self._verified.add(name)
        return None

    def chosen(self, names: list[str] | None) -> list[Stage]:
        """The named stages (default: all), in the order of the chain."""
        unknown = [name for name in names or [] if name not in self.stages]
        if unknown:
            raise StageError(
                f"Unknown stage {', '.join(unknown)}. The stages are {', '.join(self.stages)}."
            )
        return [stage for stage in self.stages.values() if names is None or stage.name in names]

    # --- the output folder -----------------------------------------------------------------------

    @contextmanager
    def _lock(self, wait: bool) -> Iterator[None]:
        """Keep a second run out of the same folder. The lock dies with the process.

        A folder that nobody can write to needs none: its stages may be complete.
        """
        file = self._lock_file()
        if file is None:
            yield
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if not wait:
                    raise StageError(
                        f"Another run is writing to {self.out}. Wait for it, or use another --out."
                    ) from error
                print(f"Another run is writing to {self.out.name}/: waiting for it.", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _lock_file(self) -> TextIO | None:
        try:
            return (self.out / ".lock").open("w")
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            return None

    def _remove_leftovers(self) -> None:
        for folder in self.out.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _replace(work: Path, target: Path) -> None:
    """Put `work` in the place of `target`; at every moment the target is whole or absent."""
    if target.exists():
        os.replace(target, work.with_name(f"{work.name}-old"))  # removed with the leftovers
    os.replace(work, target)
    shutil.rmtree(work.with_name(f"{work.name}-old"), ignore_errors=True)


def _versions(stage: Stage) -> dict[str, str]:
    return {package: package_version(package) for package in stage.packages}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.0f} MB"


def _disk_full(stage: Stage, out: Path) -> str:
    used = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return (
        f"Not enough disk space for the stage {stage.name!r} in {out} "
        f"({_size(used)} are used by earlier stages). Free some, or choose another disk with --out."
    )
