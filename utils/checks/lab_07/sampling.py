"""What lab 07 says of the rejection sampler: exercise 5.

First small cases, whose possible outcomes are known: an outcome that cannot be, or one that never
comes, tells which mistake it is. Then a chi-square test over many samples.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_07 import pictures
from utils.checks.lab_07.sampler_cases import (
    CASES,
    MISTAKES,
    FlawedSampler,
    Outcome,
    Rows,
    SamplerCase,
    exact_law,
)

Sampler = Callable[..., list[int]]
TRIES = 200  # an outcome of probability 0.1 stays away in 1 of 10^9 such runs
ERROR: Outcome = (-1,)

# The experiment: two guesses, drawn from the draft's rows, which are far from the target's.
DRAFT_ROWS: Rows = ((0.4, 0.3, 0.2, 0.1), (0.25, 0.25, 0.25, 0.25))
TARGET_ROWS: Rows = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.25, 0.15, 0.1), (0.3, 0.1, 0.2, 0.4))
SAMPLES = 20_000
# A right sampler fails a test of this level once in a million. Seeds are fixed: it never does so
# by chance on one day and not on another.
LEVEL = 1e-6


def judge_rejection_sample(function: Sampler) -> Passed:
    """Check `rejection_sample(draft_token_ids, draft_probs, target_probs, generator)`."""
    for case in CASES:
        _judge_form(function, case)
    _judge_outcomes(function)
    _judge_seed(function)
    return _judge_statistics(function)


# --- small cases ---------------------------------------------------------------------------------


def _tensor(rows: Rows | None, like: Rows) -> Tensor | None:
    return None if rows is None else torch.tensor(rows).reshape(len(rows), len(like[0]))


def _judge_form(function: Sampler, case: SamplerCase) -> None:
    """A list of 1 to k + 1 ints, and arguments that are as they were."""
    draft = list(case.draft_token_ids)
    q, p = _tensor(case.draft_probs, case.target_probs), torch.tensor(case.target_probs)
    before = [None if rows is None else rows.clone() for rows in (p, q)]
    for seed in range(3):
        try:
            got = function(draft, q, p, torch.Generator().manual_seed(seed))
        except Exception:
            # A sum of 0 in the residual, say. Which mistake it is shows in all cases together.
            if case is CASES[0]:
                call(function, draft, q, p, torch.Generator().manual_seed(seed), given=case.given)
            return
        if not isinstance(got, list) or not all(type(token) is int for token in got):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a list of ints.",
                input=case.given, look="`.item()` makes an int of a tensor with one number.",
            )  # fmt: skip
        changed = "draft_token_ids" if draft != list(case.draft_token_ids) else ""
        for name, rows, old in zip(("target_probs", "draft_probs"), (p, q), before, strict=True):
            if rows is not None and old is not None and not torch.equal(rows, old):
                changed = name
        if changed:
            raise Mismatch(
                f"Your function changes `{changed}`. The engine goes on using it.",
                input=case.given, look="Begin with an empty list of your own; no `x[...] = y`.",
            )  # fmt: skip


def _draw_all(function: Sampler, case: SamplerCase) -> tuple[Counter[Outcome], Mismatch | None]:
    """What comes out in `TRIES` calls; `ERROR` alone, and the error, if the function raises."""
    p = torch.tensor(case.target_probs)
    q = _tensor(case.draft_probs, case.target_probs)
    generator = torch.Generator().manual_seed(5)
    outcomes: Counter[Outcome] = Counter()
    for _ in range(TRIES):
        draft = list(case.draft_token_ids)
        try:
            outcomes[tuple(call(function, draft, q, p, generator, given=case.given))] += 1
        except Mismatch as error:
            return Counter([ERROR]), error
    return outcomes, None


@functools.cache
def _of_mistake(number: int, place: int) -> frozenset[Outcome]:
    """What comes out of a known mistake in one of the cases."""
    sampler: FlawedSampler = MISTAKES[number][0]
    case, dice = CASES[place], random.Random(3)
    try:
        return frozenset(
            sampler(case.draft_token_ids, case.draft_probs, case.target_probs, dice)
            for _ in range(2 * TRIES)
        )
    except ValueError:
        return frozenset([ERROR])


def _judge_outcomes(function: Sampler) -> None:
    drawn = [_draw_all(function, case) for case in CASES]
    for case, (outcomes, error) in zip(CASES, drawn, strict=True):
        law = exact_law(case.draft_token_ids, case.draft_probs, case.target_probs)
        if outcomes.keys() == law.keys():
            continue
        says, look = _named([frozenset(came) for came, _ in drawn])
        if error is not None and not says:
            raise error
        impossible = [outcome for outcome in outcomes if outcome not in law]
        if not says and impossible:
            says = f"`{list(impossible[0])}` came out, which cannot be."
        raise Mismatch(
            says or "An outcome that should be frequent never comes.",
            input=case.given, expected=_shares(law, 1.0),
            got=str(error) if error is not None else _shares(outcomes, TRIES),
            look=look or "Go through your code with this input, pen in hand.",
        )  # fmt: skip


def _named(drawn: Sequence[frozenset[Outcome]]) -> tuple[str, str]:
    """The known mistake that explains all cases: words, and where to look."""
    for number, (_, says, look) in enumerate(MISTAKES):
        if all(drawn[place] == _of_mistake(number, place) for place in range(len(CASES))):
            return says, look
    return "", ""


def _shares(outcomes: Any, total: float) -> str:
    parts = [f"{list(o)} in {share / total:.0%}" for o, share in sorted(outcomes.items())]
    return ", ".join(parts)


def _judge_seed(function: Sampler) -> None:
    p, q = torch.tensor(TARGET_ROWS), torch.tensor(DRAFT_ROWS)

    def run() -> list[list[int]]:
        generator = torch.Generator().manual_seed(1)
        return [call(function, [0, 2], q, p, generator) for _ in range(40)]

    if run() != run():
        raise Mismatch(
            "The same seed gives different tokens: not all random numbers come from `generator`.",
            input="the same 40 calls, twice, with equal generators",
            look="`torch.rand((), generator=generator)` and "
            "`torch.multinomial(probs, 1, generator=generator)`; no `random`, no NumPy. A request "
            "with a seed must get the same answer each time.",
        )  # fmt: skip


# --- many samples --------------------------------------------------------------------------------


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """How probable counts at least this far from the expected ones are, if those are right."""
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _judge_statistics(function: Sampler) -> Passed:
    generator = torch.Generator().manual_seed(7)
    p, q = torch.tensor(TARGET_ROWS), torch.tensor(DRAFT_ROWS)
    drafts = torch.multinomial(q, SAMPLES, replacement=True, generator=generator).T.tolist()
    given = (
        f"{SAMPLES:,} steps, two guesses each, drawn from draft_probs "
        f"{[list(row) for row in DRAFT_ROWS]}; target_probs {[list(row) for row in TARGET_ROWS]}"
    )
    outputs = [call(function, draft, q, p, generator, given=given) for draft in drafts]

    overlap = [
        sum(min(a, b) for a, b in zip(*rows, strict=True))
        for rows in zip(TARGET_ROWS, DRAFT_ROWS, strict=False)
    ]
    lengths = [1 - overlap[0], overlap[0] * (1 - overlap[1]), overlap[0] * overlap[1]]
    came = [sum(len(o) == n for o in outputs) for n in (1, 2, 3)]
    panels = []
    for place, row in enumerate(TARGET_ROWS):
        tokens = Counter(o[place] for o in outputs if len(o) > place)
        counts = [tokens[token] for token in range(len(row))]
        panels.append((place, counts, row))
    names = ("token 0 of the output", "token 1 of the output", "token 2: the bonus token")
    figure = pictures.distributions(
        [
            (name, DRAFT_ROWS[i] if i < 2 else None, row,
             [c / max(1, sum(counts)) for c in counts])
            for name, (i, counts, row) in zip(names, panels, strict=True)
        ],
        f"What came in {SAMPLES:,} steps, beside what the target says",
    )  # fmt: skip
    alt = "For each token of the output: the draft's, the target's and the obtained distribution."

    def wrong(says: str, look: str) -> Mismatch:
        return Mismatch(says, input=given, look=look, figure=figure, alt=alt)

    if chi_square_p(came, [SAMPLES * share for share in lengths]) < LEVEL:
        for guess in range(2):
            reached = sum(came[guess:])
            rate = sum(came[guess + 1 :]) / max(1, reached)
            if abs(rate - overlap[guess]) > 0.02:
                often = "often" if rate > overlap[guess] else "seldom"
                raise wrong(
                    f"Guess {guess} is accepted too {often}: in {rate:.0%} of the steps that reach "
                    f"it; expected {overlap[guess]:.0%}.",
                    "Accept if `uniform < p / q`, with `uniform` fresh from `torch.rand`.",
                )
        raise wrong(
            f"Guesses are accepted in other proportions than expected: {came} steps gave 1, 2 and "
            f"3 tokens; expected about {[round(SAMPLES * share) for share in lengths]}.",
            "Accept if `uniform < p / q`, with `uniform` fresh from `torch.rand`.",
        )
    for place, counts, row in panels:
        expected = [sum(counts) * share for share in row]
        if chi_square_p(counts, expected) < LEVEL:
            worst = max(range(len(row)), key=lambda t: abs(counts[t] - expected[t]))
            kind, look = "The bonus token", "Draw it from `target_probs[-1]`, just as it is."
            if place < 2:
                kind = f"Token {place} of the output"
                look = (
                    "Guesses are accepted as often as they should be, so the tokens drawn in their "
                    "place are at fault: `recovered_probs`, and a fresh random number."
                )
            raise wrong(
                f"{kind} is not distributed as the target says: token {worst} came in "
                f"{counts[worst] / sum(counts):.1%}; expected {row[worst]:.1%}.",
                look,
            )
    _judge_certain_guesses(function)
    return Passed(
        f"Over {SAMPLES:,} steps, each token is distributed as the target says, although the "
        f"guesses came from other distributions. {overlap[0]:.1%} and {overlap[1]:.1%} of the "
        f"guesses should be accepted; yours accepted {(came[1] + came[2]) / SAMPLES:.1%} and "
        f"{came[2] / (came[1] + came[2]):.1%}.",
        figure, alt,
    )  # fmt: skip


def _judge_certain_guesses(function: Sampler) -> None:
    """Guesses without `draft_probs`, as the n-gram proposer makes them."""
    generator = torch.Generator().manual_seed(8)
    p = torch.tensor(TARGET_ROWS[:2])
    count = SAMPLES // 4
    tokens = Counter(call(function, [2], None, p, generator)[0] for _ in range(count))
    counts, row = [tokens[token] for token in range(4)], TARGET_ROWS[0]
    if chi_square_p(counts, [count * share for share in row]) < LEVEL:
        raise Mismatch(
            "Without `draft_probs`, the output is not distributed as the target says.",
            input=f"{count:,} steps, guess [2], draft_probs None, target_probs "
            f"{[list(r) for r in TARGET_ROWS[:2]]}",
            look="The guess is certain: its q is 1, and 0 for all other tokens.",
            figure=pictures.distributions(
                [("token 0 of the output", None, row, [c / count for c in counts])],
                "What came, beside what the target says",
            ),
            alt="The target's distribution, and the obtained one.",
        )  # fmt: skip
