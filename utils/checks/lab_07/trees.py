"""Trees of guesses, drawn."""

from __future__ import annotations

from collections.abc import Sequence

from utils.checks.kit.contracts import Choices

MOST = 120  # guesses


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


def in_words(row: int) -> str:
    """Whose row of the mask, or of the target's tokens, it is."""
    return f"guess {row - 1}" if row else "the root"
