"""Exercise 5: the rejection sampler, judged by all that it can do with its random numbers.

First single steps, in which each way that the dice can fall is walked (`dice.py`): so the
probability of each outcome is exact. What can't be walked is judged by many draws.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch

from utils.checks.kit.contracts import Fault, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first, copied, same
from utils.checks.kit.contracts.int_lists import not_ints
from utils.checks.lab_07.dice import Dice, runs
from utils.checks.lab_07.laws import Law, Outcome, Step, exact_law, in_words
from utils.checks.lab_07.many_steps import too_far

MOST_RUNS = 400  # of a step; a right sampler takes less
DRAWS = 60  # of a step, if the dice cannot be scripted
EXACT = 1e-5
SQUARE = 80_000  # numbers in one tensor; the largest step with 300 tokens has fewer by far
# Uniform numbers at both ends of [0, 1), which are as possible as the rest; tokens likewise.
ENDS = ((0.0, False), (1 - 2**-24, True))


class Came(NamedTuple):
    """What came of a step.

    Args:
        law: the share of each outcome; empty if not all ways were walked
        seen: outcomes
        exact: no chance was in it
    """

    law: Law
    seen: set[Outcome]
    exact: bool


class _Wrong(Exception):
    """A fault that shows in a single run."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault


class _Trial:
    """A sampler on one step, with a generator that starts anew."""

    def __init__(self, answer: Any, step: Step) -> None:
        self._answer, self._mine, self._theirs = answer, list(step[:3]), copied(list(step[:3]))
        self.generator = torch.Generator().manual_seed(5)
        k, vocab_size = len(step.draft_token_ids), step.target_probs.shape[-1]
        # One number for each guess is compared with a threshold of its own.
        together = {0, 1, k} - {vocab_size}
        self.dice = Dice(self.generator, max(1, step.grid), together, step.rare)

    def run(self, scripted: bool = True) -> Outcome:
        with self.dice if scripted else contextlib.nullcontext():
            got = attempt(self._answer, *self._theirs, self.generator)
        if isinstance(got, Raised):
            raise _Wrong(Fault("raises", "", "a list of ints", got, got.says, got.look))
        for name, old, new in zip(Step._fields, self._mine, self._theirs, strict=False):
            if not same(old, new):
                words = ("as it was", "changed")
                raise _Wrong(Fault("changes", f"argument `{name}`", old, new, words=words))
        if self.dice.foreign:
            raise _Wrong(_not_from_generator("another generator is used"))
        if fault := not_ints(got):
            raise _Wrong(fault)
        return tuple(map(int, got))

    def walk(self) -> tuple[Law, bool]:
        """The share of each outcome, and whether all ways were walked."""
        law: Law = {}
        for outcome, probability in runs(self.dice, self.run, MOST_RUNS):
            law[outcome] = law.get(outcome, 0.0) + probability
            if self.dice.unknown:
                return law, False
        return law, not self.dice.next_script()

    def draw(self) -> Came:
        """With ordinary random numbers."""
        counts = Counter(self.run(scripted=False) for _ in range(DRAWS))
        return Came({o: n / DRAWS for o, n in counts.items()}, set(counts), exact=False)


class ByItsLaw:
    """A sampler must give each outcome with its probability, whatever its code looks like."""

    def tell(self, step: Step) -> str:
        return str(step)

    def expect(self, step: Step) -> Law:
        return exact_law(step)

    def fault(self, answer: Any, step: Step, expected: Law) -> Fault | None:
        as_at_first(answer)
        before = _global_states()
        try:
            fault = _difference(step, expected, came_of(answer, step))
        except _Wrong as wrong:
            return wrong.fault
        finally:
            same_states = _global_states() == before
        return fault if same_states else _not_from_generator("a global source of them is used")


def came_of(answer: Any, step: Step) -> Came:
    """What comes out, and how exactly that is known."""
    trial = _Trial(answer, step)
    dice, state = trial.dice, trial.generator.get_state()
    law, whole = trial.walk() if step.grid else ({}, False)
    seen = {outcome for outcome, share in law.items() if share > EXACT}
    for always, last in ENDS if step.grid else (*ENDS, (0.3, True), (0.7, False)):
        if not dice.unknown:
            dice.begin([], always, last)
            seen.add(trial.run())
    if dice.largest > SQUARE and step.target_probs.shape[-1] == 300:
        says = f"a tensor of {dice.largest:,} numbers, for a vocabulary of 300 tokens"
        raise _Wrong(Fault("square", "", "a few numbers for each token", says))
    if dice.unknown:
        return trial.draw()
    if not torch.equal(trial.generator.get_state(), state):
        raise _Wrong(_not_from_generator("`generator` is seeded anew"))
    return Came(law if whole else {}, seen, exact=True)


def _not_from_generator(says: str) -> Fault:
    return Fault("generator", "", "all random numbers from `generator`", says)


def _global_states() -> Any:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def _difference(step: Step, want: Law, came: Came) -> Fault | None:
    """The first difference: outcomes that cannot be, acceptance guess by guess, tokens."""
    draft = tuple(step.draft_token_ids)
    for outcome in sorted(came.seen - want.keys(), key=lambda o: (len(o), o)):
        form = draft[: len(outcome) - 1] == outcome[:-1] and 1 <= len(outcome) <= len(draft) + 1
        clause, why = _why_not(draft, outcome, want) if form else ("form of the step", "")
        says = f"Your function returned `{list(outcome)}`, which can't be"
        says += f": {why}." if form else "."
        words = in_words(want), f"{list(outcome)}"
        return Fault(clause, "", want, sorted(came.seen), says, words=words)
    if not came.law:
        return None
    words = in_words(want), in_words(came.law)
    if not came.exact:
        counts = {outcome: share * DRAWS for outcome, share in came.law.items()}
        bad = too_far(counts, {o: share * DRAWS for o, share in want.items()})
        return Fault("law", f"{DRAWS} times", want, came.law, words=words) if bad else None
    for i in range(len(draft)):
        expected, got = (_share(law, draft[:i], draft[: i + 1]) for law in (want, came.law))
        if abs(expected - got) > EXACT:
            often = "often" if got > expected else "seldom"
            says = f"Guess {i} is accepted too {often}: with probability {got:.4g}, " + (
                f"instead of {expected:.4g}."
            )
            return Fault("accepted", "", want, came.law, says, words=words)
    for outcome in sorted(want.keys() | came.law.keys(), key=lambda o: (len(o), o)):
        expected, got = want.get(outcome, 0.0), came.law.get(outcome, 0.0)
        if abs(expected - got) > EXACT:
            clause = "bonus" if len(outcome) == len(draft) + 1 else "recovered"
            says = f"`{list(outcome)}` comes with probability {got:.4g} instead of {expected:.4g}."
            return Fault(clause, "", want, came.law, says, words=words)
    return None


def _why_not(draft: Outcome, outcome: Outcome, want: Law) -> tuple[str, str]:
    """An outcome has the right form, and is impossible. The clause, and the reason."""
    last = len(outcome) - 1
    here = sorted({o[last] for o in want if len(o) > last and o[:last] == outcome[:last]})
    if not here:
        return "accepted", f"guess {last - 1} can only be rejected here"
    if last == len(draft):
        return "impossible", f"the bonus token can only be one of {here}"
    rejected = sorted({o[last] for o in want if len(o) == last + 1 and o[:last] == outcome[:last]})
    if not rejected and outcome == draft:
        return "impossible", "after the last accepted guess, the bonus token is missing"
    if not rejected:
        return "accepted", f"guess {last} can only be accepted here"
    return "impossible", f"the token drawn instead of guess {last} can only be one of {rejected}"


def _share(law: Law, reached: Outcome, accepted: Outcome) -> float:
    """How probable it is that a guess is accepted, if those before it are."""
    total = sum(share for o, share in law.items() if o[:-1][: len(reached)] == reached)
    good = sum(share for o, share in law.items() if o[:-1][: len(accepted)] == accepted)
    return good / total if total > EXACT else 0.0


BY_ITS_LAW = ByItsLaw()
