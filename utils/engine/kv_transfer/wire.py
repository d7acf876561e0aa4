"""From blocks to bytes and back, wrapped so that damage is noticed before it is a wrong token."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

HEADER = struct.Struct("<4sQQ")  # mark, length of the contents, their checksum
MARK = b"KVB1"


class DamagedError(ValueError):
    """These bytes are not what was put under this key."""


def pack(key: bytes, contents: bytes | memoryview) -> bytes:
    """A header and the contents. The checksum takes in the key, too, so that a value which turns up
    under another key's name is refused as well."""
    return b"".join((HEADER.pack(MARK, len(contents), _checksum(key, contents)), contents))


def unpack(key: bytes, value: bytes, num_bytes: int) -> memoryview:
    """The contents of what `pack` made.

    Args:
        num_bytes: how many there must be.

    Raises:
        DamagedError: they are too few, too many, or others.
    """
    if len(value) != HEADER.size + num_bytes:
        raise DamagedError(f"Got {len(value)} bytes, expected {HEADER.size + num_bytes}.")
    mark, length, checksum = HEADER.unpack_from(value)
    contents = memoryview(value)[HEADER.size :]
    if mark != MARK or length != num_bytes:
        raise DamagedError(f"The header says {mark!r}, {length} bytes; expected {num_bytes}.")
    if checksum != _checksum(key, contents):
        raise DamagedError("The checksum is wrong.")
    return contents


def _checksum(key: bytes, contents: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(key)
    digest.update(contents)
    return digest.intdigest()


def blocks_to_rows(layers: Sequence[Tensor], block_ids: Sequence[int]) -> np.ndarray:
    """Copies of some blocks, a row of bytes each: uint8 [n, bytes].

    Args:
        layers: the memory of each layer, [2, num_blocks, block_size, H_kv, D].
    """
    where = torch.tensor(block_ids, device=layers[0].device)
    blocks = torch.stack([memory[:, where] for memory in layers])
    # [G, 2, n, block_size, H_kv, D] -> [n, G, 2, block_size, H_kv, D]
    rows = blocks.permute(2, 0, 1, 3, 4, 5).cpu().contiguous().flatten(1)
    return rows.view(torch.uint8).numpy()


def rows_to_blocks(rows: np.ndarray, layers: Sequence[Tensor], block_ids: Sequence[int]) -> None:
    """Put what `blocks_to_rows` gave into blocks."""
    where = torch.tensor(block_ids, device=layers[0].device)
    shape = (len(rows), len(layers), 2, *layers[0].shape[2:])
    blocks = torch.from_numpy(rows).view(layers[0].dtype).view(shape)
    for layer, memory in enumerate(layers):
        memory[:, where] = blocks[:, layer].transpose(0, 1).to(memory.device)
