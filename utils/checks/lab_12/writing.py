"""Codes, zeros and scales as a GPTQ layer's tensors, or a refusal: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12.fields import BITS, pack_last, tensors_differ
from utils.checks.lab_12.reading import FORMATS, Tensors, random_groups, random_scales

PARTS = ("qweight", "qzeros", "scales", "g_idx")
INTS = (torch.uint8, torch.int32, torch.int64)
HALF_END = 65520.0  # from here on, float16 rounds to infinity
ODD_SCALES = (65519.0, -65510.0, 65504.0, 0.0, 1e-9, -0.5)  # can be stored all the same


def draw_codes(c: Choices) -> Given:
    """Mostly what can be stored; else one thing that cannot."""
    bits, form = c.pick(BITS), c.pick(FORMATS)
    per, top = 32 // bits, 2**bits
    width, out, groups = per * c.size(1, 6), per * c.size(1, 4), c.size(1, 5)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    bad = (
        ""
        if not c.rarely(2)
        else c.pick(
            (
                "code",
                "negative code",
                "zero",
                "no zero",
                "width",
                "out",
                "scale",
                "nan",
                "group",
                "negative group",
                "format",
                "bits",
                "negative zero",
                "minus one",
                "odd scale",
                "groups from 1",
                "bits",
                "code",
                "zero",
                "no zero",
                "no zero",
            )
        )
    )
    width -= (bad == "width") * c.pick((1, per // 2))
    out -= (bad == "out") * c.pick((1, per // 2))
    codes = torch.randint(0, top, (out, width), generator=generator)
    zeros = torch.randint(int(form == "gptq"), top, (out, groups), generator=generator)
    scales = random_scales(c, (out, groups)).float()
    g_idx = random_groups(c, width, groups).long()
    i, j, k = c.integer(0, out - 1), c.integer(0, width - 1), c.integer(0, groups - 1)
    wrong: dict[str, Callable[[], Any]] = {
        "code": lambda: codes[i].__setitem__(j, c.pick((top, 2**33))),
        "negative code": lambda: codes[i].__setitem__(j, -1),
        "zero": lambda: zeros[i].__setitem__(k, c.pick((top, 2**33))),
        "no zero": lambda: zeros[i].__setitem__(k, 0),  # fine in "gptq_v2"
        "negative zero": lambda: zeros[i].__setitem__(k, -1),
        "minus one": lambda: zeros[i].__setitem__(k, top - 1),  # fine in both
        "scale": lambda: scales[i].__setitem__(k, c.pick((7e4, float("inf"), -7e4, HALF_END))),
        "odd scale": lambda: scales[i].__setitem__(k, c.pick(ODD_SCALES)),  # fine
        "nan": lambda: scales[i].__setitem__(k, float("nan")),
        "group": lambda: g_idx.__setitem__(j, c.pick((groups, 2**32))),
        "groups from 1": lambda: g_idx.add_(1),
        "negative group": lambda: g_idx.__setitem__(j, -1),
    }
    if bad in wrong:
        wrong[bad]()
    if bad == "format":
        form = c.pick(("marlin", "GPTQ"))
    if bad == "bits":
        bits = c.pick((3, 16, 1, 0))
    wide = [t for t in INTS if t != torch.uint8] if "negative" in bad else INTS
    if bits == 8 and bad in ("code", "zero"):
        wide = [torch.int64, torch.int32]
    codes, zeros = codes.to(c.pick(wide)), zeros.to(c.pick(wide))
    scales = scales.half() if c.rarely(4) and "scale" not in bad else scales
    g_idx = g_idx.to(c.pick((torch.int32, torch.int64)) if bad != "group" else torch.int64)
    parts = (laid_out(t, c.pick(LAYOUTS)) for t in (codes, zeros, scales))
    return Given(*parts, g_idx, bits, form)


def unfit(
    codes: Tensor, zeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int, checkpoint_format: str
) -> str:
    """Why this cannot be stored; empty if it can. Numbers are looked at one by one."""
    if bits not in (2, 4, 8) or checkpoint_format not in FORMATS:
        return f"{bits} bits in the format {checkpoint_format!r}"
    if codes.shape[0] % (32 // bits) or codes.shape[1] % (32 // bits):
        return f"codes {list(codes.shape)}, which are no multiples of {32 // bits}"
    least, groups = int(checkpoint_format == "gptq"), range(scales.shape[1])
    reasons = [f"a code of {n}" for n in codes.flatten().tolist() if not 0 <= n < 2**bits]
    reasons += [f"a zero of {n}" for n in zeros.flatten().tolist() if not least <= n < 2**bits]
    reasons += [f"a scale of {x}" for x in scales.flatten().tolist() if not abs(x) < HALF_END]
    reasons += [f"the group {g} of {len(groups)}" for g in g_idx.tolist() if g not in groups]
    return next(iter(reasons), "")


def by_hand(
    codes: Tensor, zeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int, checkpoint_format: str
) -> Tensors:
    """Numbers in Python's lists, looked at one by one."""
    if reason := unfit(codes, zeros, scales, g_idx, bits, checkpoint_format):
        raise ValueError(reason)
    stored = zeros.T.long() - int(checkpoint_format == "gptq")
    return {
        "qweight": pack_last(codes, bits).T.contiguous(),
        "qzeros": pack_last(stored, bits),
        "scales": scales.T.half().contiguous(),
        "g_idx": g_idx.to(torch.int32, copy=True),
    }


def _wrong(expected: Tensors, got: Any, given: Given) -> Fault | None:
    name, says = tensors_differ(expected, got, PARTS)
    return (
        Fault(name or "form", "", expected, got, says, words=("the layer's four tensors", says))
        if says
        else None
    )


def _tell(given: Given) -> str:
    names = ("codes", "zeros", "scales", "g_idx", "bits", "checkpoint_format")
    reason = unfit(*given.args)
    words = ", ".join(
        f"{n} {shown(v).replace('`', '')}" for n, v in zip(names, given.args, strict=True)
    )
    return f"{words} (there is {reason})" if reason else words


def _write(change: str = "") -> Callable[..., Any]:
    """A right answer, but for one thing."""

    def pack(values: Tensor, bits: int) -> Tensor:
        shifts = torch.arange(0, 32, bits)
        words = values.long().unflatten(-1, (-1, 32 // bits))
        if change == "highest first":
            words = words.flip(-1)
        packed = (words << shifts).sum(-1)
        return (packed.clamp(max=2**31 - 1) if change == "clamped" else packed).to(torch.int32)

    def write(c: Tensor, z: Tensor, s: Tensor, g: Tensor, bits: int, form: str) -> Any:
        if bits not in (2, 4, 8) or form not in FORMATS:
            raise ValueError("unknown")
        stored, top = z.long() - int(form == "gptq"), 2**bits
        if change == "as they are":
            stored = z.long()
        elif change == "always":
            stored = z.long() - 1
        bad = {
            "codes": bool(((c < 0) | (c.long() >= top)).any()),
            "zeros": bool(((stored < 0) | (z.long() >= top)).any()),
            "scales": not bool(s.half().isfinite().all()),
            "groups": bool(((g < 0) | (g >= s.shape[1])).any()),
            "width": bool(c.shape[1] % (32 // bits)),
            "out": bool(c.shape[0] % (32 // bits)),
        }
        if any(is_bad for name, is_bad in bad.items() if name != change and change != "nothing"):
            raise ValueError("cannot be stored")
        qweight = pack(c.T, bits) if change == "along out" else pack(c, bits).T
        return {
            "qweight": qweight.contiguous(),
            "qzeros": pack(stored.T & (top - 1), bits),
            "scales": s.T.to(torch.float16, copy=True).contiguous(),
            "g_idx": g.int().clone(),
        }

    return write


WRITE_LAYER = Contract(
    inputs=draw_codes,
    judge=Returns(by_hand, own=True, wrong=_wrong),
    tell=_tell,
    examples=500,
    passed="Right: what fits is stored to the bit, and what does not fit is refused before a "
    "reader can misread it.",
    clauses={
        "form": Clause("{says}", "A dict with qweight, qzeros, scales and g_idx."),
        "qweight": Clause(
            "{says}",
            "[in / per, out] in int32: an int32 holds neighbouring inputs "
            "of one output, the first one in the lowest bits.",
        ),
        "qzeros": Clause(
            "{says}",
            "[groups, out / per] in int32: an int32 holds the zeros of neighbouring outputs.",
        ),
        "scales": Clause("{says}", "[groups, out] in float16."),
        "g_idx": Clause("{says}", "[in] in int32."),
        "refuses": Clause(
            "This cannot be stored, and must be refused with a ValueError.",
            "Go through the list of the contract: codes, zeros, scales, groups, "
            "sizes, bits, format.",
        ),
    },
    mistakes=(
        mistake("A code out of range is not refused.", "0 to 2^bits - 1.", _write("codes")),
        mistake(
            "A zero out of range is not refused.",
            'And in the format "gptq" a zero of 0 would be stored as -1.',
            _write("zeros"),
        ),
        mistake(
            "A scale that is infinite in float16, or no number, is not refused.",
            "`torch.isfinite` of what you store.",
            _write("scales"),
        ),
        mistake(
            "A group that does not exist is not refused.", "0 to groups - 1.", _write("groups")
        ),
        mistake(
            "Nothing is refused.",
            "Each line of the list is an `if` and a `raise`.",
            _write("nothing"),
        ),
        mistake(
            'The format "gptq" stores zero - 1. Yours stores the zero.',
            "Every reader adds 1.",
            _write("as they are"),
        ),
        mistake(
            'You store zero - 1 in both formats; "gptq_v2" stores the zero.',
            "Look at `checkpoint_format`.",
            _write("always"),
        ),
        mistake(
            "Large int32 are cut off. A field that reaches the sign bit makes the number negative.",
            "int64 to int32 with `.to(torch.int32)` keeps the low 32 bits.",
            _write("clamped"),
        ),
        mistake(
            "The first number is in the highest bits. It belongs into the lowest.",
            "The first one is not shifted.",
            _write("highest first"),
        ),
        mistake(
            "`qweight` packs neighbouring outputs, as AWQ does. In GPTQ an int32 holds "
            "neighbouring inputs of one output.",
            "[in / per, out].",
            _write("along out"),
        ),
    ),
)
