"""What lab 09 says of absmax values in 8 bits, and of the way back: exercises 6 and 7."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_09.nf4_codes import DYNAMIC, NEAR, NF4, blockwise, by_search
from utils.checks.lab_09.parts import Parts, far, in_parts

NESTED = 256  # absmax values per nested absmax

# Exercise 6


def draw_absmax(c: Choices) -> Given:
    """One value, all the same, a few, or several blocks of 256; of any magnitude."""
    count = c.integer(257, 1200) if c.rarely(3) else c.size(1, 600)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    absmax = 0.25 + torch.randint(1, 100, (count,), generator=generator) / 50
    absmax[-(count // 3) :] *= c.pick((1.0, 3.0))  # blocks with other means
    if c.rarely(8):
        absmax = torch.full((count,), 0.5)
    if c.rarely(8):
        absmax[: count // 2] = 0.0
    return Given(laid_out(absmax * c.pick((1.0, 1.0, 1e-6, 1e4)), c.pick(LAYOUTS)))


def double_quantized(absmax: Tensor) -> Parts:
    """In float64: the mean first, then a search over all levels."""
    offset = absmax.double().sum() / len(absmax)
    return *by_search(absmax.double() - offset, DYNAMIC, NESTED), offset.float()


def _nested(given: Given, expected: Parts, got: Parts) -> Tensor:
    """float32 knows a difference only as well as the numbers that it is taken from."""
    return far(got[1], expected[1], 1e-6 * float(given.args[0].abs().max()), 1e-5)


def _codes(given: Given, expected: Parts, got: Parts) -> Tensor:
    """Not the nearest level, by more than float32 knows of the offset."""
    (absmax,) = given.args
    wide = expected[1].repeat_interleave(NESTED)[: len(absmax)].double()
    value = absmax.double() - absmax.double().mean()
    away = (DYNAMIC.double() * wide[:, None] - value[:, None]).abs()
    mine = away.gather(1, got[0].long()[:, None])[:, 0]
    slack = NEAR * wide + 2e-6 * float(absmax.abs().max())
    zeros = (wide == 0) & (got[1].repeat_interleave(NESTED)[: len(absmax)] == 0)
    return (mine > away.amin(1) + slack) | (zeros & (DYNAMIC[got[0].long()].abs() > NEAR))


def _double(absmax: Tensor, how: str) -> Parts:
    """`double_quantize` with one switch per known mistake. It is never the oracle."""
    offset = {"none": torch.zeros(()), "min": absmax.min(), "median": absmax.median()}.get(
        how, absmax.mean()
    )
    if how == "per block":
        offset = torch.stack([block.mean() for block in absmax.split(NESTED)])
        centred = absmax - offset.repeat_interleave(NESTED)[: len(absmax)]
        return *blockwise(centred, DYNAMIC, NESTED), offset
    if how == "largest before":
        nested = blockwise(absmax, DYNAMIC, NESTED)[1]
        scale = nested.repeat_interleave(NESTED)[: len(absmax)]
        return blockwise((absmax - offset) / scale, DYNAMIC, 1, "unscaled")[0], nested, offset
    size = {"64": 64, "all": len(absmax)}.get(how, NESTED)
    levels = NF4 if how == "nf4" else DYNAMIC
    return *blockwise(absmax - offset, levels, size), offset


def _but(how: str) -> Callable[..., Parts]:
    return lambda absmax: _double(absmax, how)


_PARTS = ("codes", "nested_absmax", "offset")
_wrong = in_parts(_PARTS, first=_PARTS[::-1], codes=_codes, nested_absmax=_nested)
_STEPS = "Which one number stands for all of them, and what is left of each value without it?"
DOUBLE_QUANTIZE = Contract(
    inputs=draw_absmax,
    judge=Returns(double_quantized, wrong=_wrong),
    passed="8 bits per absmax in place of 32: 8/64 + 32/(64 · 256) = 0.127 bits per weight in "
    "place of 0.5. One offset per weight is too little to count.",
    clauses={
        "form": Clause(
            "{says}",
            "A code for each value, an absmax for each 256 of them, and one offset for all.",
        ),
        "codes": Clause(
            "{says} A code is the number of the dynamic level that is nearest to the "
            "difference from the mean, divided by its block's absmax.",
            _STEPS,
        ),
        "nested_absmax": Clause(
            "{says} It is the largest magnitude among the differences of a block of 256.", _STEPS
        ),
        "offset": Clause("{says} It is the mean of all absmax values.", _STEPS),
    },
    mistakes=(
        mistake(
            "The mean is not subtracted. All absmax values are positive, so half of the "
            "256 levels stay unused.",
            _STEPS,
            _but("none"),
        ),
        mistake(
            "The offset is the smallest value. It is the mean, so that both signs of the "
            "levels are used.",
            _STEPS,
            _but("min"),
        ),
        mistake("The offset is the median. It is the mean.", _STEPS, _but("median")),
        mistake(
            "Each block of 256 has an offset of its own. There is one for the whole weight.",
            _STEPS,
            _but("per block"),
        ),
        mistake(
            "The nested absmax was taken before the mean was subtracted. It is the largest "
            "magnitude of the differences.",
            _STEPS,
            _but("largest before"),
        ),
        mistake("The blocks have 64 values. Those of absmax values have 256.", _STEPS, _but("64")),
        mistake("All absmax values share one block. A block has 256.", _STEPS, _but("all")),
        mistake(
            "You use NF4's 16 levels. absmax values get 8 bits: `create_dynamic_map()`.",
            _STEPS,
            _but("nf4"),
        ),
    ),
)

# Exercise 7


def draw_nf4(c: Choices) -> Given:
    """Blocks within a row and across rows; several blocks of 256 absmax values."""
    blocksize = c.size(1, 130)
    blocks = c.integer(257, 800) if c.rarely(4) and blocksize < 9 else c.size(1, 40)
    count = blocks * blocksize
    rows = c.pick([n for n in (1, 2, 3, 4, 5, 7, 64) if count % n == 0])
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    codes = torch.randint(0, 16, (rows, count // rows), generator=generator).to(torch.uint8)
    absmax = torch.randint(0, 256, (blocks,), generator=generator).to(torch.uint8)
    scale = c.pick((1.0, 1.0, 1e-6, 1e4))
    number = -(-blocks // NESTED)
    nested = torch.randint(0, 50, (number,), generator=generator) * 0.01 * scale
    offset = torch.tensor(0.01 * c.integer(0, 99) * scale)
    return Given(
        codes, *(laid_out(t, c.pick(LAYOUTS)) for t in (absmax, nested)), offset, blocksize
    )


def nf4_read_back(
    codes: Tensor, absmax_codes: Tensor, nested_absmax: Tensor, offset: Tensor, blocksize: int
) -> Tensor:
    """Block by block, in float64."""
    back = []
    for number, block in enumerate(codes.flatten().split(blocksize)):
        absmax = DYNAMIC[int(absmax_codes[number])].double() * nested_absmax[number // NESTED]
        back.append(NF4[block.long()].double() * (absmax + offset.double()))
    return torch.cat(back).view(codes.shape).float()


def _off(given: Given, expected: Parts, got: Parts) -> Tensor:
    _, _, nested, offset, _ = given.args
    return far(got[0], expected[0], 1e-6 * float(nested.max() + offset.abs()), 1e-5)


def _spread(values: Tensor, times: int, length: int, tiled: bool = False) -> Tensor:
    if tiled:
        return values.repeat(-(-length // len(values)))[:length]
    return values.repeat_interleave(times)[:length]


def _back(
    codes: Tensor, absmax: Tensor, nested: Tensor, offset: Tensor, size: int, how: str
) -> Tensor:
    """`dequantize_nf4` with one switch per known mistake. It is never the oracle."""
    flat, inner = codes.flatten(), DYNAMIC[absmax.long()]
    scale = _spread(nested, NESTED, len(absmax), tiled=how == "nested tiled")
    if how == "nested first":
        scale = nested[:1].expand(len(absmax))
    largest = {
        "no offset": inner * scale,
        "minus": inner * scale - offset,
        "offset first": (inner + offset) * scale,
        "no nested": inner + offset,
    }.get(how, inner * scale + offset)
    # "as numbers": codes stand for themselves, evenly spaced.
    levels = flat.float() / 7.5 - 1 if how == "as numbers" else NF4[flat.long()]
    wide = _spread(largest, size, len(flat), tiled=how == "tiled")
    return (levels / wide if how == "divided" else levels * wide).view(codes.shape)


def _backwards(how: str) -> Callable[..., Tensor]:
    return lambda c, a, nested, offset, size: _back(c, a, nested, offset, size, how)


_FIRST = "Turn around exercise 6, last step first; then exercise 5."
_256 = "How many absmax values does a nested absmax serve?"
DEQUANTIZE_NF4 = Contract(
    inputs=draw_nf4,
    judge=Returns(nf4_read_back, wrong=in_parts(("weight",), weight=_off)),
    passed="What you read back equals the reference, which the course's tests compare with "
    "bitsandbytes bit by bit: this is the arithmetic inside every QLoRA training step.",
    clauses={
        "form": Clause("{says}", "float32, in the shape of `codes`."),
        "weight": Clause(
            "{says} A weight is the level of its code, times its block's absmax, "
            "which is itself read back first.",
            _FIRST,
        ),
    },
    mistakes=(
        mistake(
            "The offset is left out. It was subtracted before the absmax values were quantized.",
            _FIRST,
            _backwards("no offset"),
        ),
        mistake(
            "The offset is subtracted once more. It must be added back.",
            _FIRST,
            _backwards("minus"),
        ),
        mistake(
            "The offset is added before the scaling. Scale first: it was subtracted before the "
            "division.",
            _FIRST,
            _backwards("offset first"),
        ),
        mistake("`nested_absmax` is left out.", _FIRST, _backwards("no nested")),
        mistake(
            "The absmax values are tiled. Each serves `blocksize` neighbours.",
            "`repeat_interleave`.",
            _backwards("tiled"),
        ),
        mistake(
            "The nested absmax values are tiled. Each serves 256 neighbours.",
            _256,
            _backwards("nested tiled"),
        ),
        mistake(
            "Only the first nested absmax is used. There is one per 256 absmax values.",
            _256,
            _backwards("nested first"),
        ),
        mistake(
            "You read the weights' codes as evenly spaced numbers. They are places in the list "
            "of NF4's levels.",
            "`create_normal_map()`.",
            _backwards("as numbers"),
        ),
        mistake("You divide by absmax. The way back multiplies.", _FIRST, _backwards("divided")),
    ),
)
