"""One weight of a 4-bit file, and everything that is stored of it: GPTQ, AWQ and GGUF (Q4_1).

GPTQ, AWQ   (code - zero) * scale      8 codes in an int32
Q4_1        code * scale + minimum     2 codes in a byte, 32 weights in a block of 20 bytes
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.quant.packing import AWQ_ORDER

# Q and K are left out: a GGUF file holds their rows in another order, for its rotary embedding.
PROJECTIONS = {
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Q4_1_BLOCK, Q4_1_BYTES = 32, 20  # weights; bytes: float16 scale, float16 minimum, 16 with codes


@dataclass(frozen=True)
class StoredWeight:
    """One weight, the integer that holds its code, and the group that shares its scale.

    Attributes:
        word: the integer, without sign.
        bits: of the integer.
        codes: in it, lowest bits first.
        owners: whose codes these are, in words.
        place: which of them is this weight's.
        formula: how the value comes about, with numbers.
        value: what the weight is read back as.
        group: the values of all weights that share its scale.
        group_place: where in the group it stands.
    """

    word: int
    bits: int
    codes: tuple[int, ...]
    owners: tuple[str, ...]
    place: int
    formula: str
    value: float
    group: Tensor
    group_place: int


def read_tensor(folder: Path, name: str) -> Tensor:
    """One tensor of a model in one or several safetensors files.

    Raises:
        ValueError: it is not there.
    """
    from safetensors import safe_open

    index, file = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        file = folder / json.loads(index.read_text())["weight_map"].get(name, "missing")
    if file.is_file():
        with safe_open(file, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118 (not a dict)
                return tensors.get_tensor(name)
    raise ValueError(f"No tensor {name!r} in {folder.name}. Is the layer's number too high?")


def gptq_weight(folder: Path, layer: int, name: str, row: int, channel: int) -> StoredWeight:
    """A weight of a GPTQ checkpoint (checkpoint_format "gptq").

    Args:
        folder: the checkpoint.
        layer: number of the decoder layer.
        name: one of `PROJECTIONS`.
        row: output of the linear layer.
        channel: its input.

    Raises:
        ValueError: there is no such weight.
    """
    parts = _parts(folder, layer, name, "qweight", "qzeros", "scales", "g_idx")
    _check(row, parts["qweight"].shape[1], channel, 8 * parts["qweight"].shape[0])
    column = torch.tensor([_nibbles(word) for word in parts["qweight"][:, row].tolist()]).flatten()
    group = int(parts["g_idx"][channel])
    members = (parts["g_idx"] == group).nonzero().flatten()
    # The format stores zero - 1, a habit of its first kernel.
    zero = _nibbles(int(parts["qzeros"][group, row // 8]))[row % 8] + 1
    scale = float(parts["scales"][group, row])
    word = int(parts["qweight"][channel // 8, row])
    first = channel // 8 * 8
    return _affine(
        word,
        [f"in {first + i}" for i in range(8)],
        channel % 8,
        zero,
        scale,
        column[members],
        int((members == channel).nonzero()),
    )


def awq_weight(folder: Path, layer: int, name: str, row: int, channel: int) -> StoredWeight:
    """A weight of an AWQ checkpoint (version "gemm"). Arguments: see `gptq_weight`."""
    parts = _parts(folder, layer, name, "qweight", "qzeros", "scales")
    _check(row, 8 * parts["qweight"].shape[1], channel, parts["qweight"].shape[0])
    size = len(parts["qweight"]) // len(parts["scales"])
    group, place = channel // size, AWQ_ORDER.index(row % 8)
    words = parts["qweight"][group * size : (group + 1) * size, row // 8].tolist()
    codes = torch.tensor([_nibbles(word)[place] for word in words])
    zero = _nibbles(int(parts["qzeros"][group, row // 8]))[place]
    scale = float(parts["scales"][group, row])
    first = row // 8 * 8
    return _affine(
        words[channel % size],
        [f"out {first + i}" for i in AWQ_ORDER],
        place,
        zero,
        scale,
        codes,
        channel % size,
    )


def gguf_weight(reader: Any, layer: int, name: str, row: int, channel: int) -> StoredWeight:
    """A weight of a GGUF file whose linear layers are Q4_1. Arguments: see `gptq_weight`.

    Args:
        reader: a `gguf.GGUFReader`.
    """
    wanted = f"blk.{layer}.{PROJECTIONS[name]}.weight"
    tensor = next((t for t in reader.tensors if t.name == wanted), None)
    if tensor is None or tensor.tensor_type.name != "Q4_1":
        raise ValueError(f"No Q4_1 tensor {wanted!r} in the file.")
    _check(row, len(tensor.data), channel, tensor.data.shape[1] // Q4_1_BYTES * Q4_1_BLOCK)
    start = channel // Q4_1_BLOCK * Q4_1_BYTES
    block = tensor.data[row, start : start + Q4_1_BYTES]
    scale, least = (float(x) for x in block[:4].view("float16"))
    packed = block[4:]
    codes = torch.tensor([*(packed & 15).tolist(), *(packed >> 4).tolist()])
    at = channel % Q4_1_BLOCK
    word, first = int(packed[at % 16]), channel - at
    code = int(codes[at])
    return StoredWeight(
        word,
        8,
        (word & 15, word >> 4),
        (f"in {first + at % 16}", f"in {first + at % 16 + 16}"),
        at // 16,
        f"{code} · {scale:.5f} + ({least:.5f}) = {code * scale + least:.5f}",
        code * scale + least,
        codes.float() * scale + least,
        at,
    )


def _affine(
    word: int, owners: list[str], place: int, zero: int, scale: float, codes: Tensor, at: int
) -> StoredWeight:
    code = int(codes[at])
    value = (code - zero) * scale
    return StoredWeight(
        word % 2**32,
        32,
        tuple(_nibbles(word)),
        tuple(owners),
        place,
        f"({code} - {zero}) · {scale:.5f} = {value:.5f}",
        value,
        (codes - zero) * scale,
        at,
    )


def _nibbles(word: int) -> list[int]:
    """The eight codes of an int32, lowest bits first."""
    return [(word >> shift) & 15 for shift in range(0, 32, 4)]


def _parts(folder: Path, layer: int, name: str, *parts: str) -> dict[str, Tensor]:
    return {part: read_tensor(folder, f"model.layers.{layer}.{name}.{part}") for part in parts}


def _check(row: int, rows: int, channel: int, channels: int) -> None:
    if not (0 <= row < rows and 0 <= channel < channels):
        raise ValueError(
            f"This layer has outputs 0 to {rows - 1} and inputs 0 to {channels - 1}; got output "
            f"{row}, input {channel}."
        )
