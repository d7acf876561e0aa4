"""An AWQ layer's tensors as those of a GPTQ layer, to the bit: exercise 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12.fields import pack_last, random_words, tensors_differ, unpack_last
from utils.checks.lab_12.reading import Tensors, stored_scales
from utils.checks.lab_12.writing import PARTS

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
AWQ_INVERSE = (0, 4, 1, 5, 2, 6, 3, 7)


def draw_awq(c: Choices) -> Given:
    """Zeros of 0 now and then, which "gptq" cannot hold; sizes that GPTQ's layout cannot."""
    groups, out = c.size(1, 5), 8 * c.size(1, 5)
    width = groups * (8 * c.size(1, 5) if not c.rarely(6) else c.size(1, 12))
    if c.rarely(6):  # often no multiple of the groups, or fewer inputs than groups
        width = 8 * c.integer(1, 3) if c.rarely(2) else c.integer(1, groups)
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    zeros = torch.randint(1, 16, (groups, out), generator=generator)
    if c.rarely(2):
        zeros[c.integer(0, groups - 1), c.integer(0, out - 1)] = 0
    return Given(
        {
            "qweight": laid_out(random_words((width, out // 8), c.integer(0, 99)), c.pick(LAYOUTS)),
            "qzeros": pack_last(zeros, 4),  # any zeros will do: they are read in AWQ's order
            "scales": laid_out(stored_scales(c, (groups, out)), c.pick(LAYOUTS)),
        }
    )


def in_order(words: Tensor, order: Sequence[int] = AWQ_ORDER) -> Tensor:
    """The numbers [rows, 8 * n] of AWQ's int32 [rows, n]: each nibble is put where it belongs."""
    nibbles = unpack_last(words, 4).tolist()
    rows = []
    for row in nibbles:
        placed = [0] * len(row)
        for place, nibble in enumerate(row):
            placed[place // 8 * 8 + order[place % 8]] = nibble
        rows.append(placed)
    return torch.tensor(rows)


def repacked(tensors: Tensors) -> tuple[Tensors, str]:
    codes, zeros = in_order(tensors["qweight"]), in_order(tensors["qzeros"])
    width, groups = len(codes), len(zeros)
    if width % 8 or width % groups:
        raise ValueError("GPTQ cannot hold this")
    form = "gptq_v2" if (zeros == 0).any() else "gptq"
    return {
        "qweight": pack_last(codes.T, 4).T.contiguous(),
        "qzeros": pack_last(zeros - int(form == "gptq"), 4),
        "scales": tensors["scales"].clone(memory_format=torch.contiguous_format),
        "g_idx": torch.tensor([i * groups // width for i in range(width)], dtype=torch.int32),
    }, form


def _wrong(expected: Any, got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        return Fault(
            clause, "", expected, got, says, words=(f'four tensors, and "{expected[1]}"', says)
        )

    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[0], dict):
        return fault("form", f"Expected a dict and a text, not a {type(got).__name__}.")
    name, says = tensors_differ(expected[0], got[0], PARTS)
    if got[1] != expected[1]:  # it shows in qzeros, too
        return fault("checkpoint_format", f"The format is {got[1]!r}; expected {expected[1]!r}.")
    return fault(name or "form", says) if says else None


def _convert(change: str = "") -> Callable[[Tensors], Any]:
    """A right answer, but for one thing."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)

    def unpack(words: Tensor, what: str) -> Tensor:
        nibbles = (words.unsqueeze(-1) >> shifts) & 15
        order = list(AWQ_ORDER if change == "inverse" else AWQ_INVERSE)
        mixed = change == "as they stand" or change == f"{what} as they stand"
        return (nibbles if mixed else nibbles[..., order]).flatten(-2)

    def pack(rows: Tensor) -> Tensor:
        order = list(AWQ_ORDER) if change == "packed as awq" else list(range(8))
        return (rows.long().unflatten(-1, (-1, 8))[..., order] << shifts.long()).sum(-1).int()

    def convert(tensors: Tensors) -> Any:
        codes, zeros = unpack(tensors["qweight"], "codes"), unpack(tensors["qzeros"], "zeros")
        if change != "any width" and (len(codes) % 8 or len(codes) % len(zeros)):
            raise ValueError("GPTQ cannot hold this")
        form = "gptq_v2" if (zeros == 0).any() else "gptq"
        if change in ("gptq", "gptq_v2"):
            form = change
        stored = zeros - int(form == "gptq" and change != "zero itself")
        groups = torch.arange(len(codes), dtype=torch.int32) // (len(codes) // len(zeros))
        if change == "cycling":
            groups = (torch.arange(len(codes)) % len(zeros)).int()
        return {
            "qweight": pack(codes.T).T.contiguous(),
            "qzeros": pack(stored & 15),
            "scales": tensors["scales"].contiguous().clone(),
            "g_idx": groups,
        }, form

    return convert


AWQ_TO_GPTQ = Contract(
    inputs=draw_awq,
    judge=Returns(repacked, own=True, wrong=_wrong),
    passed="Right: not one code was rounded again. The weights are the same to the bit, in the "
    "other layout.",
    clauses={
        "form": Clause("{says}", "`return {...}, checkpoint_format`"),
        "checkpoint_format": Clause(
            '{says} "gptq" stores zero - 1, so it cannot hold a zero of 0.',
            "Unpack the zeros before you choose.",
        ),
        "qweight": Clause(
            "{says}", "Unpack one AWQ int32 by hand. Nibble i is that of output AWQ_ORDER[i]."
        ),
        "qzeros": Clause(
            "{says}", "AWQ interleaves them as it does the codes, and stores the zero as it is."
        ),
        "scales": Clause("{says}", "They stay as they are: same numbers, same dtype."),
        "g_idx": Clause("{says}", "AWQ's groups are neighbours: 0, 0, ..., 1, 1, ..."),
        "refuses": Clause(
            "GPTQ's layout cannot hold this layer: raise a ValueError.",
            "The inputs must be a multiple of 8, and groups equally large.",
        ),
    },
    mistakes=(
        mistake(
            "The nibbles are taken in the order in which they stand. AWQ interleaves them.",
            "In codes and zeros: nibble i is that of output AWQ_ORDER[i].",
            _convert("as they stand"),
        ),
        mistake(
            "AWQ's order is used the wrong way round: nibble i is that of output AWQ_ORDER[i], "
            "so output j is in the nibble where AWQ_ORDER has j.",
            "`torch.tensor(AWQ_ORDER).argsort()`.",
            _convert("inverse"),
        ),
        mistake(
            "The zeros are interleaved, too, and yours are taken as they stand.",
            "Unpack them as you unpack the codes.",
            _convert("zeros as they stand"),
        ),
        mistake(
            "Your GPTQ layer is interleaved as AWQ's are. GPTQ's numbers are in order.",
            "Pack in order.",
            _convert("packed as awq"),
        ),
        mistake(
            'Always "gptq": a zero of 0 would be stored as -1, which four bits cannot hold.',
            'Then "gptq_v2".',
            _convert("gptq"),
        ),
        mistake(
            'Always "gptq_v2". More readers know "gptq", and it can hold this layer.',
            'Only a zero of 0 asks for "gptq_v2".',
            _convert("gptq_v2"),
        ),
        mistake(
            'You name the format "gptq", and store the zeros as they are.',
            '"gptq" stores zero - 1.',
            _convert("zero itself"),
        ),
        mistake(
            "Neighbours belong to one group; yours take turns.",
            "`arange(in) // group_size`.",
            _convert("cycling"),
        ),
    ),
)
