"""What lab 09 says of the size of a checkpoint: exercise 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from utils.checks.kit.runner import Bug, NumberCase, compare_numbers
from utils.quant import QuantizedWeight, pack_awq
from utils.quant.rtn import group_index

Shapes = Sequence[tuple[int, int]]

# (hidden, intermediate, KV size, layers, vocabulary, embeddings)
_MODELS = {
    "SmolLM2-135M": (576, 1536, 192, 30, 49152, 1),
    "Mistral-7B": (4096, 14336, 1024, 32, 32768, 2),
}


def shapes_of(model: str) -> tuple[list[tuple[int, int]], int]:
    """The linear layers of a model, and the number of all its other weights."""
    hidden, inner, kv, layers, vocabulary, embeddings = _MODELS[model]
    layer = [(hidden, hidden), (kv, hidden), (kv, hidden), (hidden, hidden),
             (inner, hidden), (inner, hidden), (hidden, inner)]  # fmt: skip
    norms = (2 * layers + 1) * hidden
    return layer * layers, vocabulary * hidden * embeddings + norms


def _packed_bytes(shapes: Shapes, num_other_params: int, bits: int, group_size: int) -> int:
    """Pack layers of these shapes for real, and weigh the tensors (4 bits only)."""
    total = 2 * num_other_params
    for out, width in shapes:
        q = torch.zeros(out, width, dtype=torch.uint8)
        scales = torch.ones(out, width // group_size)
        zeros = torch.zeros(scales.shape, dtype=torch.uint8)
        layer = QuantizedWeight(q, scales, zeros, group_index(q, group_size))
        total += sum(t.numel() * t.element_size() for t in pack_awq(layer).values())
    return total


def _bytes(
    shapes: Shapes, other: int, bits: int, group: int, *, code_bits: float = 0, scale: float = 2,
    zero: float | None = None, other_bytes: float = 2, along: int = 1,
) -> float:  # fmt: skip
    """The size with one switch per known mistake. It is never the oracle of 4-bit cases."""
    total = float(other_bytes * other)
    for shape in shapes:
        weights = shape[0] * shape[1]
        groups = shape[1 - along] * shape[along] / group
        if along == 2:
            groups = 1
        total += weights * (code_bits or bits) / 8
        total += groups * (scale + (bits / 8 if zero is None else zero))
    return total


def _per_tensor(shapes: Shapes, other: int, bits: int, group: int) -> float:
    weights = sum(out * width for out, width in shapes) * bits / 8
    return weights + len(shapes) * (2 + bits / 8) + 2 * other


def _per_column(shapes: Shapes, other: int, bits: int, group: int) -> float:
    """Groups counted along the input only: one row's."""
    weights = sum(out * width for out, width in shapes) * bits / 8
    return weights + sum(width / group for _, width in shapes) * (2 + bits / 8) + 2 * other


def _case(shapes: Shapes, other: int, bits: int, group: int, given: str = "") -> NumberCase:
    if bits == 4 and sum(out * width for out, width in shapes) < 10**6:
        expected = float(_packed_bytes(shapes, other, bits, group))
    else:  # too large to build, or no packed layout: the formula that the packed cases confirm
        expected = _bytes(shapes, other, bits, group)
    assert expected == int(expected)
    given = given or f"linear_shapes {list(shapes)}"
    return NumberCase(
        f"{given}, num_other_params={other}, bits={bits}, group_size={group}",
        (list(shapes), other, bits, group), int(expected),
    )  # fmt: skip


_CASES = (
    _case([(8, 32)], 0, 4, 32),
    _case([(8, 64)], 10, 4, 32),
    _case([(16, 64), (24, 128)], 100, 4, 64),
    _case([(16, 64)], 0, 8, 32),
    _case([(16, 128)], 7, 2, 64),
    *(_case(*shapes_of(model), 4, group, f"the linear layers of {model}")
      for model in _MODELS for group in (32, 64)),
)  # fmt: skip
_LOOK = (
    "Per weight: `bits` bits. Per group of each output: 16 bits for the scale, `bits` for the "
    "zero. Every other parameter: 16 bits. 8 bits are a byte."
)
_MISTAKES = (
    Bug("The scales are left out. Each group of each output has one, in 16 bits.", _LOOK,
        lambda *a: _bytes(*a, scale=0)),
    Bug("The zeros are left out. Each group of each output has one, in `bits` bits.", _LOOK,
        lambda *a: _bytes(*a, zero=0)),
    Bug("Scales and zeros are left out. They are what makes small groups dear.", _LOOK,
        lambda *a: _bytes(*a, scale=0, zero=0)),
    Bug("The scales count 4 bytes each. Checkpoints store them in 16 bits.", _LOOK,
        lambda *a: _bytes(*a, scale=4)),
    Bug("The scales count as many bits as a code. They have 16.", _LOOK,
        lambda s, o, b, g: _bytes(s, o, b, g, scale=b / 8)),
    Bug("The zeros count 16 bits each. They are codes, and have `bits` bits.", _LOOK,
        lambda *a: _bytes(*a, zero=2)),
    Bug("The zeros count one byte each. They are codes, and have `bits` bits.", _LOOK,
        lambda *a: _bytes(*a, zero=1)),
    Bug("The other parameters are left out: embeddings and norms stay in 16 bits.", _LOOK,
        lambda *a: _bytes(*a, other_bytes=0)),
    Bug("The other parameters count 4 bytes each. They stay in 16 bits.", _LOOK,
        lambda *a: _bytes(*a, other_bytes=4)),
    Bug("The other parameters are quantized, too. Embeddings and norms stay in 16 bits.", _LOOK,
        lambda s, o, b, g: _bytes(s, o, b, g, other_bytes=b / 8)),
    Bug("This is the size in bits. The answer is in bytes.", "Divide by 8.",
        lambda *a: 8 * _bytes(*a)),
    Bug("`bits` is ignored: you always count 4.", _LOOK,
        lambda s, o, b, g: _bytes(s, o, 4, g)),
    Bug("Each code counts a whole byte. Two 4-bit codes share one.", _LOOK,
        lambda *a: _bytes(*a, code_bits=8)),
    Bug("There is one scale per layer. Each group of each output has one.", _LOOK, _per_tensor),
    Bug("You count the groups of one output only. Every output has its own scales.", _LOOK,
        _per_column),
)  # fmt: skip


def judge_checkpoint_bytes(function: Callable[..., float]) -> str:
    """Check `checkpoint_bytes(linear_shapes, num_other_params, bits, group_size)`."""
    compare_numbers(function, _CASES, _MISTAKES)
    words = []
    for model in _MODELS:
        shapes, other = shapes_of(model)
        before = 2 * (sum(out * width for out, width in shapes) + other)
        after = function(shapes, other, 4, 64)
        words.append(f"{model}: {before / 1e9:.2f} GB in 16 bits, {after / 1e9:.2f} GB in 4")
    return (
        "The same bytes as layers that were packed for real. With groups of 64, "
        f"{'; '.join(words)}. The small model keeps most of its bytes in the embedding."
    )
