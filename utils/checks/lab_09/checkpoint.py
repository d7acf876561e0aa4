"""What lab 09 says of a checkpoint: its size (exercise 4), and eight codes in an int32 (11).

The oracle of exercise 11 sets bit by bit. The layouts are those that vLLM loads (tests/quant).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_09.grid import BITS
from utils.checks.lab_09.parts import Parts, in_parts

# Exercise 4

Shapes = Sequence[tuple[int, int]]

# (hidden, intermediate, KV size, layers, vocabulary, embeddings)
_MODELS = {
    "SmolLM2-135M": (576, 1536, 192, 30, 49152, 1),
    "Mistral-7B": (4096, 14336, 1024, 32, 32768, 2),
}


def shapes_of(model: str) -> tuple[list[tuple[int, int]], int]:
    """The linear layers of a model, and the number of all its other weights."""
    hidden, inner, kv, layers, vocabulary, embeddings = _MODELS[model]
    layer = [
        (hidden, hidden),
        (kv, hidden),
        (kv, hidden),
        (hidden, hidden),
        (inner, hidden),
        (inner, hidden),
        (hidden, inner),
    ]
    norms = (2 * layers + 1) * hidden
    return layer * layers, vocabulary * hidden * embeddings + norms


def draw_model(c: Choices) -> Given:
    """No layer, one, many, two of the same shape; sizes of large models."""
    group_size = c.size(1, 300)

    def shape() -> tuple[int, int]:
        rows = c.size(1, 20_000) if c.rarely(3) else 8 * c.size(1, 2_000)
        return rows, group_size * c.size(1, 200)

    shapes = c.some(shape, 0, 5)
    if shapes and c.rarely(3):
        shapes.append(shapes[0])
    return Given(shapes, c.size(0, 10**9), c.pick(BITS), group_size)


def tensor_bytes(linear_shapes: Shapes, num_other_params: int, bits: int, group_size: int) -> float:
    """Tensor by tensor: the codes, the scales and the zeros of each layer; then the rest."""
    total = Fraction(2 * num_other_params)
    for out, width in linear_shapes:
        groups = Fraction(out * width, group_size)
        total += Fraction(out * width * bits, 8) + 2 * groups + groups * bits / 8
    return float(total)


def _wrong(expected: float, got: Any, given: Given) -> Fault | None:
    """Where a tensor ends inside a byte, it may count the whole byte, or the part; not less."""
    shapes, _, bits, group_size = given.args
    counts = [n for out, width in shapes for n in (out * width, out * width // group_size)]
    inside = sum(n * bits % 8 != 0 for n in counts)
    says = difference(expected, got, rtol=1e-12, atol=inside + 1e-3)
    if not says and got < expected - 1e-3 - 1e-12 * expected:
        says = "The part of a byte in which a tensor ends is lost."
    return Fault("returns", "", expected, got, says) if says else None


def _bytes(
    shapes: Shapes,
    other: int,
    bits: int,
    group: int,
    *,
    code_bits: float = 0,
    scale: float = 2,
    zero: float | None = None,
    other_bytes: float = 2,
    groups_of: str = "each output",
) -> float:
    """The size with one switch per known mistake. It is never the oracle."""
    total = float(other_bytes * other)
    for out, width in shapes:
        groups = {"each output": out * width / group, "one": 1, "one output": width / group}
        total += out * width * (code_bits or bits) / 8
        total += groups[groups_of] * (scale + (bits / 8 if zero is None else zero))
    return total


def _size(**switches: Any) -> Callable[..., float]:
    return lambda *args: _bytes(*args, **switches)


def _passed(function: Callable[..., float]) -> str:
    words = []
    for model in _MODELS:
        shapes, other = shapes_of(model)
        before = 2 * (sum(out * width for out, width in shapes) + other)
        after = function(shapes, other, 4, 64)
        words.append(f"{model}: {before / 1e9:.2f} GB in 16 bits, {after / 1e9:.2f} GB in 4")
    return (
        "The bytes of all tensors, as one counts them one by one. With groups of 64, "
        f"{'; '.join(words)}. The small model keeps most of its bytes in the embedding."
    )


_LOOK = "What is stored for each weight, for each group of each output, for each other parameter?"
CHECKPOINT_BYTES = Contract(
    inputs=draw_model,
    judge=Returns(tensor_bytes, wrong=_wrong),
    passed=_passed,
    clauses={"returns": Clause("{says}", _LOOK)},
    mistakes=(
        mistake(
            "The scales are left out. Each group of each output has one, in 16 bits.",
            _LOOK,
            _size(scale=0),
        ),
        mistake(
            "The zeros are left out. Each group of each output has one, in `bits` bits.",
            _LOOK,
            _size(zero=0),
        ),
        mistake(
            "Scales and zeros are left out. They are what makes small groups dear.",
            _LOOK,
            _size(scale=0, zero=0),
        ),
        mistake(
            "The scales count 4 bytes each. Checkpoints store them in 16 bits.",
            _LOOK,
            _size(scale=4),
        ),
        mistake(
            "The zeros count as much as scales, or a whole byte. They are codes, and have "
            "`bits` bits.",
            _LOOK,
            _size(zero=2),
            _size(zero=1),
        ),
        mistake(
            "The other parameters are left out: embeddings and norms stay in 16 bits.",
            _LOOK,
            _size(other_bytes=0),
        ),
        mistake(
            "The other parameters are quantized, too. Embeddings and norms stay in 16 bits.",
            _LOOK,
            lambda s, o, b, g: _bytes(s, o, b, g, other_bytes=b / 8),
        ),
        mistake(
            "This is the size in bits. The answer is in bytes.",
            "A byte has 8 bits.",
            lambda *a: 8 * _bytes(*a),
        ),
        mistake(
            "Each code counts a whole byte. Two 4-bit codes share one.", _LOOK, _size(code_bits=8)
        ),
        mistake(
            "There is one scale per layer. Each group of each output has one.",
            _LOOK,
            _size(groups_of="one"),
        ),
        mistake(
            "You count the groups of one output only. Every output has its own scales.",
            _LOOK,
            _size(groups_of="one output"),
        ),
    ),
)

# Exercise 11

IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ_INVERSE = (0, 4, 1, 5, 2, 6, 3, 7)


def draw_layer(c: Choices) -> Given:
    """Codes below the sign bit and on it; zeros of 0 where they are allowed."""
    out, width, groups = 8 * c.size(1, 6), 8 * c.size(1, 12), c.size(1, 9)
    layout, top = c.pick(("gptq", "awq")), c.pick((16, 16, 8))
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    q = torch.randint(0, top, (out, width), generator=generator).to(torch.uint8)
    least = 1 if layout == "gptq" else 0
    zeros = torch.randint(least, top, (out, groups), generator=generator).to(torch.uint8)
    return Given(laid_out(q, c.pick(LAYOUTS)), laid_out(zeros, c.pick(LAYOUTS)), layout)


def _int32(eight: Sequence[int], order: Sequence[int]) -> int:
    """One int32, from its 32 bits, highest first, as two's complement."""
    bits = "".join(f"{eight[source]:04b}" for source in reversed(order))
    return int(bits, 2) - (2**32 if bits[0] == "1" else 0)


def _packed(rows: list[list[int]], order: Sequence[int]) -> Tensor:
    return torch.tensor(
        [[_int32(row[i : i + 8], order) for i in range(0, len(row), 8)] for row in rows],
        dtype=torch.int32,
    )


def by_hand(q: Tensor, zeros: Tensor, layout: str) -> Parts:
    if layout == "gptq":
        qweight = _packed(q.tolist(), IN_ORDER).T  # [out, in / 8] -> [in / 8, out]
        return qweight.contiguous(), _packed((zeros.T.int() - 1).tolist(), IN_ORDER)
    return _packed(q.T.tolist(), AWQ_ORDER), _packed(zeros.T.tolist(), AWQ_ORDER)


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
    return (eight << 4 * torch.arange(8)).sum(-1).int()


def layer(
    q: Tensor,
    zeros: Tensor,
    layout: str,
    *,
    how: str = "",
    gptq_order: Sequence[int] = IN_ORDER,
    awq_order: Sequence[int] = AWQ_ORDER,
    zeros_order: Sequence[int] | None = None,
    minus: tuple[int, int] = (1, 0),
    along: str = "right",
) -> Parts:
    """`pack_layer` with one switch per known mistake. It is never the oracle."""
    gptq = layout == "gptq"
    order = gptq_order if gptq else awq_order
    z = (zeros.int() - minus[0 if gptq else 1]) & 15
    qzeros = pack(z.T, order if zeros_order is None or gptq else zeros_order, how)
    if along == "in" or (along == "right" and gptq):
        return pack(q, order, how).T, qzeros
    return pack(q.T, order, how), qzeros


def _but(**switches: Any) -> Callable[..., Parts]:
    return lambda *args: layer(*args, **switches)


PACK_LAYER = Contract(
    inputs=draw_layer,
    judge=Returns(by_hand, wrong=in_parts(("qweight", "qzeros"))),
    passed="Both layouts, bit for bit: eight codes in an int32, up to the sign bit. These are the "
    "tensors that vLLM reads from a GPTQ and from an AWQ checkpoint.",
    clauses={
        "form": Clause(
            "{says}",
            "The table gives the shapes of both layouts; int32 has room for eight nibbles.",
        ),
        "qweight": Clause(
            "{says} Which eight codes share an int32, and which nibble does each get?",
            "Write the first int32 as eight hexadecimal digits; the lowest "
            "nibble is the last digit.",
        ),
        "qzeros": Clause(
            '{says} They are packed along the outputs in both layouts. "gptq" stores '
            'zero - 1, "awq" the zero.',
            "Write the first int32 as eight hexadecimal digits; the lowest nibble is "
            "the last digit.",
        ),
    },
    mistakes=(
        mistake(
            'The layout "gptq" stores zero - 1, a slip of the first version that every reader '
            "now counts on.",
            "Every reader adds 1.",
            _but(minus=(0, 0)),
        ),
        mistake(
            'You store zero - 1 in both layouts. Only "gptq" does; "awq" stores the zero as it is.',
            "Look at the layout.",
            _but(minus=(1, 1)),
        ),
        mistake(
            'The layout "awq" is interleaved: nibble i holds channel AWQ_ORDER[i]. Yours holds '
            "channel i.",
            "In qweight and in qzeros.",
            _but(awq_order=IN_ORDER),
        ),
        mistake(
            "AWQ's order is used the wrong way round: channel i went into nibble AWQ_ORDER[i]. "
            "Nibble i holds channel AWQ_ORDER[i].",
            "Pick for each nibble.",
            _but(awq_order=AWQ_INVERSE),
        ),
        mistake(
            "AWQ's zeros are not interleaved. They are packed as its codes are.",
            "Both with AWQ_ORDER.",
            _but(zeros_order=IN_ORDER),
        ),
        mistake(
            "You interleave in both layouts. Only AWQ does.",
            "GPTQ's nibbles are in order.",
            _but(gptq_order=AWQ_ORDER),
        ),
        mistake(
            "The first code is in the highest nibble. It belongs into the lowest.",
            "The first one is not shifted.",
            _but(gptq_order=IN_ORDER[::-1], awq_order=AWQ_ORDER[::-1]),
        ),
        mistake(
            'The layout "gptq" packs along the inputs: eight neighbours of one output share '
            "an int32. You pack along the outputs.",
            "[in / 8, out].",
            _but(along="out"),
        ),
        mistake(
            "Large int32 are cut off. A nibble of 8 or more on top makes the number negative.",
            "Convert int64 to int32 with `.to(torch.int32)`, which keeps the low 32 bits.",
            _but(how="clamped"),
        ),
        mistake(
            "You shift in uint8. It has 8 bits, so only two of eight codes are left.",
            "`.long()` before the shift.",
            _but(how="uint8"),
        ),
    ),
)
