"""A checkpoint: its size, and eight codes in an int32. Exercises 5 and 12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.differences import difference
from utils.checks.lab_09.parts import BITS, Parts, form, placed, seeded, sizes

# Exercise 5: what is stored

Shapes = Sequence[tuple[int, int]]
# (hidden, intermediate, KV size, layers, vocabulary, embeddings)
MODELS = {
    "SmolLM2-135M": (576, 1536, 192, 30, 49152, 1),
    "Mistral-7B": (4096, 14336, 1024, 32, 32768, 2),
}


def shapes_of(model: str) -> tuple[list[tuple[int, int]], int]:
    """The linear layers of a model, and the number of all its other weights."""
    hidden, inner, kv, layers, vocabulary, embeddings = MODELS[model]
    square, up = (hidden, hidden), (inner, hidden)
    layer = [square, (kv, hidden), (kv, hidden), square, up, up, (hidden, inner)]
    return layer * layers, vocabulary * hidden * embeddings + (2 * layers + 1) * hidden


def draw_model(c: Choices) -> Given:
    """No layer, one, many, two of the same shape; sizes of large models."""
    group_size = c.size(1, 300)

    def shape() -> tuple[int, int]:
        rows = c.size(1, 20_000) if c.rarely(3) else 8 * c.size(1, 2_000)
        return rows, group_size * c.size(1, 200)

    shapes = c.some(shape, 0, 5)
    if shapes and c.rarely(3):
        shapes += shapes[:1] * c.pick((1, 300))
    return Given(shapes, c.size(0, 10**9), c.pick(BITS), group_size)


def tensor_bytes(linear_shapes: Shapes, num_other_params: int, bits: int, group_size: int) -> float:
    """Tensor by tensor: the codes, the scales and the zeros of each layer; then the rest."""
    total = Fraction(2 * num_other_params)
    for out, width in linear_shapes:
        groups = Fraction(out * width, group_size)
        total += Fraction(out * width * bits, 8) + 2 * groups + groups * bits / 8
    return float(total)


def wrong_bytes(expected: float, got: Any, given: Given) -> Fault | None:
    """Where a tensor ends inside a byte, it may count the whole byte, or the part; not less."""
    shapes, _, bits, group_size = given.args
    counts = [n for out, width in shapes for n in (out * width, out * width // group_size)]
    inside = sum(n * bits % 8 != 0 for n in counts)
    says = difference(expected, got, rtol=1e-12, atol=inside + 1e-3)
    if not says and got < expected - 1e-3 - 1e-12 * expected:
        says = "The part of a byte in which a tensor ends is lost."
    return Fault("returns", "", expected, got, says) if says else None


def praise_bytes(answer: Callable[..., float]) -> str:
    words = []
    for model in MODELS:
        shapes, other = shapes_of(model)
        before = 2 * (sum(out * width for out, width in shapes) + other)
        after = answer(shapes, other, 4, 64)
        words.append(f"{model}: {before / 1e9:.2f} GB in 16 bits, {after / 1e9:.2f} GB in 4 bits")
    return (
        f"Right to the byte. With groups of 64, {'; '.join(words)}. The small model shrinks less, "
        "because it keeps most of its bytes in the embedding."
    )


# Exercise 12: eight codes in an int32

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def draw_layer(c: Choices) -> Given:
    """Codes below the sign bit and on it; zeros of 0 where they are allowed."""
    out, width, groups = sizes(c, 6, 12, 9)
    layout, top, generator = c.pick(("gptq", "awq")), c.pick((16, 16, 8)), seeded(c)
    least = 1 if layout == "gptq" else 0
    q = torch.randint(0, top, (8 * out, 8 * width), generator=generator)
    zeros = torch.randint(least, top, (8 * out, groups), generator=generator)
    return Given(*placed(c, q.to(torch.uint8), zeros.to(torch.uint8)), layout)


def packed(rows: Tensor, layout: str) -> Tensor:
    """Each int32 from its 32 bits, highest first, as two's complement."""
    order = AWQ_ORDER if layout == "awq" else range(8)

    def word(eight: list[int]) -> int:
        bits = "".join(f"{eight[source]:04b}" for source in reversed(order))
        return int(bits, 2) - (2**32 if bits[0] == "1" else 0)

    words = [[word(row[i : i + 8]) for i in range(0, len(row), 8)] for row in rows.tolist()]
    return torch.tensor(words, dtype=torch.int32)


def by_hand(q: Tensor, zeros: Tensor, layout: str) -> Parts:
    if layout == "gptq":  # [out, in / 8] -> [in / 8, out]
        return packed(q, layout).T.contiguous(), packed(zeros.T.int() - 1, layout)
    return packed(q.T, layout), packed(zeros.T, layout)


def wrong_words(expected: Parts, got: Any, given: Given) -> Fault | None:
    """The first wrong int32 in hexadecimal digits, with the eight numbers that belong in it."""
    names = ("qweight", "qzeros")
    if fault := form(names, expected, got):
        return fault
    q, zeros, layout = given.args
    for name, right, mine in zip(names, expected, got, strict=True):
        if (off := mine != right).any():
            row, column = off.nonzero()[0].tolist()
            inputs = name == "qweight" and layout == "gptq"
            eight = slice(8 * (row if inputs else column), 8 * (row if inputs else column) + 8)
            source = zeros if name == "qzeros" else q
            at = f"{column}, {eight.start}:{eight.stop}"
            at = at if inputs else f"{eight.start}:{eight.stop}, {row}"
            numbers = (source[column, eight] if inputs else source[eight, row]).tolist()
            says = f"`{name}[{row}, {column}]` is made of "
            says += f"`{'zeros' if name == 'qzeros' else 'q'}[{at}]` = {numbers}."
            words = [f"0x{int(t[row, column]) % 2**32:08x}" for t in (right, mine)]
            return Fault(name, "", right, mine, says, words=(words[0], words[1]))
    return None
