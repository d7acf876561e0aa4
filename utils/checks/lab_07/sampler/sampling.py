"""Exercise 5: the rejection sampler.

First single steps, in which each way that the dice can fall is walked (`dice.py`): so the
probability of each outcome is exact. Then many steps with ordinary random numbers.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from utils.checks.kit.contracts import Clause, Contract, Fault, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first, copied, same
from utils.checks.lab_07.sampler import many_steps
from utils.checks.lab_07.sampler.dice import Dice, runs
from utils.checks.lab_07.sampler.laws import Law, Outcome, Step, draw_step, exact_law, in_words
from utils.checks.lab_07.sampler.sampler_mistakes import MISTAKES, RESIDUAL, RULE
from utils.checks.lab_07.token_lists import not_ints

MOST_RUNS = 400  # of a step; a right sampler takes less
DRAWS = 100  # of a step, if the dice cannot be scripted
EXACT = 1e-5
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
            came = _law(answer, step)
        except _Wrong as wrong:
            return wrong.fault
        finally:
            same_states = _global_states() == before
        if not same_states:
            return _not_from_generator("a global source of random numbers is used")
        return _difference(step, expected, came)


def _law(answer: Any, step: Step) -> Came:
    """What comes out, and how exactly that is known."""
    generator = torch.Generator().manual_seed(5)
    dice, state = Dice(generator, max(1, step.grid)), generator.get_state()
    law: Law = {}
    given = [copied(list(step[:3])), list(step[:3])]

    def run() -> Outcome:
        theirs, mine = given
        with contextlib.nullcontext() if dice.unknown else dice:
            got = attempt(answer, *theirs, generator)
        outcome = _outcome(got)
        for name, old, new in zip(Step._fields, mine, theirs, strict=False):
            if not (torch.equal(old, new) if isinstance(old, Tensor) else same(old, new)):
                raise _Wrong(Fault("changes", f"argument `{name}`", old, new))
        if dice.foreign:
            raise _Wrong(_not_from_generator("another generator is used"))
        return outcome

    for outcome, probability in runs(dice, run, MOST_RUNS) if step.grid else ():
        law[outcome] = law.get(outcome, 0.0) + probability
        if dice.unknown:
            break
    whole = bool(step.grid) and not dice.next_script()
    seen = {outcome for outcome, share in law.items() if share > EXACT}
    ends = () if dice.unknown else ENDS if step.grid else (*ENDS, (0.3, True), (0.7, False))
    for always, last in ends:
        dice.begin([], always, last)
        seen.add(run())
    if not dice.unknown:
        if not torch.equal(generator.get_state(), state):
            raise _Wrong(_not_from_generator("`generator` is seeded anew"))
        return Came(law if whole else {}, seen, exact=True)
    draws = Counter(run() for _ in range(DRAWS))
    law = {outcome: count / DRAWS for outcome, count in draws.items()}
    return Came(law, set(law), exact=False)


def _outcome(got: Any) -> Outcome:
    if isinstance(got, Raised):
        raise _Wrong(Fault("raises", "", "a list of ints", got, got.says, got.look))
    if fault := not_ints(got):
        raise _Wrong(fault)
    return tuple(map(int, got))


def _not_from_generator(says: str) -> Fault:
    return Fault("generator", "", "all random numbers from `generator`", says)


def _global_states() -> Any:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def _difference(step: Step, want: Law, came: Came) -> Fault | None:
    """The first difference: outcomes that cannot be, acceptance guess by guess, tokens."""
    draft = tuple(step.draft_token_ids)
    for outcome in sorted(came.seen - want.keys(), key=lambda o: (len(o), o)):
        form = draft[: len(outcome) - 1] == outcome[:-1] and 1 <= len(outcome) <= len(draft) + 1
        clause = "impossible" if form else "form of the step"
        words = in_words(want), f"{list(outcome)}"
        says = f"`{list(outcome)}` came out, which cannot be"
        says += f": {_why_not(draft, outcome, want)}." if form else "."
        return Fault(clause, "", want, sorted(came.seen), says, words=words)
    if not came.law:
        return None
    words = in_words(want), in_words(came.law)
    if not came.exact:
        counts = {outcome: share * DRAWS for outcome, share in came.law.items()}
        bad = many_steps.too_far(counts, {o: share * DRAWS for o, share in want.items()})
        return Fault("law", f"{DRAWS} times", want, came.law, words=words) if bad else None
    for i in range(len(draft)):
        expected, got = (_share(law, draft[:i], draft[: i + 1]) for law in (want, came.law))
        if abs(expected - got) > EXACT:
            often = "often" if got > expected else "seldom"
            says = f"Guess {i} is accepted too {often}: with probability {got:.4g}; expected " + (
                f"{expected:.4g}."
            )
            return Fault("accepted", "", want, came.law, says, words=words)
    for outcome in sorted(want.keys() | came.law.keys(), key=lambda o: (len(o), o)):
        expected, got = want.get(outcome, 0.0), came.law.get(outcome, 0.0)
        if abs(expected - got) > EXACT:
            bonus = len(outcome) == len(draft) + 1
            says = f"`{list(outcome)}` comes with probability {got:.4g}; expected {expected:.4g}."
            return Fault("bonus" if bonus else "recovered", "", want, came.law, says, words=words)
    return None


def _why_not(draft: Outcome, outcome: Outcome, want: Law) -> str:
    """An outcome has the right form, and is impossible."""
    last = len(outcome) - 1
    here = sorted({o[last] for o in want if len(o) > last and o[:last] == outcome[:last]})
    if not here:
        return f"guess {last - 1} can only be rejected here"
    if last == len(draft):
        return f"the bonus token can only be one of {here}"
    rejected = sorted({o[last] for o in want if len(o) == last + 1 and o[:last] == outcome[:last]})
    if not rejected:
        return f"guess {last} can only be accepted here"
    return f"in place of guess {last}, what is drawn can only be one of {rejected}"


def _share(law: Law, reached: Outcome, accepted: Outcome) -> float:
    """How probable it is that a guess is accepted, if those before it are."""
    total = sum(share for o, share in law.items() if o[:-1][: len(reached)] == reached)
    good = sum(share for o, share in law.items() if o[:-1][: len(accepted)] == accepted)
    return good / total if total > EXACT else 0.0


ROW = "`target_probs[i]` and `draft_probs[i]` belong to `draft_token_ids[i]`."
REJECTION_SAMPLE = Contract(
    inputs=draw_step,
    judge=ByItsLaw(),
    passed=many_steps.judge,
    clauses={
        "none": Clause("Your function returned None.", "Every way through it ends in a list."),
        "form": Clause(
            "Your function returned {got}; expected a list of ints.",
            "`.item()` makes an int of a tensor with one number.",
        ),
        "changes": Clause(
            "Your function changes what it was given. The engine goes on using it.",
            "Begin with an empty list of your own; no `x[...] = y`.",
        ),
        "generator": Clause(
            "Not all random numbers come from `generator`: {got}.",
            "`torch.rand((), generator=generator)` and `torch.multinomial(probs, "
            "1, generator=generator)`; no `random`, no NumPy. A request with a "
            "seed must get the same answer each time.",
        ),
        "form of the step": Clause(
            "{says} Expected are the accepted guesses, from the first on, then one token.",
            "After a rejection: one recovered token, "
            "then return. After the last guess: one bonus token.",
        ),
        "impossible": Clause("{says}", f"{RESIDUAL} The bonus token: from `target_probs[k]`."),
        "law": Clause("The outcomes come in other proportions than expected.", RULE),
        "accepted": Clause("{says}", f"{RULE} {ROW}"),
        "recovered": Clause(
            "Guesses are accepted as often as they should be; the tokens drawn in "
            "their place are at fault. {says}",
            f"{RESIDUAL} {ROW}",
        ),
        "bonus": Clause(
            "The bonus token is not distributed as the target says. {says}",
            "Draw it from `target_probs[len(draft_token_ids)]`, just as it is.",
        ),
    },
    mistakes=MISTAKES,
    seconds=6.0,
)
