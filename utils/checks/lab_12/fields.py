"""Fields of 2, 4 or 8 bits in an int32: exercise 1; and what all exercises of lab 12 pack with.

The oracles write every int32 as a text of 32 bits. The layouts are those that gptqmodel and vLLM
read (tests/quant, tests/checks/test_lab_12.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out

BITS = (4, 4, 8, 2)


def random_words(shape: tuple[int, ...], seed: int) -> Tensor:
    """Any int32 at all: half of them are negative."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


def word_of(fields: list[int], bits: int) -> int:
    """One int32 of its fields, the first one lowest: as a text of bits, in two's complement."""
    text = "".join(f"{field:0{bits}b}" for field in reversed(fields))
    return int(text, 2) - (2**32 if text[0] == "1" else 0)


def fields_of(word: int, bits: int) -> list[int]:
    """The fields of one int32, lowest first: cut from its text of 32 bits."""
    text = f"{word % 2**32:032b}"
    return [int(text[end - bits : end], 2) for end in range(32, 0, -bits)]


def pack_last(values: Tensor, bits: int) -> Tensor:
    """Pack [rows, n] along the last dimension; right, and slow."""
    per = 32 // bits
    rows = [
        [word_of(row[i : i + per], bits) for i in range(0, len(row), per)]
        for row in values.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int32).view(len(values), values.shape[1] // per)


def unpack_last(words: Tensor, bits: int) -> Tensor:
    """Undo `pack_last`: int64 [rows, n * 32 / bits]; right, and slow."""
    rows = [[field for word in row for field in fields_of(word, bits)] for row in words.tolist()]
    return torch.tensor(rows, dtype=torch.int64).view(len(words), words.shape[1] * 32 // bits)


# Exercise 1


def draw_words(c: Choices) -> Given:
    """Of one dimension to three; any may be 0; codes on the sign bit; what must be refused."""
    first = [0 if c.rarely(8) else c.size(1, 3) for _ in range(c.pick((1, 0, 2)))]
    shape = (*first, c.size(0, 40))
    words = random_words(shape, c.integer(0, 9999))
    if c.rarely(4):
        words = words % 2**31 if c.rarely(2) else words * 0 - 1
        words = words.to(torch.int32)
    if c.rarely(12):
        words = words.to(c.pick((torch.int64, torch.uint8, torch.float32)))
    bits = c.pick((3, 5, 6, 7, 16, 32, 0, 1, -4)) if c.rarely(5) else c.pick(BITS)
    return Given(laid_out(words, c.pick(LAYOUTS)), bits)


def cut_out(packed: Tensor, bits: int) -> Tensor:
    """Each word by itself."""
    if bits not in (2, 4, 8) or packed.dtype != torch.int32:
        raise ValueError("not a packed tensor of 2, 4 or 8 bits")
    flat = [field for word in packed.flatten().tolist() for field in fields_of(word, bits)]
    shape = (*packed.shape[:-1], packed.shape[-1] * 32 // bits)
    return torch.tensor(flat, dtype=torch.int32).view(shape)


def _refusing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def answer(packed: Tensor, bits: int) -> Tensor:
        if bits not in (2, 4, 8) or packed.dtype != torch.int32:
            raise ValueError("refused")
        return function(packed, bits)

    return answer


def _shifted(packed: Tensor, bits: int, reverse: bool = False) -> Tensor:
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return packed.unsqueeze(-1) >> (shifts.flip(0) if reverse else shifts)


def _masked(words: Tensor, bits: int) -> Tensor:
    return (words & (2**bits - 1)).flatten(-2)


UNPACK = Contract(
    inputs=draw_words,
    judge=Returns(cut_out),
    passed=lambda answer: (
        "Right, up to the sign bit. The integer of the text, -1947890795, holds "
        f"{answer(torch.tensor([-1947890795], dtype=torch.int32), 4).tolist()}."
    ),
    clauses={
        "returns": Clause(
            "The numbers are not those in the integers' bits. {says}",
            "Write one int32 as hexadecimal digits, and read from the right.",
        ),
        "refuses": Clause(
            "Other than 2, 4 or 8 bits in an int32 are refused with a ValueError.",
            "Look at `bits` and at `packed.dtype` first.",
        ),
    },
    mistakes=(
        mistake(
            "The highest number of an int32 comes out negative: a shift to the right copies "
            "the sign bit.",
            "Shift first, then keep the lowest bits: `& (2**bits - 1)`.",
            _refusing(lambda p, b: _shifted(p, b).flatten(-2)),
            _refusing(lambda p, b: torch.fmod(_shifted(p, b), 2**b).flatten(-2)),
        ),
        mistake(
            "A negative int32 loses its sign before it is cut up: all its bits change.",
            "The bits are those of two's complement; `>>` and `&` work on them as they are.",
            _refusing(lambda p, b: _masked(_shifted(p.abs(), b), b)),
        ),
        mistake(
            "The first number is taken from the highest bits. It is in the lowest.",
            "The first one needs no shift.",
            _refusing(lambda p, b: _masked(_shifted(p, b, reverse=True), b)),
        ),
        mistake(
            "All first numbers come before all second ones. Those of one int32 belong side by "
            "side.",
            "[..., n] -> [..., n, 32 / bits] -> `.flatten(-2)`.",
            _refusing(lambda p, b: torch.cat([(p >> s) & (2**b - 1) for s in range(0, 32, b)], -1)),
        ),
        mistake(
            "There are always eight numbers in an int32, in your code. There are 32 / bits.",
            "`range(0, 32, bits)`.",
            _refusing(lambda p, b: _masked(_shifted(p, 4), 4)),
        ),
        mistake(
            "The numbers are right, and their dtype is not int32.",
            "`.to(torch.int32)`.",
            *(
                _refusing(lambda p, b, t=t: _masked(_shifted(p, b), b).to(t))
                for t in (torch.uint8, torch.int64)
            ),
        ),
    ),
)


def tensors_differ(expected: Any, got: Any, names: tuple[str, ...]) -> tuple[str, str]:
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
            return name, (
                f"`{name}` has the shape {tuple(mine.shape)}; expected {tuple(right.shape)}."
            )
        if mine.dtype != right.dtype:
            return name, f"`{name}` is {mine.dtype}; expected {right.dtype}."
        if not torch.equal(mine, right):
            place = (mine != right).nonzero()[0].tolist()
            return name, f"`{name}` is wrong, first at {place}."
        if not mine.is_contiguous():
            return name, f"`{name}` is not contiguous, and safetensors does not store it."
    return "", ""
