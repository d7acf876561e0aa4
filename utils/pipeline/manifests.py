"""What a complete stage says about itself: the file `manifest.json` beside its outputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CHECKSUM = "checksum"


def write_manifest(folder: Path, name: str, about: dict[str, Any]) -> None:
    """Seal a folder with what is there, what `about` says, and a hash of all that."""
    manifest = {"stage": name} | about | {"outputs": outputs_of(folder)}
    plain = json.loads(json.dumps(manifest))  # as it is read again
    text = json.dumps(plain | {CHECKSUM: json_hash(plain)}, indent=1, ensure_ascii=False)
    (folder / MANIFEST).write_text(text)


def read_manifest(folder: Path, name: str) -> dict[str, Any]:
    """What the stage of that name has written, to the last digit.

    Raises:
        OSError: there is none.
        ValueError: it was changed, or is another's.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    if not isinstance(manifest, dict):
        raise ValueError("not a manifest")
    said = {key: value for key, value in manifest.items() if key != CHECKSUM}
    if manifest.get(CHECKSUM) != json_hash(said):
        raise ValueError("a manifest that was changed")
    if manifest["stage"] != name:
        raise ValueError(f"the manifest of {manifest['stage']!r}")
    return manifest


def damage_of(folder: Path, manifest: dict[str, Any]) -> str | None:
    """The first file that is not as it was written, in words; None if all are. Reads every byte."""
    here = sizes_of(folder)
    for file, entry in manifest["outputs"].items():
        path = folder / file
        if file not in here:
            return f"{path} is missing"
        if here[file] != entry["bytes"]:
            return f"{path} has another length than it had"
        if file_hash(path) != entry["sha256"]:
            return f"{path} has other contents than it had"
    return None


def sizes_of(folder: Path) -> dict[str, int]:
    """The bytes of each file, but the manifest."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }


def outputs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The bytes and the hash of each file, but the manifest."""
    return {
        name: {"bytes": size, "sha256": file_hash(folder / name)}
        for name, size in sizes_of(folder).items()
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_hash(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
