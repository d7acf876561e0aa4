"""What lab 09 says of packing eight 4-bit numbers into an int32: exercise 11.

The oracle sets bit by bit. The layouts are those of checkpoints that vLLM loads (tests/quant).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts, PartsCase, compare_parts

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ_INVERSE = (0, 4, 1, 5, 2, 6, 3, 7)


def _int32(eight: Sequence[int], order: Sequence[int]) -> int:
    """One int32, from its 32 bits, lowest first, as two's complement."""
    bits = [(eight[source] >> bit) & 1 for source in order for bit in range(4)]
    return sum(bit << place for place, bit in enumerate(bits[:31])) - (bits[31] << 31)


def _packed(rows: list[list[int]], order: Sequence[int]) -> Tensor:
    return torch.tensor(
        [[_int32(row[i : i + 8], order) for i in range(0, len(row), 8)] for row in rows],
        dtype=torch.int32,
    )


def _by_hand(q: Tensor, zeros: Tensor, layout: str) -> Parts:
    if layout == "gptq":
        qweight = _packed(q.tolist(), IN_ORDER).T  # [out, in / 8] -> [in / 8, out]
        return qweight.contiguous(), _packed((zeros.T.int() - 1).tolist(), IN_ORDER)
    return _packed(q.T.tolist(), AWQ_ORDER), _packed(zeros.T.tolist(), AWQ_ORDER)


def _case(out: int, width: int, groups: int, layout: str, top: int = 16) -> PartsCase:
    generator = torch.Generator().manual_seed(out + width)
    q = torch.randint(0, top, (out, width), generator=generator).to(torch.uint8)
    zeros = torch.randint(1, top, (out, groups), generator=generator).to(torch.uint8)
    given = f"q [{out}, {width}], zeros [{out}, {groups}], layout={layout!r}"
    return PartsCase(given, (q, zeros, layout), _by_hand(q, zeros, layout))


_CASES = tuple(
    case
    for layout in ("gptq", "awq")
    for case in (
        _case(8, 8, 1, layout, 8),  # below the sign bit
        _case(8, 16, 2, layout),
        _case(24, 16, 1, layout),
        _case(16, 64, 2, layout),
    )
)


def pack(rows: Tensor, order: Sequence[int] = IN_ORDER, how: str = "") -> Tensor:
    """Pack along the last dimension, with one switch per known mistake."""
    eight = rows.long().unflatten(-1, (-1, 8))[..., list(order)]
    if how == "clamped":
        return (eight << 4 * torch.arange(8)).sum(-1).clamp(max=2**31 - 1).int()
    if how == "uint8":
        small = rows.to(torch.uint8).unflatten(-1, (-1, 8))[..., list(order)]
        return (small << (4 * torch.arange(8)).to(torch.uint8)).sum(-1).int()
    if how == "bytes":
        return (eight << 8 * torch.arange(8)).sum(-1).int()
    if how == "unsigned":
        return (eight << 4 * torch.arange(8)).sum(-1)
    return (eight << 4 * torch.arange(8)).sum(-1).int()


def layer(
    q: Tensor, zeros: Tensor, layout: str, *, how: str = "", gptq_order: Sequence[int] = IN_ORDER,
    awq_order: Sequence[int] = AWQ_ORDER, zeros_order: Sequence[int] | None = None,
    minus: tuple[int, int] = (1, 0), along: str = "right", turned: bool = False,
) -> Parts:  # fmt: skip
    """`pack_layer` with one switch per known mistake. It is never the oracle."""
    gptq = layout == "gptq"
    order = gptq_order if gptq else awq_order
    z = (zeros.int() - minus[0 if gptq else 1]) & 15
    qzeros = pack(z.T, order if zeros_order is None or gptq else zeros_order, how)
    if along == "in" or (along == "right" and gptq):
        return pack(q, order, how).T if not turned else pack(q, order, how), qzeros
    return pack(q.T, order, how), qzeros


def _mistake(says: str, look: str, **switches: Any) -> KnownMistake:
    return KnownMistake(says, look, lambda *args: layer(*args, **switches))


_HIGH = IN_ORDER[::-1]
_MISTAKES = (
    _mistake('The layout "gptq" stores zero - 1, a slip of the first version that every reader now '
             "counts on.", 'For "gptq": pack `zeros - 1`.', minus=(0, 0)),
    _mistake('You store zero - 1 in both layouts. Only "gptq" does; "awq" stores the zero as it '
             "is.", "`if layout == 'gptq':`.", minus=(1, 1)),
    _mistake("You store zero - 1 in the wrong layout.", 'For "gptq": pack `zeros - 1`.',
             minus=(0, 1)),
    _mistake('You store zero + 1. The layout "gptq" stores zero - 1; the reader adds 1.',
             "`zeros - 1`.", minus=(-1, 0)),
    _mistake('The layout "awq" is interleaved: nibble i holds channel AWQ_ORDER[i]. Yours holds '
             "channel i.", "`eight[..., list(AWQ_ORDER)]`.", awq_order=IN_ORDER),
    _mistake("AWQ's order is used the wrong way round: channel i went into nibble AWQ_ORDER[i]. "
             "Nibble i holds channel AWQ_ORDER[i].", "`eight[..., list(AWQ_ORDER)]` picks for "
             "each nibble.", awq_order=AWQ_INVERSE),
    _mistake("AWQ's zeros are not interleaved. They are packed as its codes are.",
             "Both with AWQ_ORDER.", zeros_order=IN_ORDER),
    _mistake("You interleave in both layouts. Only AWQ does.", "GPTQ's nibbles are in order.",
             gptq_order=AWQ_ORDER),
    _mistake("The first code is in the highest nibble. It belongs into the lowest.",
             "Shift code i by 4 * i.", gptq_order=_HIGH, awq_order=AWQ_ORDER[::-1]),
    _mistake('The layout "gptq" packs along the inputs: eight neighbours of one output share an '
             "int32. You pack along the outputs.", "[in / 8, out].", along="out"),
    _mistake('The layout "awq" packs along the outputs: eight outputs of one input channel share '
             "an int32. You pack along the inputs.", "[in, out / 8].", along="in"),
    _mistake("Large int32 are cut off. A nibble of 8 or more on top makes the number negative.",
             "Convert int64 to int32 with `.to(torch.int32)`, which keeps the low 32 bits.",
             how="clamped"),
    _mistake("You shift in uint8. It has 8 bits, so only two of eight codes are left.",
             "`.long()` before the shift.", how="uint8"),
    _mistake("You shift by 8 bits per code. A code has 4.", "Shift code i by 4 * i.",
             how="bytes"),
    _mistake("`qweight` is int64. Eight nibbles are 32 bits.", "`.to(torch.int32)` at the end.",
             how="unsigned"),
    _mistake('For "gptq", qweight lies on its side: [out, in / 8].', "Transpose: [in / 8, out].",
             turned=True),
)  # fmt: skip


def judge_pack_layer(function: Callable[..., Parts]) -> str:
    """Check `pack_layer(q, zeros, layout)`."""
    compare_parts(function, ("qweight", "qzeros"), _CASES, _MISTAKES)
    return (
        "Both layouts, bit for bit: eight codes in an int32, up to the sign bit. These are the "
        "tensors that vLLM reads from a GPTQ and from an AWQ checkpoint."
    )
