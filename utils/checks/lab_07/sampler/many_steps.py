"""Many steps of a sampler with ordinary random numbers, and the chi-square test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_07 import pictures

Rows = tuple[tuple[float, ...], ...]
# The experiment: two guesses, drawn from the draft's rows, which are far from the target's.
DRAFT_ROWS: Rows = ((0.4, 0.3, 0.2, 0.1), (0.25, 0.25, 0.25, 0.25))
TARGET_ROWS: Rows = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.25, 0.15, 0.1), (0.3, 0.1, 0.2, 0.4))
STEPS = 6_000
# A right sampler fails a test of this level once in a million. Seeds are fixed: it never does so
# by chance on one day and not on another.
LEVEL = 1e-6


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """How probable counts at least this far from the expected ones are, if those are right."""
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def too_far(counts: Mapping[Any, float], expected: Mapping[Any, float]) -> bool:
    """Whether counts of outcomes are further from the expected ones than chance explains.

    Rare outcomes go together, as the test asks for: at least 5 are expected in each cell.
    """
    frequent = [outcome for outcome, number in expected.items() if number >= 5]
    cells = [(counts.get(outcome, 0.0), expected[outcome]) for outcome in frequent]
    came, wanted = (sum(cell[i] for cell in cells) for i in range(2))
    rest = sum(expected.values()) - wanted
    if rest >= 5:
        cells.append((sum(counts.values()) - came, rest))
    if len(cells) < 2:
        return False
    return chi_square_p([c for c, _ in cells], [e for _, e in cells]) < LEVEL


def judge(function: Callable[..., Any]) -> Passed:
    """Guesses drawn from the draft: each token of the output must be distributed as the target."""
    p, q = torch.tensor(TARGET_ROWS), torch.tensor(DRAFT_ROWS)
    given = (
        f"{STEPS:,} steps, two guesses each, drawn from draft_probs "
        f"{[list(row) for row in DRAFT_ROWS]}; target_probs {[list(row) for row in TARGET_ROWS]}"
    )

    def run(drafts: list[list[int]]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(7)
        outputs = []
        for draft in drafts:
            got = attempt(function, draft, q, p, generator)
            if isinstance(got, Raised):
                raise Mismatch(got.says, input=given, look=got.look)
            outputs.append(got)
        return outputs

    seed = torch.Generator().manual_seed(8)
    drafts = torch.multinomial(q, STEPS, replacement=True, generator=seed).T.tolist()
    if run(drafts[:40]) != run(drafts[:40]):
        raise Mismatch(
            "The same seed gives different tokens: not all random numbers come from `generator`.",
            input="the same 40 steps, twice, with equal generators",
            look="Nothing else may decide: no `random`, no NumPy, no clock, nothing kept from call "
            "to call.",
        )
    outputs = run(drafts)
    panels = []
    for place, row in enumerate(TARGET_ROWS):
        tokens = Counter(o[place] for o in outputs if len(o) > place)
        panels.append((place, [tokens[token] for token in range(len(row))], row))
    names = ("token 0 of the output", "token 1 of the output", "token 2: the bonus token")
    figure = pictures.distributions(
        [
            (
                name,
                DRAFT_ROWS[i] if i < 2 else None,
                row,
                [count / max(1, sum(counts)) for count in counts],
            )
            for name, (i, counts, row) in zip(names, panels, strict=True)
        ],
        f"What came in {STEPS:,} steps, beside what the target says",
    )
    alt = "For each token of the output: the draft's, the target's and the obtained distribution."
    overlap = [
        sum(min(a, b) for a, b in zip(*rows, strict=True))
        for rows in zip(TARGET_ROWS, DRAFT_ROWS, strict=False)
    ]
    lengths = {1: 1 - overlap[0], 2: overlap[0] * (1 - overlap[1]), 3: overlap[0] * overlap[1]}
    came = Counter(len(o) for o in outputs)
    wrong = ""
    if too_far(came, {n: STEPS * share for n, share in lengths.items()}):
        wrong = f"Guesses are accepted in other proportions than expected: {dict(came)} steps gave "
        wrong += (
            f"so many tokens; expected { ({n: round(STEPS * s) for n, s in lengths.items()}) }."
        )
    for place, counts, row in panels:
        if not wrong and too_far(
            dict(enumerate(counts)), {t: sum(counts) * share for t, share in enumerate(row)}
        ):
            wrong = f"Token {place} of the output is not distributed as the target says."
    if wrong:
        raise Mismatch(
            wrong,
            input=given,
            look="Accept if `uniform < p / q`, with fresh random numbers.",
            figure=figure,
            alt=alt,
        )
    return Passed(
        "Each outcome of a step comes exactly as often as it should, whatever the random numbers "
        f"are. Over {STEPS:,} steps, each token is distributed as the target says, although the "
        f"guesses came from other distributions. {overlap[0]:.1%} and {overlap[1]:.1%} of the "
        f"guesses should be accepted; yours accepted {(came[2] + came[3]) / STEPS:.1%} and "
        f"{came[3] / max(1, came[2] + came[3]):.1%}.",
        figure,
        alt,
    )
