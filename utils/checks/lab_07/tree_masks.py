"""Exercise 8: who sees whom in a tree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.lab_07 import pictures
from utils.checks.lab_07.trees import MOST, draw_parents, in_words, path_to


def seen(parents: list[int]) -> Tensor:
    """Guess by guess: the root, and the path down to it."""
    mask = torch.zeros(1 + len(parents), 1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess in range(len(parents)):
        mask[guess + 1, [1 + i for i in path_to(parents, guess)]] = True
    return mask


def _mask(expected: Tensor, got: Any, given: Given) -> Fault | None:
    says = difference(expected, got)
    if not says:
        return None
    names = ["last", *map(str, range(len(expected) - 1))]
    if isinstance(got, Tensor) and got.shape == expected.shape and got.dtype == torch.bool:
        row, column = (int(i) for i in (got != expected).nonzero()[0])
        who = f"Row {row} ({in_words(row)}), column {column} ({in_words(column)})"
        says = f"{who} should be {bool(expected[row, column])}."
    return Fault(
        "returns", "", expected, got, says, picture=functools.partial(_masks, expected, got, names)
    )


def _masks(expected: Tensor, got: Any, names: list[str]) -> tuple[Figure | None, str]:
    if len(names) > 14:
        return None, ""
    return pictures.masks(expected, got, names), "The expected mask beside yours."


def _from_right(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda parents: change(seen(parents))


def _without_diagonal(mask: Tensor, root: bool) -> Tensor:
    kept = mask & ~torch.eye(len(mask), dtype=torch.bool)
    kept[0, 0] = root
    return kept


def _without_root(mask: Tensor) -> Tensor:
    mask[1:, 0] = False
    return mask


def _parent_and_self(parents: list[int], root: bool) -> Tensor:
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    for guess, parent in enumerate(parents):
        mask[guess + 1, parent + 1] = True
    mask[:, 0] |= root
    return mask


def _siblings_too(parents: list[int]) -> Tensor:
    ids = torch.tensor(parents)
    mask = seen(parents)
    mask[1:, 1:] |= ids[:, None] == ids[None]
    return mask


def _unshifted(parents: list[int]) -> Tensor:
    """Numbers of guesses taken for rows of the mask."""
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess, parent in enumerate(parents):
        mask[guess + 1] |= mask[max(parent, 0)]
    return mask


ABOVE = "A guess sees all that its parent sees, row `parents[i] + 1`, and itself."
TREE_ATTENTION_MASK = Contract(
    inputs=lambda c: Given(draw_parents(c)),
    judge=Returns(seen, wrong=_mask),
    passed=f"Each guess sees itself and what stands above it, in trees of up to {MOST} guesses, "
    "deep and wide: so each path through the tree is computed as if it were the only one.",
    clauses={"returns": Clause("{says}", ABOVE)},
    mistakes=(
        mistake(
            "This is the causal mask of a chain: each token sees all before it. In a tree, "
            "siblings and their children are alternatives, and must not see each other.",
            ABOVE,
            _from_right(lambda mask: torch.ones_like(mask).tril()),
        ),
        mistake(
            "A token does not see itself.",
            "The diagonal is True.",
            _from_right(lambda mask: _without_diagonal(mask, root=False)),
            _from_right(lambda mask: _without_diagonal(mask, root=True)),
        ),
        mistake(
            "A guess sees its parent, but not the one above that: grandparents are missing.",
            ABOVE,
            lambda parents: _parent_and_self(parents, root=False),
            lambda parents: _parent_and_self(parents, root=True),
        ),
        mistake(
            "The guesses do not see the last confirmed token.",
            "Column 0 is True everywhere.",
            _from_right(_without_root),
        ),
        mistake(
            "Rows and columns are exchanged: a row says what its token sees.",
            "`mask[row, column]`: row sees column.",
            _from_right(lambda mask: mask.T),
        ),
        mistake(
            "The parents are off by one: guess i has row i + 1, because row 0 is the last "
            "confirmed token. So the parent's row is `parents[i] + 1`.",
            ABOVE,
            _unshifted,
        ),
        mistake("Everybody sees everybody.", ABOVE, _from_right(torch.ones_like)),
        mistake(
            "True and False are exchanged: True means that the token is seen.",
            "Begin with zeros, and set True.",
            _from_right(torch.logical_not),
        ),
        mistake(
            "A token sees its siblings. They are alternatives for the same place.",
            ABOVE,
            _siblings_too,
        ),
        mistake(
            "The last confirmed token has no row: it is row 0, and guess i is row i + 1.",
            "The mask is [1 + m, 1 + m].",
            _from_right(lambda mask: mask[1:, 1:]),
        ),
    ),
)
