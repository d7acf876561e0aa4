"""One right answer for each exercise of lab 12, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from utils.quant import rtn


def unpack(packed: Tensor, bits: int) -> Tensor:
    if bits not in (2, 4, 8) or packed.dtype != torch.int32:
        raise ValueError(f"Expected 2, 4 or 8 bits in int32; got {bits} in {packed.dtype}.")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (packed[..., None] >> shifts) & (2**bits - 1)  # [..., n, per]
    return codes.flatten(-2)


def read_layer(tensors: dict[str, Tensor], bits: int, checkpoint_format: str) -> Tensor:
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise ValueError(f"Unknown format {checkpoint_format!r}.")
    codes = unpack(tensors["qweight"].T, bits)  # [out, in]
    zeros = unpack(tensors["qzeros"], bits).T  # [out, groups]
    if checkpoint_format == "gptq":
        zeros = zeros + 1
    scales = tensors["scales"].float().T
    group = tensors["g_idx"].long()
    return (codes - zeros[:, group]) * scales[:, group]


def write_layer(
    codes: Tensor, zeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int, checkpoint_format: str
) -> dict[str, Tensor]:
    if bits not in (2, 4, 8) or checkpoint_format not in ("gptq", "gptq_v2"):
        raise ValueError(f"Cannot write {bits} bits as {checkpoint_format!r}.")
    codes, zeros, per = codes.long(), zeros.long(), 32 // bits
    if codes.shape[0] % per or codes.shape[1] % per:
        raise ValueError(f"{codes.shape} is no multiple of {per}.")
    stored = zeros - 1 if checkpoint_format == "gptq" else zeros
    for values in (codes, zeros, stored):
        if values.min() < 0 or values.max() >= 2**bits:
            raise ValueError(f"A code or a zero does not fit into {bits} bits.")
    half = scales.T.to(torch.float16, copy=True).contiguous()
    if not half.isfinite().all():
        raise ValueError("A scale is beyond float16.")
    if g_idx.min() < 0 or g_idx.max() >= len(half):
        raise ValueError("g_idx names a group that does not exist.")

    def pack(rows: Tensor) -> Tensor:
        places = rows.unflatten(-1, (-1, per)) << torch.arange(0, 32, bits)
        return places.sum(-1).to(torch.int32)

    return {
        "qweight": pack(codes).T.contiguous(),
        "qzeros": pack(stored.T),
        "scales": half,
        "g_idx": g_idx.to(torch.int32, copy=True),
    }


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq_to_gptq(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    back = torch.tensor(AWQ_ORDER).argsort()  # where each neighbor is

    def in_order(packed: Tensor) -> Tensor:
        return unpack(packed, 4).unflatten(-1, (-1, 8))[..., back].flatten(-2)

    codes, zeros = in_order(tensors["qweight"]), in_order(tensors["qzeros"])  # [in, out], ...
    (width, _), num_groups = codes.shape, len(zeros)
    if width % num_groups:  # `write_layer` refuses a width that is no multiple of 8
        raise ValueError(f"{num_groups} groups of {width} inputs are not equally large.")
    checkpoint_format = "gptq_v2" if (zeros == 0).any() else "gptq"
    g_idx = torch.arange(width) // (width // num_groups)
    ones = torch.ones(zeros.T.shape)
    gptq = write_layer(codes.T, zeros.T, ones, g_idx, 4, checkpoint_format)
    gptq["scales"] = tensors["scales"].clone(memory_format=torch.contiguous_format)
    return gptq, checkpoint_format


def find_damage(
    entry: dict[str, Any], shapes: dict[str, tuple[int, int]], tensors: dict[str, Tensor]
) -> set[str]:

    def damaged(bits: int, group_size: int, desc_act: bool) -> set[str]:
        found = set()
        for layer, (out, width) in shapes.items():
            size, per = (width if group_size == -1 else group_size), 32 // bits
            groups = width // size
            wanted = {
                "qweight": (torch.int32, (width // per, out)),
                "qzeros": (torch.int32, (groups, out // per)),
                "scales": (torch.float16, (groups, out)),
                "g_idx": (torch.int32, (width,)),
            }
            for part, (dtype, shape) in wanted.items():
                tensor = tensors.get(f"{layer}.{part}")
                if tensor is None or tensor.dtype != dtype or tensor.shape != shape:
                    sound = False
                elif part == "scales":
                    sound = bool((tensor.isfinite() & (tensor > 0)).all())
                elif part == "g_idx":
                    in_order = torch.arange(width, dtype=torch.int32) // size
                    sound = torch.equal(tensor.sort().values if desc_act else tensor, in_order)
                else:
                    sound = True
                if not sound:
                    found.add(f"{layer}.{part}")
        return found

    widths = [width for _, width in shapes.values()]
    sizes = [n for n in range(1, min(widths) + 1) if all(width % n == 0 for width in widths)]
    explanations = []
    for values in product((2, 4, 8), [-1, *sizes], (False, True)):
        keys = zip(("bits", "group_size", "desc_act"), values, strict=True)
        wrong_keys = {key for key, value in keys if key not in entry or entry[key] != value}
        explanations.append(wrong_keys | damaged(*values))
    return min(explanations, key=len)


def make_checkpoint(
    state: dict[str, Tensor], layers: list[str], bits: int, group_size: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = dict(state)
    for layer in layers:
        weight = tensors.pop(f"{layer}.weight").float()
        found = rtn(weight, bits=bits, group_size=group_size, sym=False)
        packed = write_layer(found.q, found.zeros, found.scales, found.g_idx, bits, "gptq_v2")
        tensors.update({f"{layer}.{part}": tensor for part, tensor in packed.items()})
    entry = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq_v2",
    }
    return entry, tensors
