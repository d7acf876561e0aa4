"""What lab 10 says of counting: exercises 1 (trained numbers) and 2 (bytes of training)."""

from __future__ import annotations

from collections.abc import Callable

from utils.checks.kit.runner import Bug, NumberCase, compare_numbers

Linears = list[tuple[int, int]]

# Exercise 1


def _trained(linears: Linears, r: int) -> int:
    """By counting the entries of the two matrices."""
    return sum(r * i + o * r for i, o in linears)


_COUNT_CASES = tuple(
    NumberCase(f"linears {linears}, r = {r}", (linears, r), _trained(linears, r))
    for linears, r in (
        ([(10, 6)], 1),
        ([(10, 6)], 3),
        ([(576, 576), (576, 192)], 8),
        ([(576, 1536), (1536, 576), (576, 192)], 16),
        ([], 4),
    )
)
_COUNT_LOOK = "A has r x in_features entries, B has out_features x r."
_COUNT_BUGS = (
    Bug("You count B A, which is as large as the weight itself. Only A and B are trained, and "
        "stored.", _COUNT_LOOK, lambda linears, r: sum(i * o for i, o in linears)),
    Bug("You count B A once for each rank. Only A and B are trained.", _COUNT_LOOK,
        lambda linears, r: sum(i * o * r for i, o in linears)),
    Bug("Only A is counted. B is trained, too.", _COUNT_LOOK,
        lambda linears, r: sum(r * i for i, _ in linears)),
    Bug("Only B is counted. A is trained, too.", _COUNT_LOOK,
        lambda linears, r: sum(r * o for _, o in linears)),
    Bug("The frozen weights are counted, too. They are not trained.", _COUNT_LOOK,
        lambda linears, r: sum(i * o + r * (i + o) for i, o in linears)),
    Bug("r is missing: you count A and B as if the rank were 1.", _COUNT_LOOK,
        lambda linears, r: sum(i + o for i, o in linears)),
    Bug("Only one layer is counted. Each layer has its own A and B.", "Sum over `linears`.",
        lambda linears, r: r * sum(linears[0]) if linears else 0),
    Bug("Only one layer is counted. Each layer has its own A and B.", "Sum over `linears`.",
        lambda linears, r: r * sum(linears[-1]) if linears else 0),
    Bug("You count twice as much: both matrices of width in_features + out_features.", _COUNT_LOOK,
        lambda linears, r: sum(2 * r * (i + o) for i, o in linears)),
    Bug("You count an r x r matrix between A and B. There is none.", _COUNT_LOOK,
        lambda linears, r: sum(r * (i + o) + r * r for i, o in linears)),
)  # fmt: skip


def judge_lora_parameters(function: Callable[..., int]) -> str:
    """Check `lora_parameters(linears, r)`."""
    compare_numbers(function, _COUNT_CASES, _COUNT_BUGS)
    return "r times the width of both sides, for each layer. It grows with the sides, not the area."


# Exercise 2

_BYTES_CASES = tuple(
    NumberCase(
        f"num_frozen = {frozen:,}, bits_per_frozen = {bits}, num_trained = {trained:,}",
        (frozen, bits, trained),
        sum(frozen * bits / 8 for _ in range(1)) + trained * (2 + 2 + 4 + 4 + 4),
    )
    for frozen, bits, trained in (
        (0, 16, 1),
        (1000, 16, 0),
        (1000, 4, 100),
        (1000, 16, 100),
        (7_000_000_000, 4.127, 42_000_000),
    )
)
_BYTES_LOOK = "Frozen: bits / 8. Trained: 2 + 2 + 4 + 8 = 16 bytes."
_BYTES_BUGS = (
    Bug("The frozen weights are counted in bits, not in bytes.", "Eight bits are a byte.",
        lambda f, b, t: f * b + 16 * t),
    Bug("Frozen weights need no gradient and no optimizer state. You give them the full 16 bytes.",
        _BYTES_LOOK, lambda f, b, t: 16 * (f + t)),
    Bug("Frozen weights need no gradient and no optimizer state, only their own bits.",
        _BYTES_LOOK, lambda f, b, t: f * (b / 8 + 14) + 16 * t),
    Bug("The frozen weights are missing. They are not trained, but they must be there to compute.",
        _BYTES_LOOK, lambda f, b, t: 16 * t),
    Bug("Each trained number lacks 4 bytes: those of its master copy in float32, or those of one "
        "of Adam's two means.", _BYTES_LOOK,
        lambda f, b, t: f * b / 8 + 12 * t),
    Bug("Frozen weights get no gradient. You give them 2 bytes for one.", _BYTES_LOOK,
        lambda f, b, t: f * (b / 8 + 2) + 16 * t),
    Bug("The two numbers are swapped: the frozen weights get 16 bytes each.", _BYTES_LOOK,
        lambda f, b, t: t * b / 8 + 16 * f),
    Bug("The trained numbers are counted in bits, not in bytes.", "Eight bits are a byte.",
        lambda f, b, t: f * b / 8 + 128 * t),
    Bug("The bits are cut to a whole number. 4.127 bits are more than 4.",
        "No `int(...)` and no `//`.", lambda f, b, t: f * int(b) / 8 + 16 * t),
    Bug("The gradients are missing.", _BYTES_LOOK, lambda f, b, t: f * b / 8 + 14 * t),
    Bug("Adam's states are missing.", _BYTES_LOOK, lambda f, b, t: f * b / 8 + 8 * t),
    Bug("Trained numbers are counted as if they were stored in the frozen weights' bits.",
        "A and B are in 16 bit, whatever the frozen weights are in.",
        lambda f, b, t: (f + t) * b / 8 + 14 * t),
    Bug("The trained numbers need more than their own 16 bits.", _BYTES_LOOK,
        lambda f, b, t: f * b / 8 + 2 * t),
    Bug("Everything is counted in float32: 4 bytes for weight and gradient, too.", _BYTES_LOOK,
        lambda f, b, t: f * b / 8 + 20 * t),
)  # fmt: skip


def judge_training_bytes(function: Callable[..., float]) -> str:
    """Check `training_bytes(num_frozen, bits_per_frozen, num_trained)`."""
    compare_numbers(function, _BYTES_CASES, _BYTES_BUGS)
    return (
        "A trained number costs 16 bytes, a frozen one its own bits. So the fewer are trained, "
        "and the fewer bits the others have, the better. These are LoRA and QLoRA."
    )
