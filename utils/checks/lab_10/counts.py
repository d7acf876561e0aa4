"""What lab 10 says of counting: exercises 1 (trained numbers) and 2 (bytes of training)."""

from __future__ import annotations

from fractions import Fraction

import torch

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake

# Exercise 1


def draw_linears(c: Choices) -> Given:
    """None, one or many layers, of any size; some are like others."""

    def linear() -> tuple[int, int]:
        return c.size(1, 100_000), c.size(1, 100_000)

    linears = c.some(linear, 0, 12)
    if linears and c.rarely(3):
        linears = [*linears, *linears]
    return Given(linears, c.size(1, 4096))


def trained_numbers(linears: list[tuple[int, int]], r: int) -> int:
    """The entries of the matrices, which take no memory on this device."""
    shapes = [shape for i, o in linears for shape in ((r, i), (o, r))]
    return sum(torch.empty(shape, device="meta").numel() for shape in shapes)


_COUNT = "A is [r, in_features], B is [out_features, r]. How many numbers is that?"
LORA_PARAMETERS = Contract(
    inputs=draw_linears,
    judge=Returns(trained_numbers),
    passed="r times the width of both sides, for each layer. It grows with the sides, not the "
    "area.",
    clauses={"returns": Clause("This is not how many numbers all A and B have. {says}", _COUNT)},
    mistakes=(
        mistake(
            "You count B A, which is as large as the weight itself. Only A and B are trained, "
            "and stored.",
            _COUNT,
            lambda linears, r: sum(i * o for i, o in linears),
        ),
        mistake(
            "You count B A once for each rank. Only A and B are trained.",
            _COUNT,
            lambda linears, r: sum(i * o * r for i, o in linears),
        ),
        mistake(
            "Only A is counted. B is trained, too.",
            _COUNT,
            lambda linears, r: sum(r * i for i, _ in linears),
        ),
        mistake(
            "Only B is counted. A is trained, too.",
            _COUNT,
            lambda linears, r: sum(r * o for _, o in linears),
        ),
        mistake(
            "The frozen weights are counted, too. They are not trained.",
            _COUNT,
            lambda linears, r: sum(i * o + r * (i + o) for i, o in linears),
        ),
        mistake(
            "r is missing: you count A and B as if the rank were 1.",
            _COUNT,
            lambda linears, r: sum(i + o for i, o in linears),
        ),
        mistake(
            "Only one layer is counted. Each layer has its own A and B.",
            "Sum over `linears`.",
            lambda linears, r: r * sum(linears[0]) if linears else 0,
            lambda linears, r: r * sum(linears[-1]) if linears else 0,
        ),
        mistake(
            "Layers of the same size are counted once. Each layer has its own A and B.",
            "Go through the list as it is.",
            lambda linears, r: r * sum(i + o for i, o in set(linears)),
        ),
    ),
)

# Exercise 2


def draw_training(c: Choices) -> Given:
    bits = c.pick((16, 8, 4, 4.127, 32, 4.5, 3, 1.58))
    return Given(c.size(0, 10**12), bits, c.size(0, 10**10))


def bytes_of_all(num_frozen: int, bits_per_frozen: float, num_trained: int) -> float:
    """In exact fractions, item by item."""
    total = Fraction(num_frozen) * Fraction(bits_per_frozen) / 8
    for bits in (16, 16, 32, 32, 32):  # number, gradient, master copy, Adam's two means
        total += Fraction(num_trained) * bits / 8
    return float(total)


_BYTES = "Add up, for one trained number, what the text lists. A byte has eight bits."
TRAINING_BYTES = Contract(
    inputs=draw_training,
    judge=Returns(bytes_of_all, rtol=1e-9),
    passed="A trained number costs 16 bytes, a frozen one its own bits. So the fewer are trained, "
    "and the fewer bits the others have, the better. These are LoRA and QLoRA.",
    clauses={"returns": Clause("These are not the bytes that training holds. {says}", _BYTES)},
    mistakes=(
        mistake(
            "The frozen weights are counted in bits, not in bytes.",
            "Eight bits are a byte.",
            lambda f, b, t: f * b + 16 * t,
        ),
        mistake(
            "Frozen weights need no gradient and no optimizer state. You give them the full "
            "16 bytes.",
            _BYTES,
            lambda f, b, t: 16 * (f + t),
        ),
        mistake(
            "Frozen weights need no gradient and no optimizer state, only their own bits.",
            _BYTES,
            lambda f, b, t: f * (b / 8 + 14) + 16 * t,
            lambda f, b, t: f * (b / 8 + 2) + 16 * t,
        ),
        mistake(
            "The frozen weights are missing. They are not trained, but they must be there to "
            "compute.",
            _BYTES,
            lambda f, b, t: 16 * t,
        ),
        mistake(
            "Each trained number lacks 4 bytes: those of its master copy in float32, or those "
            "of one of Adam's two means.",
            _BYTES,
            lambda f, b, t: f * b / 8 + 12 * t,
        ),
        mistake("The gradients are missing.", _BYTES, lambda f, b, t: f * b / 8 + 14 * t),
        mistake("Adam's states are missing.", _BYTES, lambda f, b, t: f * b / 8 + 8 * t),
        mistake(
            "The two numbers are swapped: the frozen weights get 16 bytes each.",
            _BYTES,
            lambda f, b, t: t * b / 8 + 16 * f,
        ),
        mistake(
            "The bits are cut to a whole number. 4.127 bits are more than 4.",
            "No `int(...)` and no `//`.",
            lambda f, b, t: f * int(b) / 8 + 16 * t,
        ),
        mistake(
            "The bytes are rounded to a whole number. Half a byte counts.",
            "`/`, not `//`; no `int(...)`, `round` or `ceil`.",
            lambda f, b, t: int(f * b / 8) + 16 * t,
            lambda f, b, t: f * b // 8 + 16 * t,
        ),
    ),
)
