"""Runs a chain of stages: each complete or absent, done once, redone when something changed.

A stage is a function that fills an empty folder. It works beside its target; when it returns, a
manifest is added and the folder is renamed into place, which the file system does in one step. So a
folder with the stage's name is always complete, whenever the run was interrupted.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.environments.pipeline import package_version
from utils.pipeline.manifests import (
    damage_of,
    json_hash,
    outputs_of,
    read_manifest,
    sizes_of,
    write_manifest,
)
from utils.pipeline.output_folder import StageError, locked, remove_leftovers, replace, work_folder
from utils.pipeline.stage_process import StageKilledError, call_stage
from utils.processes.peak_memory import PeakMemory


@dataclass(frozen=True)
class Stage:
    """One step of the chain.

    Attributes:
        name: also the name of the output folder.
        function: called as `function(settings, inputs, out_dir)`, in a process of its own, so it
            must be importable. `inputs` maps each name in `needs` to its folder. Returns measures.
        needs: stages, or sources given to `Runner`, whose folders it reads.
        settings: everything else that its result depends on; plain JSON values.
        version: of the code. Raise it when the code's result changes: what an earlier version made
            is then made anew.
        packages: the libraries whose versions it depends on.
        bytes_needed: free disk space without which it is not started.
        title: a few words for the header line.
    """

    name: str
    function: Callable[[dict[str, Any], dict[str, Path], Path], dict[str, Any]]
    needs: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    packages: tuple[str, ...] = ()
    bytes_needed: int = 0
    title: str = ""


class Runner:
    """Runs stages into subfolders of `out`.

    Args:
        out: the root of all outputs; made if missing.
        stages: in an order in which each comes after what it needs.
        sources: named folders from outside, such as the base model.
    """

    def __init__(self, out: Path, stages: list[Stage], sources: dict[str, Path]) -> None:
        self.out, self.sources = out, sources
        self.stages = {stage.name: stage for stage in stages}
        self._source_hashes: dict[str, str] = {}
        self._whole: set[str] = set()  # stages whose files were read, in this run

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
        self._whole = set()
        with locked(self.out, wait):
            remove_leftovers(self.out)
            for number, stage in enumerate(chosen, start=1):
                header = f"[{number}/{len(chosen)}] {stage.name}: {stage.title or stage.name}"
                current = self.is_current(stage)
                damage = self.damage(stage.name) if current else None
                ending = f" - {damage}: made anew" if damage else " - unchanged, skipped"
                print(f"{header}{ending if current else ''}", flush=True)
                if damage or not current:
                    self._run_stage(stage)
        return {stage.name: self.manifest(stage.name) for stage in chosen}

    def chosen(self, names: list[str] | None) -> list[Stage]:
        """The named stages (default: all), in the order of the chain."""
        if unknown := [name for name in names or [] if name not in self.stages]:
            raise StageError(
                f"Unknown stage {', '.join(unknown)}. The stages are {', '.join(self.stages)}."
            )
        return [stage for stage in self.stages.values() if names is None or stage.name in names]

    def plan(self, names: list[str] | None = None) -> list[tuple[Stage, bool]]:
        """The stages that `run` would look at, and whether each would be skipped."""
        return [(stage, self.is_current(stage)) for stage in self.chosen(names)]

    def manifest(self, name: str) -> dict[str, Any]:
        """What is recorded about a complete stage.

        Raises:
            StageError: it is not complete.
        """
        try:
            return read_manifest(self.out / name, name)
        except (OSError, ValueError) as error:
            raise StageError(
                f"The stage {name!r} has no complete output in {self.out}. Run it first."
            ) from error

    def is_current(self, stage: Stage) -> bool:
        """Is the stage's output complete, of the right lengths, and made from what is here now?"""
        try:
            manifest, key = self.manifest(stage.name), self._key(stage)
        except StageError:
            return False
        sizes = {name: entry["bytes"] for name, entry in manifest["outputs"].items()}
        return manifest["key"] == key and sizes == sizes_of(self.out / stage.name)

    def damage(self, name: str) -> str | None:
        """The first file of a complete stage that is not as it was written, in words; or None.

        Every byte is read, once a run: a disk or a copy may change one without changing the length.
        """
        if name in self._whole:
            return None
        damage = damage_of(self.out / name, self.manifest(name))
        if damage is None:
            self._whole.add(name)
        return damage

    # --- one stage -------------------------------------------------------------------------------

    def _run_stage(self, stage: Stage) -> None:
        folders = {name: self.sources.get(name, self.out / name) for name in stage.needs}
        for name in stage.needs:
            if name not in self.sources and (damage := self.damage(name)):
                raise StageError(f"{damage}. Run the stage {name!r} again: it is made anew.")
        free = shutil.disk_usage(self.out).free
        if free < stage.bytes_needed:
            needed = f"It needs about {_size(stage.bytes_needed)}; {_size(free)} are free."
            raise StageError(f"{_disk_full(stage, self.out)} {needed}")
        about: dict[str, Any] = {
            "key": self._key(stage),
            "inputs": self._input_hashes(stage),
            "settings": stage.settings,
            "versions": _versions(stage),
        }
        work = work_folder(self.out, stage.name)
        try:
            begin = time.perf_counter()
            with PeakMemory() as memory:
                measures = call_stage(stage.function, stage.settings, folders, work)
            seconds = time.perf_counter() - begin
            about |= {
                "measures": measures,
                "seconds": round(seconds, 1),
                "peak_memory_bytes": memory.peak,
            }
            write_manifest(work, stage.name, about)
            replace(work, self.out / stage.name)
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

    def _key(self, stage: Stage) -> str:
        """What a result depends on, as a hash."""
        return json_hash(
            {
                "stage": stage.name,
                "version": stage.version,
                "settings": stage.settings,
                "inputs": self._input_hashes(stage),
                "versions": _versions(stage),
            }
        )

    def _input_hashes(self, stage: Stage) -> dict[str, str]:
        for name in self.sources.keys() & set(stage.needs) - self._source_hashes.keys():
            self._source_hashes[name] = json_hash(outputs_of(self.sources[name]))
        return {
            name: self._source_hashes.get(name) or json_hash(self.manifest(name)["outputs"])
            for name in stage.needs
        }


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
