"""Trees of guesses: who sees whom (exercise 1), and which guesses stay (exercise 2)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.int_lists import is_list

MOST = 120  # guesses
MOST_DRAWN = 13  # guesses in a picture
VOCABULARIES = ((5, 6, 7, 8), (0, 1, 2, 3), (70_001, 4465, 0, 300))  # and on from the last


def draw_parents(c: Choices) -> list[int]:
    """A few guesses one by one; now and then a long chain, or many children of one, behind."""
    parents: list[int] = []
    c.some(lambda: parents.append(c.integer(0, len(parents)) - 1), 0, 10)
    if c.rarely(4):
        many = c.size(1, MOST - len(parents))
        if c.pick(("chain", "wide")) == "chain":
            parents += [len(parents) + i - 1 for i in range(many)]
        else:
            parents += [c.integer(0, len(parents)) - 1] * many
    return parents


def path_to(parents: Sequence[int], guess: int) -> list[int]:
    """The numbers of the guesses from the root down to this one."""
    path: list[int] = []
    while guess != -1:
        path.insert(0, guess)
        guess = parents[guess]
    return path


def name_of(row: int) -> str:
    """Whose row of the mask, or of the target's tokens, it is."""
    return f"guess {row - 1}" if row else "the root"


# Exercise 1


def draw_mask(c: Choices) -> Given:
    return Given(draw_parents(c))


def seen(parents: list[int]) -> Tensor:
    """Guess by guess: the root, and the path down to it."""
    mask = torch.zeros(1 + len(parents), 1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess in range(len(parents)):
        mask[guess + 1, [1 + i for i in path_to(parents, guess)]] = True
    return mask


def wrong_mask(expected: Tensor, got: Any, given: Given) -> Fault | None:
    says = difference(expected, got)
    if not says:
        return None
    picture = None
    if isinstance(got, Tensor) and got.shape == expected.shape and got.dtype == torch.bool:
        row, column = (int(i) for i in (got != expected).nonzero()[0])
        verb = "must see" if expected[row, column] else "must not see"
        says = f"Row {row}, column {column}: {name_of(row)} {verb} {name_of(column)}."
        if len(expected) <= MOST_DRAWN + 1:
            picture = functools.partial(draw_masks, expected, got)
    return Fault("returns", "", expected, got, says, picture=picture)


def draw_masks(expected: Tensor, yours: Tensor) -> tuple[Figure, str]:
    """Both masks; cells that differ are crossed out."""
    names = ["last", *map(str, range(len(expected) - 1))]
    size = len(names)
    side = 0.42 * size + 1.3
    figure = Figure(figsize=(2 * side + 0.3, side + 0.4), layout="constrained")
    for ax, title, mask in zip(
        figure.subplots(1, 2), ("expected", "yours"), (expected, yours), strict=True
    ):
        ax.imshow(mask.numpy(), cmap="Blues", vmin=0, vmax=1.4)
        for row, column in (mask != expected).nonzero().tolist():
            ink = "white" if mask[row, column] else "#1b1b1b"
            ax.text(column, row, "×", ha="center", va="center", size=16, color=ink)
        ax.set_xticks(np.arange(size + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(size + 1) - 0.5, minor=True)
        ax.grid(False)
        ax.grid(which="minor", color="#1b1b1b", linewidth=0.4)
        ax.tick_params(which="minor", length=0)
        ax.set_xticks(range(size), names)
        ax.set_yticks(range(size), names)
        ax.tick_params(labelsize=8)
        ax.set_xlabel("is seen (key)", size=9)
        ax.set_ylabel("sees (query)", size=9)
        ax.set_title(title, size=10)
    figure.suptitle("Dark: the row's token sees the column's. ×: not as expected", size=10)
    return figure, "The expected mask beside yours; cells that differ are crossed out."


MASK = Returns(seen, wrong=wrong_mask)

# Exercise 2


def draw_walk(c: Choices) -> Given:
    """Trees whose siblings differ and whose cousins need not; a target that mostly agrees."""
    parents, vocabulary = draw_parents(c), c.pick(VOCABULARIES)
    left: dict[int, list[int]] = {}  # of each parent, what its next children may hold
    tokens: list[int] = []
    for parent in parents:
        few = left.setdefault(parent, list(vocabulary))
        tokens.append(int(str(few.pop(c.integer(0, len(few) - 1)))))
        if not few:
            few.append(1000 + len(tokens))
    target = []
    for node in range(-1, len(parents)):
        children = [token for token, parent in zip(tokens, parents, strict=True) if parent == node]
        agree = children and not c.rarely(8)
        target.append(int(str(c.pick(children if agree else vocabulary))))
    return Given(tokens, parents, target)


def longest_right_path(
    draft_token_ids: Sequence[int], parents: Sequence[int], target_token_ids: Sequence[int]
) -> list[int]:
    """Of all paths down from the root on which every guess is right, the longest."""
    fits = [
        token == target_token_ids[parent + 1]
        for token, parent in zip(draft_token_ids, parents, strict=True)
    ]
    paths = [path_to(parents, guess) for guess in range(len(parents))]
    return max([[], *(path for path in paths if all(fits[i] for i in path))], key=len)


def wrong_path(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    tokens, parents, target = given.args
    same = 0
    while same < min(len(got), len(expected)) and got[same] == expected[same]:
        same += 1
    node = expected[same - 1] if same else -1
    wanted = target[node + 1]
    children = [i for i, parent in enumerate(parents) if parent == node]
    child = [i for i in children if tokens[i] == wanted]
    what = f"its child {child[0]} holds that token" if child else "no child of it holds that token"
    return "returns", f"After {name_of(node + 1)} the target says {wanted}, and {what}."


WALK = Returns(longest_right_path, wrong=is_list(wrong_path))
