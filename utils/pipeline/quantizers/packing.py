"""The two 4-bit checkpoint layouts, unpacked: GPTQ and AWQ ("gemm").

Both store each linear layer as three tensors, with eight 4-bit numbers in one int32:

    weight = (q - zero) * scale        q, zero in 0..15; one zero and scale per group and output

| tensor  | GPTQ                              | AWQ gemm                             |
|---------|-----------------------------------|--------------------------------------|
| qweight | [in / 8, out], packed along `in`  | [in, out / 8], packed along `out`    |
| qzeros  | [groups, out / 8], zero - 1       | [groups, out / 8], zero              |
| scales  | [groups, out]                     | [groups, out]                        |
| nibbles | in order                          | interleaved: 0 2 4 6 1 3 5 7         |

GPTQ adds `g_idx` [in], the group of each input channel. Unpacking is exact: the result is what
every correct kernel multiplies with. It lets transformers run a packed checkpoint on any machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Nibble i of an AWQ int32 holds output channel AWQ_ORDER[i].
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)


def unpack_int4(packed: Tensor) -> Tensor:
    """Split int32 [..., n] into its nibbles, lowest first: int32 [..., 8 * n] in 0..15."""
    return ((packed.unsqueeze(-1) >> _SHIFTS.to(packed.device)) & 0xF).flatten(-2)


def unpack_int4_awq(packed: Tensor) -> Tensor:
    """As `unpack_int4`, with AWQ's interleaving undone."""
    inverse = torch.tensor(AWQ_ORDER, device=packed.device).argsort()
    nibbles = unpack_int4(packed).unflatten(-1, (-1, 8))
    return nibbles[..., inverse].flatten(-2)


def dequantize_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor, *, zero_offset: int = 1
) -> Tensor:
    """Return the weight [out, in] in float32 of one GPTQ layer (shapes: see the module).

    `zero_offset` is 1 for checkpoint_format "gptq", which stores zero - 1, and 0 for "gptq_v2".
    """
    q = unpack_int4(qweight.t().contiguous())  # [out, in]
    zeros = unpack_int4(qzeros) + zero_offset  # [groups, out]
    group = g_idx.long()
    return ((q - zeros[group].t()) * scales.float()[group].t()).contiguous()


def dequantize_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Return the weight [out, in] in float32 of one AWQ gemm layer (shapes: see the module)."""
    q = unpack_int4_awq(qweight)  # [in, out]
    zeros = unpack_int4_awq(qzeros).repeat_interleave(group_size, dim=0)
    weight = (q - zeros) * scales.float().repeat_interleave(group_size, dim=0)
    return weight.t().contiguous()


def dequantized_state_dict(
    model_dir: Path, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Read a 4-bit checkpoint and return plain weights.

    Args:
        model_dir: folder with config.json (with `quantization_config`) and safetensors.
        dtype: of the unpacked layers. float32 is exact.

    Raises:
        ValueError: the folder is not a 4-bit GPTQ or AWQ gemm checkpoint.
    """
    quantization = _supported_quantization(model_dir)
    tensors = load_tensors(model_dir)
    plain = {name: tensor for name, tensor in tensors.items() if not _is_packed_part(name, tensors)}
    for name in [name for name in tensors if name.endswith(".qweight")]:
        layer = name.removesuffix(".qweight")
        qweight, qzeros, scales = (tensors[f"{layer}.{p}"] for p in ("qweight", "qzeros", "scales"))
        if quantization["quant_method"] == "awq":
            weight = dequantize_awq(qweight, qzeros, scales, quantization["group_size"])
        else:
            offset = 0 if quantization.get("checkpoint_format") == "gptq_v2" else 1
            g_idx = tensors[f"{layer}.g_idx"]
            weight = dequantize_gptq(qweight, qzeros, scales, g_idx, zero_offset=offset)
        plain[f"{layer}.weight"] = weight.to(dtype)
    return plain


def load_tensors(model_dir: Path) -> dict[str, Tensor]:
    """Read all safetensors files of a folder into one dictionary."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(model_dir.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def _supported_quantization(model_dir: Path) -> dict[str, Any]:
    config = json.loads((model_dir / "config.json").read_text())
    quantization: dict[str, Any] = config.get("quantization_config") or {}
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    layout = quantization.get("version" if method == "awq" else "checkpoint_format", "gptq")
    if (method, layout) not in {
        ("gptq", "gptq"),
        ("gptq", "gptq_v2"),
        ("awq", "gemm"),
    } or bits != 4:
        raise ValueError(
            f"{model_dir.name} is no 4-bit GPTQ or AWQ gemm checkpoint: its config.json says "
            f"quant_method={method!r}, format {layout!r}, bits={bits!r}."
        )
    return quantization


def _is_packed_part(name: str, tensors: dict[str, Tensor]) -> bool:
    layer, _, part = name.rpartition(".")
    return part in {"qweight", "qzeros", "scales", "g_idx"} and f"{layer}.qweight" in tensors
