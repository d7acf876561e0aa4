"""What lab 07 says of trees of guesses: exercises 8 and 9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.compare_lists import KnownMistake, ListCase, compare_lists
from utils.checks.kit.runner import Bug, Case, compare
from utils.checks.lab_07 import pictures


class _Tree(NamedTuple):
    """A tree of guesses; `tokens` are their ids."""

    parents: list[int]
    tokens: list[int]


_TREES = (
    _Tree([-1], [5]),
    _Tree([-1, 0], [5, 6]),
    _Tree([-1, -1], [5, 7]),
    _Tree([-1, 0, 1], [5, 6, 8]),
    _Tree([-1, -1, 0], [5, 7, 6]),
    _Tree([-1, -1, 0, 0, 1], [5, 7, 6, 8, 6]),
    _Tree([-1, -1, 0, 0, 1, 2, 4], [5, 7, 6, 8, 6, 9, 3]),
    _Tree([], []),
)


def _ancestors(parents: Sequence[int], node: int) -> set[int]:
    """The node, and all above it; -1 is the root."""
    return {node} if node == -1 else {node} | _ancestors(parents, parents[node])


def mask_by_brute_force(parents: Sequence[int]) -> Tensor:
    nodes = range(-1, len(parents))
    return torch.tensor([[column in _ancestors(parents, row) for column in nodes] for row in nodes])


def _masked(parents: list[int], keep: Tensor) -> Tensor:
    """The right mask, with False wherever `keep` is."""
    return mask_by_brute_force(parents) & keep


def _off_diagonal(parents: list[int]) -> Tensor:
    return ~torch.eye(len(parents) + 1, dtype=torch.bool)


def _first_cell(parents: list[int], *, column: bool) -> Tensor:
    """True in the root's cell, or in all of column 0 but the root's own cell."""
    cell = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    if column:
        cell[1:, 0] = True
    else:
        cell[0, 0] = True
    return cell


def _siblings(parents: list[int]) -> Tensor:
    mask = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    for one, parent in enumerate(parents):
        for other, others_parent in enumerate(parents):
            mask[one + 1, other + 1] = parent == others_parent
    return mask


def _parent_and_self(parents: list[int], *, root: bool) -> Tensor:
    mask = torch.eye(len(parents) + 1, dtype=torch.bool)
    for node, parent in enumerate(parents):
        mask[node + 1, parent + 1] = True
    if root:
        mask[:, 0] = True
    return mask


def _unshifted(parents: list[int]) -> Tensor:
    """Indices of `parents` taken for rows of the mask: one too high."""
    mask = torch.eye(len(parents) + 1, dtype=torch.bool)
    mask[:, 0] = True
    for node, parent in enumerate(parents):
        mask[node + 1] |= mask[max(parent, 0)]
    return mask


_ABOVE = "A guess sees all that its parent sees, row `parents[i] + 1`, and itself."
_MASK_BUGS = (
    Bug("This is the causal mask of a chain: each token sees all before it. In a tree, siblings "
        "and their children are alternatives, and must not see each other.", _ABOVE,
        lambda parents: torch.ones(len(parents) + 1, len(parents) + 1).tril().bool()),
    Bug("A token does not see itself.", "The diagonal is True.",
        lambda parents: _masked(parents, _off_diagonal(parents))),
    Bug("A guess does not see itself.", "The diagonal is True.",
        lambda parents: _masked(
            parents, _off_diagonal(parents) | _first_cell(parents, column=False))),
    Bug("A guess sees its parent, but not the one above that: grandparents are missing.", _ABOVE,
        lambda parents: _parent_and_self(parents, root=False)),
    Bug("A guess sees its parent, but not the one above that: grandparents are missing.", _ABOVE,
        lambda parents: _parent_and_self(parents, root=True)),
    Bug("The guesses do not see the last confirmed token.", "Column 0 is True everywhere.",
        lambda parents: _masked(parents, ~_first_cell(parents, column=True))),
    Bug("Rows and columns are exchanged: a row says what its token sees.",
        "`mask[row, column]`: row sees column.",
        lambda parents: mask_by_brute_force(parents).T.contiguous()),
    Bug("The parents are off by one: guess i has row i + 1, because row 0 is the last confirmed "
        "token. So the parent's row is `parents[i] + 1`.", _ABOVE, _unshifted),
    Bug("Everybody sees everybody.", _ABOVE,
        lambda parents: torch.ones(len(parents) + 1, len(parents) + 1, dtype=torch.bool)),
    Bug("True and False are exchanged: True means that the token is seen.",
        "Begin with zeros, and set True.", lambda parents: ~mask_by_brute_force(parents)),
    Bug("A token sees its siblings. They are alternatives for the same place.", _ABOVE,
        lambda parents: mask_by_brute_force(parents) | _siblings(parents)),
    Bug("The last confirmed token has no row: it is row 0, and guess i is row i + 1.",
        "The mask is [1 + m, 1 + m].", lambda parents: mask_by_brute_force(parents)[1:, 1:]),
)  # fmt: skip


def judge_tree_attention_mask(function: Callable[..., Tensor]) -> str:
    """Check `tree_attention_mask(parents)`."""
    cases = [
        Case(f"parents {tree.parents}", (tree.parents,), mask_by_brute_force(tree.parents))
        for tree in _TREES
    ]

    def on_a_copy(parents: list[int]) -> Tensor:
        return function(list(parents))

    def picture(case: Case, got: Tensor) -> tuple[Any, str]:
        names = ["last", *(str(i) for i in range(len(case.args[0])))]
        return pictures.masks(case.expected, got, names), "The expected mask beside yours."

    compare(on_a_copy, cases, _MASK_BUGS, picture)
    return (
        f"Each guess sees itself and what stands above it, in {len(cases)} trees: so each path "
        "through the tree is computed as if it were the only one."
    )


def path_by_brute_force(
    draft_token_ids: Sequence[int], parents: Sequence[int], target_token_ids: Sequence[int]
) -> list[int]:
    """Of all paths down from the root on which every guess is right, the longest."""
    paths: list[list[int]] = [[]]
    for node in range(len(parents)):
        above = sorted(_ancestors(parents, node) - {-1})
        if all(draft_token_ids[one] == target_token_ids[parents[one] + 1] for one in above):
            paths.append(above)
    return max(paths, key=len)


def _walk(
    tokens: list[int], parents: list[int], target: list[int], *, choose: str = "match",
    row: str = "own", stop: bool = True,
) -> list[int]:  # fmt: skip
    """Following a tree with one switch per known mistake; never the oracle."""
    path: list[int] = []
    node = -1
    while True:
        children = [i for i, parent in enumerate(parents) if parent == node]
        wanted = target[{"own": node + 1, "depth": len(path), "node": max(node, 0)}[row]]
        good = [i for i in children if tokens[i] == wanted]
        if choose == "first child" and children:
            good = children[:1]
        elif choose == "first child if right":
            good = [i for i in children[:1] if tokens[i] == wanted]
        elif choose == "any node":
            good = [i for i in range(len(tokens)) if tokens[i] == wanted and i > node]
        if not good:
            return path
        node = good[0]
        path.append(node)
        if not stop and len(path) == 1:
            return path


_FOLLOW = (
    "The target's token behind node i is `target_token_ids[i + 1]`; behind the root it is "
    "`target_token_ids[0]`."
)
_FOLLOW_MISTAKES: tuple[KnownMistake, ...] = (
    (lambda d, p, t: _walk(d, p, t, choose="first child"),
     "You always go on to the first child, whatever the target says.",
     "Go on to the child whose token is the target's; stop if there is none."),
    (lambda d, p, t: _walk(d, p, t, choose="first child if right"),
     "Only the first child is looked at. Its siblings are there for the case that it is wrong.",
     "Go through all nodes whose parent is the current one."),
    (lambda d, p, t: _walk(d, p, t, choose="any node"),
     "A node is taken that is no child of the current one. It continues another text.",
     "Only nodes with `parents[i] == node` come into question."),
    (lambda d, p, t: _walk(d, p, t, row="depth"),
     "The target's token is taken from the row of the depth. In a tree, several nodes have the "
     "same depth, and each has its own row.", _FOLLOW),
    (lambda d, p, t: _walk(d, p, t, row="node"),
     "The target's rows are off by one: row 0 belongs to the last confirmed token.", _FOLLOW),
    (lambda d, p, t: _walk(d, p, t, stop=False),
     "You stop after the first right guess.",
     "Repeat from the accepted node, until no child is right."),
    (lambda d, p, t: [d[i] for i in path_by_brute_force(d, p, t)],
     "You return the tokens. Expected are the numbers of the nodes.", "`path.append(i)`"),
    (lambda d, p, t: [-1, *path_by_brute_force(d, p, t)],
     "The root is in your path. It is no guess, but the last confirmed token.",
     "Begin with an empty path."),
    (lambda d, p, t: [i + 1 for i in path_by_brute_force(d, p, t)],
     "You return rows of the mask. Expected are the numbers of the guesses, one lower.",
     "`path.append(i)`"),
    (lambda d, p, t: [i for i in range(len(d)) if d[i] == t[p[i] + 1]],
     "You collect all guesses that fit their parent, also below a rejected one, where the text is "
     "another.", "Walk down from the root, and stop where no child is right."),
    (lambda d, p, t: path_by_brute_force(d, p, t)[::-1],
     "The path is in the wrong order: it goes up. Expected is from the root down.",
     "Begin at the root."),
    (lambda d, p, t: path_by_brute_force(d, p, t)[-1:],
     "Only the last accepted node is returned. Expected is the whole path.", "`path.append(i)`"),
)  # fmt: skip


def judge_follow_tree(function: Callable[..., list[int]]) -> str:
    """Check `follow_tree(draft_token_ids, parents, target_token_ids)`."""
    big = _TREES[6]  # 5(6(9) 8) 7(6(3))
    wanted = [
        (_TREES[0], [5, 1]), (_TREES[0], [6, 1]),
        (_TREES[1], [5, 6, 8]), (_TREES[1], [5, 7, 6]), (_TREES[1], [6, 6, 8]),
        (_TREES[2], [7, 1, 2]), (_TREES[2], [5, 7, 1]), (_TREES[2], [6, 5, 7]),
        (_TREES[3], [5, 6, 8, 4]), (_TREES[3], [5, 6, 7, 8]),
        (_TREES[5], [5, 8, 6, 1, 1, 1]), (_TREES[5], [7, 8, 6, 1, 1, 2]),
        (_TREES[5], [7, 6, 5, 6, 8, 8]),
        (big, [5, 6, 6, 9, 2, 6, 1, 1]), (big, [7, 6, 6, 2, 2, 3, 1, 4]),
        (big, [7, 8, 6, 9, 1, 9, 3, 5]), (big, [9, 6, 6, 9, 1, 3, 3, 5]),
        (big, [5, 8, 6, 6, 9, 9, 3, 5]), (_TREES[7], [5]),
    ]  # fmt: skip
    cases = [
        ListCase(
            f"draft_token_ids {tree.tokens}, parents {tree.parents}, target_token_ids {target}",
            (tree.tokens, tree.parents, target),
            path_by_brute_force(tree.tokens, tree.parents, target),
        )
        for tree, target in wanted
    ]
    compare_lists(
        function, cases, _FOLLOW_MISTAKES,
        "This is not the longest path from the root on which every guess is right.",
    )  # fmt: skip
    return (
        f"The longest right path in {len(cases)} cases, through first, second and no children. "
        "The target's token behind its last node comes on top."
    )
