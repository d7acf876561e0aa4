"""The two 4-bit checkpoint layouts: GPTQ and AWQ ("gemm").

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

import torch
from torch import Tensor

from utils.quant.rtn import QuantizedWeight, group_index

# Nibble i of an AWQ int32 holds output channel AWQ_ORDER[i].
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)

# --- eight nibbles in one int32 -----------------------------------------------------------------


def pack_int4(values: Tensor) -> Tensor:
    """Pack integers 0..15 [..., 8 * n] into int32 [..., n], the first in the lowest nibble.

    Raises:
        ValueError: a value is out of range, or their number is no multiple of 8.
    """
    if values.shape[-1] % 8:
        raise ValueError(f"Eight values make one int32; {values.shape[-1]} is no multiple of 8.")
    values = values.to(torch.int64)  # the eighth nibble reaches the sign bit
    if values.numel() and (values.min() < 0 or values.max() > 15):
        raise ValueError(f"Four bits hold 0 to 15; got {int(values.min())} to {int(values.max())}.")
    nibbles = values.unflatten(-1, (-1, 8)) << _SHIFTS.to(values.device)
    packed = nibbles.sum(-1)
    return torch.where(packed < 2**31, packed, packed - 2**32).to(torch.int32)


def unpack_int4(packed: Tensor) -> Tensor:
    """Split int32 [..., n] into its nibbles, lowest first: int32 [..., 8 * n] in 0..15."""
    return ((packed.unsqueeze(-1) >> _SHIFTS.to(packed.device)) & 0xF).flatten(-2)


def pack_int4_awq(values: Tensor) -> Tensor:
    """As `pack_int4`, in AWQ's interleaved order."""
    if values.shape[-1] % 8:
        raise ValueError(f"Eight values make one int32; {values.shape[-1]} is no multiple of 8.")
    return pack_int4(values.unflatten(-1, (-1, 8))[..., list(AWQ_ORDER)].flatten(-2))


def unpack_int4_awq(packed: Tensor) -> Tensor:
    """As `unpack_int4`, with AWQ's interleaving undone."""
    inverse = torch.tensor(AWQ_ORDER, device=packed.device).argsort()
    nibbles = unpack_int4(packed).unflatten(-1, (-1, 8))
    return nibbles[..., inverse].flatten(-2)


# --- a quantized weight as the tensors of a checkpoint ------------------------------------------


def pack_gptq(weight: QuantizedWeight, *, zero_offset: int = 1) -> dict[str, Tensor]:
    """The tensors of one GPTQ layer: qweight, qzeros, scales (float16), g_idx.

    `zero_offset` is 1 for checkpoint_format "gptq", which stores zero - 1, and 0 for "gptq_v2".

    Raises:
        ValueError: not 4 bits; a zero of 0 with offset 1; or a scale beyond float16.
    """
    _check_bits(weight)
    zeros = weight.zeros.to(torch.int32) - zero_offset
    if zeros.min() < 0:
        raise ValueError(
            'checkpoint_format "gptq" stores zero - 1, and a zero here is 0. Quantize with '
            'sym=True (every zero is 8), or pack with zero_offset=0 for "gptq_v2".'
        )
    return {
        "qweight": pack_int4(weight.q).t().contiguous(),
        "qzeros": pack_int4(zeros.t().contiguous()),
        "scales": _half_scales(weight),
        "g_idx": weight.g_idx.to(torch.int32, copy=True),  # q, k and v share one; files may not
    }


def unpack_gptq(tensors: dict[str, Tensor], *, zero_offset: int = 1) -> QuantizedWeight:
    """Undo `pack_gptq`."""
    return QuantizedWeight(
        q=unpack_int4(tensors["qweight"].t().contiguous()).to(torch.uint8),
        scales=tensors["scales"].t().float().contiguous(),
        zeros=(unpack_int4(tensors["qzeros"]) + zero_offset).t().to(torch.uint8).contiguous(),
        g_idx=tensors["g_idx"],
    )


def pack_awq(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The tensors of one AWQ gemm layer: qweight, qzeros, scales (float16).

    Raises:
        ValueError: not 4 bits; groups that are not neighbours; or a scale beyond float16.
    """
    _check_bits(weight)
    if not torch.equal(weight.g_idx, group_index(weight.q, weight.group_size)):
        raise ValueError(
            "The AWQ layout has no g_idx: groups must be neighbouring channels. Quantize with "
            "desc_act=False, or pack for GPTQ."
        )
    return {
        "qweight": pack_int4_awq(weight.q.t().contiguous()),
        "qzeros": pack_int4_awq(weight.zeros.t().contiguous()),
        "scales": _half_scales(weight),
    }


def unpack_awq(tensors: dict[str, Tensor]) -> QuantizedWeight:
    """Undo `pack_awq`."""
    q = unpack_int4_awq(tensors["qweight"]).t().to(torch.uint8).contiguous()
    scales = tensors["scales"].t().float().contiguous()
    return QuantizedWeight(
        q=q,
        scales=scales,
        zeros=unpack_int4_awq(tensors["qzeros"]).t().to(torch.uint8).contiguous(),
        g_idx=group_index(q, q.shape[1] // scales.shape[1]),
    )


def dequantize_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor, *, zero_offset: int = 1
) -> Tensor:
    """Return the weight [out, in] in float32 of one GPTQ layer (shapes: see the module)."""
    tensors = {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}
    return unpack_gptq(tensors, zero_offset=zero_offset).dequantize()


def dequantize_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Return the weight [out, in] in float32 of one AWQ gemm layer (shapes: see the module)."""
    if qweight.shape[0] != group_size * scales.shape[0]:
        raise ValueError(
            f"{qweight.shape[0]} input channels in {scales.shape[0]} groups are not groups of "
            f"{group_size}. The group_size of config.json does not belong to these tensors."
        )
    return unpack_awq({"qweight": qweight, "qzeros": qzeros, "scales": scales}).dequantize()


def _check_bits(weight: QuantizedWeight) -> None:
    if weight.bits != 4:
        raise ValueError(f"These layouts hold 4-bit codes; this weight has {weight.bits} bits.")


def _half_scales(weight: QuantizedWeight) -> Tensor:
    scales = weight.scales.t().to(torch.float16).contiguous()
    if not torch.isfinite(scales).all():
        raise ValueError(
            f"A scale of {weight.scales.max():.3g} is beyond float16, which ends at 65504. "
            "Weights this large are not those of a sound model."
        )
    return scales
