"""Exercise 9: which guesses of a tree stay."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.lab_07.token_lists import is_list
from utils.checks.lab_07.trees import draw_parents, in_words, path_to

VOCABULARIES = ((5, 6, 7, 8), (0, 1, 2, 3), (70_001, 4465, 0, 300))  # and on from the last


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


def _explain(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    tokens, parents, target = given.args
    same = 0
    while same < min(len(got), len(expected)) and got[same] == expected[same]:
        same += 1
    node = expected[same - 1] if same else -1
    wanted = target[node + 1]
    where = f"Behind {in_words(node + 1)} the target says {wanted}"
    children = [i for i, parent in enumerate(parents) if parent == node]
    child = [i for i in children if tokens[i] == wanted]
    what = f"guess {child[0]} holds it" if child else f"no child of it ({children}) holds that"
    return "returns", f"{where}, and {what}."


def _walk(
    tokens: list[int],
    parents: list[int],
    target: list[int],
    *,
    choose: str = "match",
    row: str = "own",
    steps: int = 10**6,
) -> list[int]:
    """Following a tree with one switch per known mistake."""
    path: list[int] = []
    node = -1
    while len(path) < steps:
        children = [i for i, parent in enumerate(parents) if parent == node]
        wanted = target[{"own": node + 1, "depth": len(path), "node": max(node, 0)}[row]]
        good = [i for i in children if tokens[i] == wanted]
        if choose == "first child":
            good = children[:1]
        elif choose == "first child if right":
            good = [i for i in children[:1] if tokens[i] == wanted]
        elif choose == "any node":
            good = [i for i in range(node + 1, len(tokens)) if tokens[i] == wanted]
        if not good:
            break
        node = good[0]
        path.append(node)
    return path


def _wrong(**switches: Any) -> Callable[..., list[int]]:
    return functools.partial(_walk, **switches)


BEHIND = (
    "The target's token behind guess i is `target_token_ids[i + 1]`; behind the root it is "
    "`target_token_ids[0]`."
)
FOLLOW_TREE = Contract(
    inputs=draw_walk,
    judge=Returns(longest_right_path, wrong=is_list(_explain)),
    passed="The longest right path, through first, second and no children, in deep trees and wide "
    "ones. The target's token behind its last guess comes on top.",
    clauses={
        "none": Clause("Your function returned None.", "`return path`"),
        "form": Clause("Expected a list of ints; got {got}."),
        "returns": Clause(
            "These are not the numbers of the longest path from the root down on "
            "which every guess is right. {says}",
            "Numbers of guesses, not tokens; the whole path, without the root; from the top down.",
        ),
    },
    mistakes=(
        mistake(
            "You always go on to the first child, whatever the target says.",
            "Go on to the child whose token is the target's; stop if there is none.",
            _wrong(choose="first child"),
        ),
        mistake(
            "Only the first child is looked at. Its siblings are there for the case that it is "
            "wrong.",
            "Go through all nodes whose parent is the current one.",
            _wrong(choose="first child if right"),
        ),
        mistake(
            "A node is taken that is no child of the current one. It continues another text.",
            "Only nodes with `parents[i] == node` come into question.",
            _wrong(choose="any node"),
        ),
        mistake(
            "The target's token is taken from the row of the depth. In a tree, several nodes "
            "have the same depth, and each has its own row.",
            BEHIND,
            _wrong(row="depth"),
        ),
        mistake(
            "The target's rows are off by one: row 0 belongs to the last confirmed token.",
            BEHIND,
            _wrong(row="node"),
        ),
        mistake(
            "You stop after the first right guess.",
            "Repeat from the accepted node, until no child is right.",
            _wrong(steps=1),
        ),
        mistake(
            "You return the tokens. Expected are the numbers of the guesses.",
            "`path.append(i)`",
            lambda d, p, t: [d[i] for i in longest_right_path(d, p, t)],
        ),
        mistake(
            "The root is in your path. It is no guess, but the last confirmed token.",
            "Begin with an empty path.",
            lambda d, p, t: [-1, *longest_right_path(d, p, t)],
        ),
        mistake(
            "You collect all guesses that fit their parent, also below a rejected one, where "
            "the text is another.",
            "Walk down from the root, and stop where no child is right.",
            lambda d, p, t: [i for i in range(len(d)) if d[i] == t[p[i] + 1]],
        ),
    ),
)
