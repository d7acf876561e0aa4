"""What a complete stage says about itself: the file `manifest.json` beside its outputs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
CHECKSUM = "checksum"


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest as it is read again, with a hash of all that it says."""
    plain = json.loads(json.dumps(manifest))
    return plain | {CHECKSUM: json_hash(plain)}


def require_manifest(manifest: Any, name: str) -> None:
    """Check that this is what a complete stage of that name has written, to the last digit.

    Raises:
        ValueError: it is not.
    """
    kinds: dict[str, Any] = dict.fromkeys(("inputs", "settings", "versions", "measures"), dict)
    kinds |= {"stage": str, "key": str, "outputs": dict, "peak_memory_bytes": int,
              "seconds": (int, float)}  # fmt: skip
    if not isinstance(manifest, dict) or not all(
        isinstance(manifest.get(key), kind) for key, kind in kinds.items()
    ):
        raise ValueError("not a manifest")
    said = {key: value for key, value in manifest.items() if key != CHECKSUM}
    if manifest.get(CHECKSUM) != json_hash(said):
        raise ValueError("a manifest that was changed")
    if manifest["stage"] != name:
        raise ValueError(f"the manifest of {manifest['stage']!r}")
    for entry in manifest["outputs"].values():
        if not isinstance(entry, dict) or {k: type(v) for k, v in entry.items()} != {
            "bytes": int, "sha256": str,
        }:  # fmt: skip
            raise ValueError("an output without its length and hash")


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
