"""Steps of a rejection sampler, and the exact probability of all that can come of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.inputs import laid_out

Outcome = tuple[int, ...]
Law = dict[Outcome, float]
GRIDS = {0: 4, 1: 4, 2: 4, 3: 2}  # by the number of guesses: all ways are walked
TINY = 2.0**-20
RARE = 2.0**-12  # of p / q


class Step(NamedTuple):
    """What a sampler is given.

    Args:
        grid: of the random numbers; 0: there is one outcome only, whatever they are
        rare: 0, or a probability with which guesses are accepted, too
    """

    draft_token_ids: list[int]
    draft_probs: Tensor | None
    target_probs: Tensor
    grid: int
    rare: float = 0.0

    def __str__(self) -> str:
        q = "None" if self.draft_probs is None else _rows(self.draft_probs)
        ids = f"draft_token_ids {self.draft_token_ids}"
        return f"{ids}\ndraft_probs {q}\ntarget_probs {_rows(self.target_probs)}"


def _rows(rows: Tensor) -> str:
    if rows.shape[-1] <= 8:
        return f"[{', '.join('[' + _numbers(row.tolist()) + ']' for row in rows)}]"
    parts = [{int(t): float(f"{row[t]:.4g}") for t in row.nonzero()[:, 0]} for row in rows[:4]]
    more = "" if len(rows) <= 4 else f" and {len(rows) - 4} rows more"
    return f"of {rows.shape[-1]} tokens, those above 0: {parts}{more}"


def _numbers(row: Iterable[float]) -> str:
    return ", ".join(f"{x:.4g}" for x in row)


# Drawn such that each threshold for a random number is a multiple of 1 / grid: those of p / q, and
# those between the shares of a row that tokens are drawn from.


def draw_step(c: Choices) -> Step:
    """Drawn and certain guesses, few and many; tiny probabilities; large vocabularies."""
    k = c.pick((1, 1, 0, 1, 2, 2, 3)) if not c.rarely(12) else c.size(4, 40)
    large = k <= 3 and c.rarely(12)
    grid = 0 if large else GRIDS.get(k, 0)
    certain = c.rarely(3)
    rare = RARE if grid and c.rarely(5) else 0.0
    size = c.integer(2, 5)
    places = [_place(c, size, grid, certain, rare) for _ in range(k)]
    p = [*(p for _, p, _ in places), _shared(c, size, grid)]
    q = [q for _, _, q in places if not certain]
    if c.rarely(4) and not certain:  # p and q of a millionth; the rest is the same in both
        p = [[*(x * TINY for x in row), 1 - TINY] for row in p[:-1]] + [[*p[-1], 0.0]]
        q = [[*(x * TINY for x in row), 1 - TINY] for row in q]
        size += 1
    vocab_size = 70_000 if large else c.pick((size, size, size, 300))
    ids = list(range(size))
    if vocab_size != size:  # anywhere in it, the last one included
        apart = c.integer(1, 50)
        ids = [vocab_size - 1 - i * apart for i in range(size)]
    layout = c.pick(("contiguous", "contiguous", "transposed", "a slice"))
    target, draft = (laid_out(_spread(rows, ids, vocab_size), layout) for rows in (p, q))
    if k == 0 and c.rarely(2):
        certain = True
    return Step(
        [ids[guess] for guess, _, _ in places], None if certain else draft, target, grid, rare
    )


def _spread(rows: Sequence[Sequence[float]], ids: list[int], vocab_size: int) -> Tensor:
    spread = torch.zeros(len(rows), vocab_size)
    if rows:
        spread[:, ids] = torch.tensor(rows)
    return spread


def _shared(c: Choices, size: int, grid: int) -> list[float]:
    """A distribution of one token or two, in parts of 1 / grid."""
    parts = c.integer(0, grid)
    row = [0.0] * size
    row[c.integer(0, size - 1)] += 1 - parts / max(1, grid)
    row[c.integer(0, size - 1)] += parts / max(1, grid)
    return row


def _place(
    c: Choices, size: int, grid: int, certain: bool, rare: float
) -> tuple[int, list[float], list[float]]:
    """A guess, the target's row and the draft's; `certain` guesses have none."""
    guess = c.integer(0, size - 1)
    ratio = c.pick((0.0, 1.0, 1.0, *(i / grid for i in range(1, grid)), *(2 * [rare])))
    if not grid:
        ratio = float(not c.rarely(8))
    recovered = _shared(c, size - 1, grid)
    recovered.insert(guess, 0.0)
    if certain:
        p = [(1 - ratio) * share for share in recovered]
        p[guess] += ratio
        return guess, p, []
    # What p and q have in common, in units; then what each has more of.
    common = [float(c.integer(0, 2)) for _ in range(size)]
    other = (guess + c.integer(1, size - 1)) % size  # the draft may offer this one too often, too
    if ratio < 1:
        common[guess] = 2 * ratio
        more_q = [0.0] * size
        more_q[guess] = 2 - 2 * ratio
        if recovered[other] == 0:
            more_q[other] = c.integer(0, 2)
        missing = sum(more_q)
        more_p = [share * missing for share in recovered]
    else:
        common[guess] += 1
        more_p, more_q = (
            [float(i == of) * c.integer(0, 1) for i in range(size)] for of in (guess, other)
        )
        if sum(more_p) != sum(more_q):
            more_p[guess], more_q[other] = 1.0, 1.0
    total = sum(common) + sum(more_p)
    p, q = ([(a + b) / total for a, b in zip(common, m, strict=True)] for m in (more_p, more_q))
    return guess, p, q


def exact_law(step: Step) -> Law:
    """Every possible outcome and its probability, by going through all that can happen."""
    law: Law = {}
    reached = 1.0  # the probability that all guesses so far were accepted
    draft = tuple(step.draft_token_ids)
    for place, token in enumerate(draft):
        p = _row(step.target_probs[place])
        q = {token: 1.0} if step.draft_probs is None else _row(step.draft_probs[place])
        accepted = min(1.0, p.get(token, 0.0) / q[token])
        missing = {other: a - q.get(other, 0.0) for other, a in p.items() if a > q.get(other, 0.0)}
        if accepted < 1.0:
            total = sum(missing.values())
            for other, mass in missing.items():
                law[(*draft[:place], other)] = reached * (1.0 - accepted) * mass / total
        reached *= accepted
        if reached == 0.0:
            return law
    for token, share in _row(step.target_probs[len(draft)]).items():
        law[(*draft, token)] = reached * share
    return law


def _row(row: Tensor) -> dict[int, float]:
    """The tokens that are possible at all."""
    return {int(token): float(row[token]) for token in row.nonzero()[:, 0]}


def in_words(law: Law, digits: int = 1) -> str:
    """Outcomes and their shares; the most frequent ones of many."""
    most = sorted(law.items(), key=lambda pair: -pair[1])[:8]
    parts = [
        f"{list(outcome)} in {share:.{digits if share > 1e-3 else 4}%}"
        for outcome, share in sorted(most)
    ]
    return ", ".join(parts) + (" ..." if len(law) > len(most) else "")
