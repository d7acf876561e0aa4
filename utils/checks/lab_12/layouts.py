"""The layouts of GPTQ and AWQ, written slowly: each int32 is a text of 32 bits.

They are the layouts that gptqmodel and vLLM read (tests/quant, tests/checks/test_lab_12.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
BITS = (4, 4, 8, 2)
FORMATS = ("gptq", "gptq_v2")
PARTS = ("qweight", "qzeros", "scales", "g_idx")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FEW = 32  # numbers that the words for an input show
HALF_END = 65520.0  # from here on, float16 rounds to infinity


def word_of(fields: list[int], bits: int) -> int:
    """One int32 of its fields, the first one lowest: as a text of bits, in two's complement."""
    text = "".join(f"{field:0{bits}b}" for field in reversed(fields))
    return int(text, 2) - (2**32 if text[0] == "1" else 0)


def fields_of(word: int, bits: int) -> list[int]:
    """The fields of one int32, lowest first: cut from its text of 32 bits."""
    text = f"{word % 2**32:032b}"
    return [int(text[end - bits : end], 2) for end in range(32, 0, -bits)]


def pack_last(values: Tensor, bits: int) -> Tensor:
    """Pack [rows, n] along the last dimension: int32 [rows, n * bits / 32]."""
    per = 32 // bits
    rows = [
        [word_of(row[i : i + per], bits) for i in range(0, len(row), per)]
        for row in values.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int32).view(len(values), values.shape[1] // per)


def unpack_last(words: Tensor, bits: int) -> Tensor:
    """Undo `pack_last`: int64 [rows, n * 32 / bits]."""
    rows = [[field for word in row for field in fields_of(word, bits)] for row in words.tolist()]
    return torch.tensor(rows, dtype=torch.int64).view(len(words), words.shape[1] * 32 // bits)


def in_order(words: Tensor, order: Sequence[int] = AWQ_ORDER) -> Tensor:
    """The numbers [rows, 8 * n] of AWQ's int32 [rows, n]: each nibble is put where it belongs."""
    rows = []
    for row in unpack_last(words, 4).tolist():
        placed = [0] * len(row)
        for place, nibble in enumerate(row):
            placed[place // 8 * 8 + order[place % 8]] = nibble
        rows.append(placed)
    return torch.tensor(rows)


def weight_by_weight(tensors: Tensors, bits: int, checkpoint_format: str) -> Tensor:
    """The weight [out, in] of a GPTQ layer, each number by itself.

    Raises:
        ValueError: the format is unknown.
    """
    if checkpoint_format not in FORMATS:
        raise ValueError(f"the format {checkpoint_format!r}")
    codes = unpack_last(tensors["qweight"].T, bits).tolist()  # [out][in]
    zeros = unpack_last(tensors["qzeros"], bits).tolist()  # [groups][out]
    scales, groups = tensors["scales"].tolist(), tensors["g_idx"].tolist()
    plus = int(checkpoint_format == "gptq")
    weight = [
        [(code - zeros[g][o] - plus) * scales[g][o] for code, g in zip(row, groups, strict=True)]
        for o, row in enumerate(codes)
    ]
    return torch.tensor(weight, dtype=torch.float32)


def unfit(
    codes: Tensor, zeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int, checkpoint_format: str
) -> str:
    """What of a layer cannot be stored; empty if all can. Numbers are looked at one by one."""
    if bits not in (2, 4, 8):
        return f"codes of {bits} bits"
    if checkpoint_format not in FORMATS:
        return f"the format {checkpoint_format!r}"
    per, least, groups = 32 // bits, int(checkpoint_format == "gptq"), range(scales.shape[1])
    reasons = [
        f"{size} {name}, which is no multiple of {per},"
        for name, size in zip(("outputs", "inputs"), codes.shape, strict=True)
        if size % per
    ]
    form = f" in the format {checkpoint_format!r}" if least else ""
    reasons += [f"a code of {n}" for n in codes.flatten().tolist() if not 0 <= n < 2**bits]
    reasons += [
        f"a zero of {n}{form}" for n in zeros.flatten().tolist() if not least <= n < 2**bits
    ]
    reasons += [f"a scale of {x:g}" for x in scales.flatten().tolist() if not abs(x) < HALF_END]
    reasons += [
        f"the group {g}, where the last is {groups[-1]}," for g in g_idx.tolist() if g not in groups
    ]
    return next(iter(reasons), "")


def by_hand(
    codes: Tensor, zeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int, checkpoint_format: str
) -> Tensors:
    """The four tensors of a GPTQ layer, number by number.

    Raises:
        ValueError: what cannot be stored.
    """
    if reason := unfit(codes, zeros, scales, g_idx, bits, checkpoint_format):
        raise ValueError(reason)
    stored = zeros.T.long() - int(checkpoint_format == "gptq")
    return {
        "qweight": pack_last(codes, bits).T.contiguous(),
        "qzeros": pack_last(stored, bits),
        "scales": scales.T.half().contiguous(),
        "g_idx": g_idx.to(torch.int32, copy=True),
    }


def repacked(tensors: Tensors) -> tuple[Tensors, str]:
    """An AWQ layer in GPTQ's layout, and the format of its zeros.

    Raises:
        ValueError: GPTQ's layout cannot hold the layer.
    """
    codes, zeros = in_order(tensors["qweight"]), in_order(tensors["qzeros"])
    width, groups = len(codes), len(zeros)
    if width % 8 or width % groups:
        raise ValueError(f"{width} inputs in {groups} groups")
    form = "gptq_v2" if (zeros == 0).any() else "gptq"
    return {
        "qweight": pack_last(codes.T, 4).T.contiguous(),
        "qzeros": pack_last(zeros - int(form == "gptq"), 4),
        "scales": tensors["scales"].clone(memory_format=torch.contiguous_format),
        "g_idx": torch.tensor([i * groups // width for i in range(width)], dtype=torch.int32),
    }, form


def tensors_differ(expected: Tensors, got: Any, names: Sequence[str]) -> tuple[str, str]:
    """The first tensor of a dict that is not as expected, and what is wrong with it: two texts."""
    if not isinstance(got, dict):
        return "", f"Expected a dict of tensors, not a {type(got).__name__}."
    if set(got) != set(expected):
        return "", f"The keys are {sorted(map(str, got))}; expected {sorted(expected)}."
    for name in names:
        mine, right = got[name], expected[name]
        if not isinstance(mine, Tensor):
            return name, f"`{name}` is a {type(mine).__name__}, not a tensor."
        if mine.shape != right.shape:
            return name, f"`{name}` has the shape {list(mine.shape)}; expected {list(right.shape)}."
        if mine.dtype != right.dtype:
            return name, f"`{name}` is {mine.dtype}; expected {right.dtype}."
        if not torch.equal(mine, right):
            place = (mine != right).nonzero()[0].tolist()
            show = in_hex if name in ("qweight", "qzeros") else str
            return name, (
                f"`{name}` is wrong at {place}: {show(mine[tuple(place)].item())}; expected "
                f"{show(right[tuple(place)].item())}."
            )
        if not mine.is_contiguous():
            return name, f"`{name}` isn't contiguous, and safetensors doesn't store it."
    return "", ""


def in_hex(word: Any) -> str:
    """An int32 as its eight hexadecimal digits, the lowest bits last."""
    return f"0x{word % 2**32:08x}"


def told(name: str, tensor: Tensor) -> str:
    """A tensor in words; its numbers where they are few, those of packed ones in hexadecimal."""
    kind = f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.numel() > FEW or not tensor.numel():
        return kind
    packed = name in ("qweight", "qzeros", "packed") and tensor.dtype == torch.int32
    return f"{kind} = {_nested(tensor.tolist(), in_hex if packed else str)}"


def _nested(values: Any, show: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(_nested(value, show) for value in values) + "]"
    return f"{values:.5g}" if isinstance(values, float) else str(show(values))
