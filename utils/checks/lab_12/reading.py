"""A GPTQ layer's tensors as the weight they stand for: exercise 2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_12.fields import BITS, pack_last, random_words, unpack_last

FORMATS = ("gptq", "gptq_v2")
Tensors = dict[str, Tensor]


def random_groups(c: Choices, width: int, num_groups: int) -> Tensor:
    """`g_idx`: neighbours mostly, mixed as with act-order, or any group at all."""
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    kind = c.pick(("neighbours", "mixed", "any"))
    g_idx = torch.arange(width) * num_groups // width
    if kind == "mixed":
        g_idx = g_idx[torch.randperm(width, generator=generator)]
    if kind == "any":
        g_idx = torch.randint(0, num_groups, (width,), generator=generator)
    return g_idx.to(torch.int32)


def random_scales(c: Choices, shape: tuple[int, int]) -> Tensor:
    """Above 0, and exact in float16."""
    generator = torch.Generator().manual_seed(c.integer(0, 9999))
    scales = torch.rand(shape, generator=generator) + 0.5
    return (scales * c.pick((1.0, 0.01, 1e-4, 3000.0))).half()


def stored_scales(c: Choices, shape: tuple[int, int]) -> Tensor:
    """float16, or bfloat16 that is beyond float16 on either side."""
    scales = random_scales(c, shape)
    return scales.bfloat16() * c.pick((1.0, 2.0**-20, 2.0**10)) if c.rarely(2) else scales


def draw_layer(c: Choices) -> Given:
    bits, form = c.pick(BITS), c.pick(FORMATS)
    per = 32 // bits
    width, out, groups = per * c.size(1, 9), per * c.size(1, 5), c.size(1, 6)
    seed = c.integer(0, 9999)
    top = 2**bits - (form == "gptq")  # no zero of "gptq" is stored as 2^bits - 1
    generator = torch.Generator().manual_seed(seed)
    zeros = torch.randint(0, top, (groups, out), generator=generator)
    tensors = {
        "qweight": laid_out(random_words((width // per, out), seed), c.pick(LAYOUTS)),
        "qzeros": pack_last(zeros, bits),
        "scales": laid_out(stored_scales(c, (groups, out)), c.pick(LAYOUTS)),
        "g_idx": random_groups(c, width, groups),
    }
    if c.rarely(5):
        tensors["bias"] = torch.ones(out)
    if c.rarely(12):
        form = c.pick(("marlin", "GPTQ", ""))
    return Given(tensors, bits, form)


def weight_by_weight(tensors: Tensors, bits: int, checkpoint_format: str) -> Tensor:
    """Each weight by itself, in Python's numbers."""
    if checkpoint_format not in FORMATS:
        raise ValueError("unknown format")
    codes = unpack_last(tensors["qweight"].T, bits).tolist()  # [out][in]
    zeros = unpack_last(tensors["qzeros"], bits).tolist()  # [groups][out]
    scales, groups = tensors["scales"].tolist(), tensors["g_idx"].tolist()
    plus = 1 if checkpoint_format == "gptq" else 0
    weight = [
        [(code - zeros[g][o] - plus) * scales[g][o] for code, g in zip(row, groups, strict=True)]
        for o, row in enumerate(codes)
    ]
    return torch.tensor(weight, dtype=torch.float32)


def _read(change: str = "") -> Callable[..., Tensor]:
    """A right answer, but for one thing."""

    def fields(words: Tensor, bits: int) -> Tensor:
        nibbles = words.unsqueeze(-1) >> torch.arange(0, 32, bits, dtype=torch.int32)
        return (nibbles & (2**bits - 1)).flatten(-2)

    def read(tensors: Tensors, bits: int, checkpoint_format: str) -> Tensor:
        if checkpoint_format not in FORMATS:
            raise ValueError("unknown format")
        if change == "rows in order":  # [in / per, out, per] is flattened the wrong way
            codes = fields(tensors["qweight"], bits).reshape(-1, tensors["scales"].shape[1])
        else:
            codes = fields(tensors["qweight"].T, bits).T  # [in, out]
        zeros, scales = fields(tensors["qzeros"], bits), tensors["scales"].float()
        g = tensors["g_idx"].long()
        if change == "neighbours":
            g = torch.arange(len(g)) * len(scales) // len(g)
        v1 = checkpoint_format == "gptq"
        zeros = zeros + {"as stored": 0, "always": 1, "minus": -1 if v1 else 0}.get(change, int(v1))
        if change == "uint8":
            return ((codes.byte() - zeros.byte()[g]).float() * scales[g]).T
        if change == "half":
            return ((codes - zeros[g]).to(tensors["scales"]) * tensors["scales"][g]).T
        if change == "zero after":
            return (codes * scales[g] - zeros[g]).T
        weight = (codes - zeros[g]) * scales[g]
        return weight if change == "as stored in the file" else weight.T

    return read


READ_LAYER = Contract(
    inputs=draw_layer,
    judge=Returns(weight_by_weight, rtol=1e-6, atol=0.0),
    passed="Right, in both formats, with act-order and without. Every reader of GPTQ files, on a "
    "GPU or not, computes these numbers.",
    clauses={
        "returns": Clause(
            "The weights are wrong. {says}",
            "Take one weight: its code, its group, that group's zero and scale.",
        ),
        "refuses": Clause(
            'A format that is neither "gptq" nor "gptq_v2" is refused with a '
            "ValueError: its tensors may mean something else.",
            "Look at `checkpoint_format` first.",
        ),
    },
    mistakes=(
        mistake(
            'The format "gptq" stores zero - 1. You take it as it is: each weight is off by a '
            "whole step.",
            'Add 1, in "gptq" only.',
            _read("as stored"),
            _read("minus"),
        ),
        mistake(
            'You add 1 to the zeros of "gptq_v2", too. It stores them as they are.',
            "Look at `checkpoint_format`.",
            _read("always"),
        ),
        mistake(
            "`g_idx` is not looked at: with act-order, groups are not neighbours.",
            "Input i takes row `g_idx[i]` of zeros and scales.",
            _read("neighbours"),
        ),
        mistake(
            "The numbers of `qweight` come out in the wrong order. An int32 holds neighbouring "
            "*inputs*: they belong side by side in the dimension of inputs.",
            "Turn `qweight` first: [out, in / per]. Then unpack its last dimension.",
            _read("rows in order"),
        ),
        mistake(
            "code - zero is below 0 for half of the weights, and uint8 has no numbers below 0.",
            "Subtract as int32 or float32.",
            _read("uint8"),
        ),
        mistake(
            "The weights are not float32.",
            '`tensors["scales"].float()`, before you multiply.',
            _read("half"),
        ),
        mistake(
            "The zero is a code: it is subtracted before the scale multiplies.",
            "(code - zero) * scale.",
            _read("zero after"),
        ),
        mistake(
            "This is [in, out]. A linear layer's weight is [out, in].",
            "`.T`.",
            _read("as stored in the file"),
        ),
    ),
)
