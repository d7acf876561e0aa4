"""Is a model's folder whole, and where does the course keep its own?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one where there is no file. Else raises ModelError."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds no JSON object. Fetch the model again.")
    return found


def check_folder(folder: Path) -> Path:
    """The folder itself. Raises ModelError, naming the file, if it holds no model to be trusted."""
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder} has no config.json, so it is not a Hugging Face model folder.")
    for file in (config, folder / "tokenizer_config.json"):
        if "auto_map" in read_object(file):
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


def check_weights(folder: Path) -> None:
    """Is every weight file of `folder` there, and as long as its header says?

    Reads the headers only. A model in several files (shards) has an index that names them all.

    Raises:
        ModelError: a shard is missing, or a file is cut off, as after a full disk.
    """
    index = folder / "model.safetensors.index.json"
    wanted = {path.name for path in folder.glob("*.safetensors")}
    if index.is_file():
        files = read_object(index).get("weight_map")
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
