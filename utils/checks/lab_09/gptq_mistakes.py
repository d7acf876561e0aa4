"""Known mistakes of lab 09's GPTQ, to recognise one by its result. They are never the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from utils.checks.kit.compare_tensors import KnownMistake, Parts
from utils.checks.lab_09.grid import params

# Exercise 8


def _prepare(
    weight: Tensor, inputs: Tensor, damp: float, *, factor: float = 2, share: bool = True,
    centre: bool = False, damping: str = "mean", clear: bool = True, lift: str = "before",
    by: str = "diagonal",
) -> Parts:  # fmt: skip
    x = inputs - inputs.mean(0) if centre else inputs
    hessian = factor * x.T @ x / (len(x) if share else 1)
    dead = (x.sum(0) if by == "sum" else hessian.diagonal()) == 0
    unlifted = hessian.diagonal().clone()
    if lift in ("before", "unseen"):
        hessian.diagonal()[dead] = 1
    diagonal = unlifted if lift == "unseen" else hessian.diagonal().clone()
    amount = damp * {
        "mean": diagonal.mean(), "max": diagonal.max(), "one": torch.tensor(1.0),
        "each": diagonal, "all": diagonal.mean(), "none": torch.tensor(0.0),
        "whole": hessian.mean(), "sum": diagonal.sum(),
    }[damping]  # fmt: skip
    if damping == "all":
        hessian += amount
    else:
        hessian.diagonal().add_(amount)
    if lift == "after":
        hessian.diagonal()[dead] = 1
    return weight.masked_fill(dead, 0) if clear else weight, hessian


def _prepare_mistake(says: str, look: str, **switches: object) -> KnownMistake:
    return KnownMistake(says, look, lambda *args: _prepare(*args, **switches))  # type: ignore


_DAMP = "`hessian.diagonal().add_(damp_percent * hessian.diagonal().mean())`."
PREPARE_MISTAKES = (
    _prepare_mistake("The factor 2 is missing: the derivative of a square.", "2 XᵀX / n.",
                     factor=1),
    _prepare_mistake("The sum over tokens is not divided by their number.", "2 XᵀX / n.",
                     share=False),
    _prepare_mistake("The mean of the inputs is subtracted. That is a covariance; the output error "
                     "is about the inputs as they are.", "2 XᵀX / n.", centre=True),
    _prepare_mistake("The Hessian is not damped. With fewer tokens than channels it has no "
                     "inverse.", _DAMP, damping="none"),
    _prepare_mistake("The damping is added to every entry. Only the diagonal makes an inverse "
                     "possible.", _DAMP, damping="all"),
    _prepare_mistake("The damping does not depend on how large the Hessian is. It is a share of "
                     "the mean of the diagonal.", _DAMP, damping="one"),
    _prepare_mistake("The damping is a share of the largest entry. It is a share of the mean of "
                     "the diagonal.", _DAMP, damping="max"),
    _prepare_mistake("Each entry is damped by a share of itself. All get the same: a share of the "
                     "mean.", _DAMP, damping="each"),
    _prepare_mistake("The damping is a share of the sum of the diagonal. It is one of the mean.",
                     _DAMP, damping="sum"),
    _prepare_mistake("The damping is a share of the mean of the whole matrix. It is one of the "
                     "mean of the diagonal.", "`hessian.diagonal().mean()`.", damping="whole"),
    _prepare_mistake("The weights of a dead channel are kept. They meet no input, but a large one "
                     "stretches the scale of its whole group.", "Set that column to 0.",
                     clear=False),
    _prepare_mistake("The diagonal of a dead channel was not set to 1.",
                     "Before the damping: `hessian.diagonal()[dead] = 1`.", lift="never"),
    _prepare_mistake("The diagonal of a dead channel was set to 1 after the damping. Before: its 1 "
                     "counts in the mean, and it is damped as well.",
                     "First dead channels, then the damping.", lift="after"),
    _prepare_mistake("The mean of the diagonal is taken before the dead channels are set to 1. "
                     "Their 1 counts in it.", "First dead channels, then the mean.",
                     lift="unseen"),
    _prepare_mistake("A channel whose inputs cancel is taken for dead. A dead one is 0 in every "
                     "token.", "`dead = hessian.diagonal() == 0`.", by="sum"),
    _prepare_mistake("Dead channels are not treated at all.",
                     "`dead = hessian.diagonal() == 0`: column of the weight 0, diagonal 1.",
                     clear=False, lift="never"),
)  # fmt: skip

# Exercise 9


def _columns(
    weight: Tensor, upper: Tensor, bits: int, group_size: int, *, grids: str = "fresh",
    divide: int = 1, sign: int = 1, spread: str = "row", reach: str = "all", read: bool = True,
    loss: str = "now", backwards: bool = False, round_first: bool = False,
) -> Parts:  # fmt: skip
    w, top = weight.clone(), 2**bits - 1
    q = torch.zeros_like(w)
    scales = torch.ones(len(w), w.shape[1] // group_size)
    zeros = torch.zeros_like(scales)
    factor = {"row": upper, "column": upper.T, "inverse": upper.T @ upper}[spread]
    columns = range(w.shape[1])
    for i in reversed(columns) if backwards else columns:
        group = i // group_size
        start, end = group * group_size, (group + 1) * group_size
        source = weight if grids == "early" else w
        if i == start or grids in ("every column", "sliding") or (backwards and i == end - 1):
            begin = i if grids in ("every column", "sliding") else start
            stop = {"rest": None, "sliding": begin + group_size}.get(grids, end)
            scale, zero = params(source[:, begin:stop], bits, grids != "asymmetric")
            if grids == "one" and i:
                scale = scales[:, 0]
            if i == start or grids != "sliding":
                scales[:, group], zeros[:, group] = scale, zero
        column = (weight if round_first else w)[:, i]
        q[:, i] = (column / scale).round().add(zero).clamp(0, top)
        back = (q[:, i] - zero) * scale if read else q[:, i]
        meant = weight if round_first or loss == "first" else w
        error = (meant[:, i] - back) / factor[i, i] ** divide
        later = slice(i + 1, end if reach == "group" else None)
        if reach == "next":
            later = slice(i + 1, i + 2)
        w[:, later] -= sign * error[:, None] * factor[i, later]
    return q.to(torch.uint8), scales, zeros


def _column_mistake(says: str, look: str, **switches: object) -> KnownMistake:
    return KnownMistake(says, look, lambda *args: _columns(*args, **switches))  # type: ignore


_ERROR = (
    "error = (w[:, i] - read back) / upper[i, i]; "
    "w[:, i + 1:] -= error[:, None] * upper[i, i + 1:]."
)
COLUMN_MISTAKES = (
    _column_mistake("These are the codes of plain rounding: no error reaches the later columns. "
                    "Row i of `upper` says how much each gets; below its diagonal are zeros.",
                    _ERROR, spread="column"),
    _column_mistake("The scales come from the weights as they were at first. A group's scale is "
                    "taken when its first column is reached, from the weights as they are by then.",
                    "`if i % group_size == 0:` take `w[:, i : i + group_size]`.", grids="early"),
    _column_mistake("The scale is taken anew at each column. It belongs to a group: the codes "
                    "before would change their meaning.",
                    "`if i % group_size == 0:`.", grids="every column"),
    _column_mistake("The scale is taken anew at each column, from the columns that follow it. It "
                    "belongs to a group: the codes before would change their meaning.",
                    "`if i % group_size == 0:`.", grids="sliding"),
    _column_mistake("A group's scale comes from all columns to the right. It comes from the "
                    "columns of the group.", "`w[:, i : i + group_size]`.", grids="rest"),
    _column_mistake("The grids are asymmetric. Here they are symmetric, with the zero in the "
                    "middle.", "`find_params(..., sym=True)`.", grids="asymmetric"),
    _column_mistake("You round the weights as they were at first, so what the columns before have "
                    "moved is lost.", "`w[:, i]`, not `weight[:, i]`.", round_first=True),
    _column_mistake("All groups have the scale of the first. Each has one of its own, taken when "
                    "its first column is reached.", "`if i % group_size == 0:`.", grids="one"),
    _column_mistake("The error is not divided by `upper[i, i]`.", _ERROR, divide=0),
    _column_mistake("The error is divided twice by `upper[i, i]`.", _ERROR, divide=2),
    _column_mistake("The sign is wrong: the later columns move the wrong way, and double the "
                    "error.", _ERROR, sign=-1),
    _column_mistake("You use the inverse of the whole Hessian. After each column, the inverse of "
                    "what is left is another; `upper` holds these rows.", _ERROR,
                    spread="inverse"),
    _column_mistake("The error stays within its group. All later columns make up for it.",
                    "`w[:, i + 1:]`, to the end.", reach="group"),
    _column_mistake("Only the next column makes up for the error. All later ones do.",
                    "`w[:, i + 1:]`, to the end.", reach="next"),
    _column_mistake("The error is the distance to the *code*. It is the distance to the weight "
                    "that is read back.", "(code - zero) * scale.", read=False),
    _column_mistake("The error is measured from the first weights. It is measured from the weights "
                    "as they are by now: what came from the columns before must be made good, too.",
                    "`w[:, i]`, not `weight[:, i]`.", loss="first"),
)  # fmt: skip
