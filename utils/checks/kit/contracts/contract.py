"""An exercise, described as a contract; and the check that is made of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from matplotlib.figure import Figure

from utils.checks.kit.contracts.choices import Choices
from utils.checks.kit.contracts.differences import alike, shown
from utils.checks.kit.contracts.faults import Fault, Raised
from utils.checks.kit.contracts.functions import Returns
from utils.checks.kit.contracts.guards import as_at_first, held_output
from utils.checks.kit.contracts.plays import InLockstep
from utils.checks.kit.contracts.shrinking import Found, choices_of, sample, shrunk, wrong_inputs
from utils.checks.kit.patience import patience_of, second_chance, watching
from utils.checks.kit.runner import Mismatch, NotWritten, Passed
from utils.timing import one_thread

COMPARED = 60  # inputs on which an answer is compared with known mistakes
HURRIED_TICKS = 3  # patience while smaller inputs are tried
SURELY_TICKS = 8  # as many on one where an answer didn't end in a hurry: is it slow, or endless?
ENDLESS_S = 0.4  # of the processor, to find a smaller input on which an answer doesn't end


class Judge(Protocol):
    """Says what is wrong with an answer on one input; see `Returns` and `InLockstep`."""

    def tell(self, case: Any) -> str:
        """The input in words."""

    def expect(self, case: Any) -> Any:
        """What a right answer gives; found once for each input."""

    def fault(self, answer: Any, case: Any, expected: Any) -> Fault | None:
        """The first fault, or None."""


@dataclass(frozen=True)
class Clause:
    """What to say when this part of the contract is broken.

    Both texts may quote {says} (a sentence about the difference), {expected}, {got}, and {reason}:
    the words with which the oracle refuses the input. Of an error, its own words are said, unless
    the clause quotes {says}.
    """

    says: str
    look: str = ""


# Of all contracts, unless they say it in other words.
ALWAYS = {
    "raises": Clause("{says}"),
    "refuses": Clause("This input must be refused with a {expected}."),
    "changes": Clause(
        "Your code changes in place what it was given. The caller still needs it.",
        "Compute a new value, or begin with a copy.",
    ),
    "method": Clause("{got}; it is read without parentheses.", "Put `@property` above its `def`."),
    "shares": Clause(
        "What you return lies in the memory of an argument: a later change of one "
        "changes the other.",
        "Return a copy.",
    ),
    "again": Clause(
        "The first call is right, but a second one with the same arguments isn't. Something is "
        "kept from call to call, or left to chance.",
        "A default such as `x=[]` is one list for all calls. And `torch.empty` holds whatever was "
        "in memory before.",
    ),
    "kept": Clause(
        "Right when it is called for the first time; wrong behind calls with other "
        "arguments. Something is kept from call to call.",
        "A default such as `x=[]`, or a variable outside of the function, is one for all calls.",
    ),
    "outlives": Clause(
        "The first time, all is right; behind other stories, made anew, it isn't. Something "
        "outlives the object, or the call, that it belongs to.",
        "What stands in the class body, in a default such as `x=[]`, or in a variable outside is "
        "one for all.",
    ),
    "earlier": Clause(
        "What was returned is changed by later calls with other arguments.",
        "Make a new value in each call; nothing that is kept outside of it.",
    ),
}


@dataclass(frozen=True, eq=False)
class Mistake:
    """A mistake that learners make: words for it, and answers that make it."""

    says: str
    look: str
    answers: tuple[Any, ...]


def mistake(says: str, look: str, *answers: Any) -> Mistake:
    """A `Mistake` made by one answer or several."""
    return Mistake(says, look, answers)


@dataclass(frozen=True, eq=False)
class Contract:
    """An exercise.

    Args:
        inputs: draws one input; all that the contract allows must be possible
        judge: `Returns(oracle)` for a function, `InLockstep(play, right_class)` for a class
        passed: what to say of a right answer, or how to find the words
        clauses: words for each part of the contract, by name; without, the difference speaks
        mistakes: that learners really make; one is named if it does what the answer does
        tell: an input in words, if the judge's own words won't do
        examples: so many inputs, or until so many seconds are over
    """

    inputs: Callable[[Choices], Any]
    judge: Judge
    passed: str | Callable[[Any], str | Passed]
    clauses: Mapping[str, Clause] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()
    tell: Callable[[Any], str] | None = None
    examples: int = 150
    seconds: float = 20.0

    def check(self, answer: Any) -> str | Passed:
        """Words of success; or raise `Mismatch` about the smallest input that shows a fault."""

        def wrong(case: Any) -> Fault | None:
            return self._fault(answer, case, self.judge.expect(case))

        with one_thread(), held_output(), watching():
            drawn = wrong_inputs(self.inputs, wrong, self.examples, self.seconds)
            sure = (self._surely(wrong, found) for found in drawn)
            found = next(filter(None, sure), None) or self._behind_others(answer, wrong)
            if found is None:
                return self.passed if isinstance(self.passed, str) else self.passed(answer)
            if not found.fault.never_ended:
                with patience_of(HURRIED_TICKS):
                    found = self._smallest(wrong, found, self.seconds)
            known = self.known_mistake(answer, found)
        with one_thread(), held_output() as held, patience_of(HURRIED_TICKS):
            wrong(found.case)
        mismatch = self._in_words(found, known)
        if held.text.strip():
            mismatch.details += (("Your code prints on this input", held.shown()),)
        raise mismatch

    def _surely(self, wrong: Callable[[Any], Fault | None], found: Found[Any]) -> Found[Any] | None:
        """`found`, or a smaller one; None if the answer was only slow.

        What is endless mostly is so on a small input, too, which costs little; what is slow ends
        there. Where no smaller input shows it, the answer gets a second chance.
        """
        if not found.fault.never_ended or not any(found.choices.row):
            return found
        with patience_of(1):
            smaller = self._smallest(wrong, found, ENDLESS_S)
        if smaller is not found:
            with patience_of(SURELY_TICKS):
                if _never_ended(wrong(smaller.case)):
                    return smaller
        with second_chance():
            fault = wrong(found.case)
        return found._replace(fault=fault) if fault is not None else None

    def _behind_others(
        self, answer: Any, wrong: Callable[[Any], Fault | None]
    ) -> Found[Any] | None:
        """Raise `Mismatch` if calls disturb later ones. Until now each began anew.

        Returns:
            An input that wasn't tried yet, and is wrong by itself.
        """
        judge = self.judge
        if not isinstance(judge, Returns | InLockstep) or not judge.keeps_from_call_to_call:
            return None
        as_at_first(answer)
        with second_chance():
            behind = judge.fault_behind_others(answer, self._compared)
            if behind is None:
                return None
            number, fault = behind
            choices = choices_of(number)
            case = self.inputs(choices)
            alone = wrong(case)
        if alone is not None:
            return Found(case, alone, choices)
        raise self._in_words(Found(case, fault, choices), None)

    def known_mistake(self, answer: Any, found: Found[Any]) -> Mistake | None:
        """The mistake that has the same fault on the smallest input, and on all others tried."""
        expected = self.judge.expect(found.case)
        left = [
            (mistake, wrong)
            for mistake in self.mistakes
            for wrong in mistake.answers
            if wrong is answer or alike(found.fault, self._fault(wrong, found.case, expected))
        ]
        # An answer that is a known mistake itself does the same as itself. All that is left to see
        # is whether one that stands before it does so, too, and would be named first.
        own = next((mistake for mistake, wrong in left if wrong is answer), None)
        if own is not None:
            left = list(itertools.takewhile(lambda both: both[0] is not own, left))
        compared = self._compared if left and not found.fault.never_ended else []
        for number, (case, expected) in enumerate(compared):
            faults = [self._fault_of_mistake(wrong, number) for _, wrong in left]
            if own is not None:
                fault = self._fault_of_mistake(answer, number)
            else:
                fault = self._fault_of_answer(answer, case, expected, faults)
            left = [both for both, of in zip(left, faults, strict=True) if alike(fault, of)]
            if not left:
                break
        return left[0][0] if left else own

    def _fault_of_answer(
        self, answer: Any, case: Any, expected: Any, faults: list[Fault | None]
    ) -> Fault | None:
        """What an answer shows on one of the other inputs; known mistakes show `faults` there."""
        fault = None
        with contextlib.suppress(NotWritten):
            with patience_of(HURRIED_TICKS):
                fault = self._fault(answer, case, expected)
            if _never_ended(fault) and not all(map(_never_ended, faults)):
                fault = self._fault(answer, case, expected)  # slow, perhaps, as the mistake is
        return fault

    def _fault_of_mistake(self, wrong: Any, number: int) -> Fault | None:
        """What a known mistake shows on one of the other inputs: the same for each answer."""
        known = self._of_mistakes.setdefault(wrong, {})
        if number not in known:
            case, expected = self._compared[number]
            known[number] = self._fault(wrong, case, expected)
        return known[number]

    def _fault(self, answer: Any, case: Any, expected: Any) -> Fault | None:
        torch.default_generator.manual_seed(0)
        try:
            return self.judge.fault(answer, case, expected)
        except (Mismatch, NotWritten):
            raise
        except Exception as error:  # such as an `__eq__` that fails; right answers never come here
            says = f"Your answer cannot be checked: {type(error).__name__}: {error}"
            return Fault("cannot be checked", "", "", Raised(type(error), says), says)

    def _smallest(
        self, wrong: Callable[[Any], Fault | None], found: Found[Any], seconds: float
    ) -> Found[Any]:
        hangs = found.fault.never_ended

        def still(case: Any) -> Fault | None:
            fault = None
            with contextlib.suppress(NotWritten):  # another fault than the one that was found
                fault = wrong(case)
            return fault if fault is not None and fault.never_ended == hangs else None

        return shrunk(self.inputs, still, found, seconds, getattr(self.judge, "costs_much", False))

    def _in_words(self, found: Found[Any], known: Mistake | None) -> Mismatch:
        fault = found.fault
        clause = (ALWAYS | dict(self.clauses)).get(fault.clause, Clause("{says}"))
        unforeseen = isinstance(fault.got, Raised) and fault.says and "{says}" not in clause.says
        says = known.says if known else "{says}" if unforeseen else clause.says
        if unforeseen and not known and isinstance(fault.expected, Raised):
            says += " Expected a {expected}."
        look = known.look if known else fault.look or clause.look
        expected, got = fault.words or (
            shown(fault.expected, fault.got),
            shown(fault.got, fault.expected),
        )
        reason = fault.expected.says if isinstance(fault.expected, Raised) else ""
        quoted = {"{says}": fault.says, "{expected}": expected, "{got}": got, "{reason}": reason}
        for name, text in quoted.items():
            says, look = says.replace(name, text), look.replace(name, text)
        figure: Figure | None = None
        alt = ""
        with contextlib.suppress(Exception):  # a picture must not hide the words
            if fault.picture is not None:
                figure, alt = fault.picture()
        told = (self.tell or self.judge.tell)(found.case)
        return Mismatch(
            says,
            input="; ".join(part for part in (told, fault.where) if part),
            expected=expected,
            got=got,
            look=look,
            figure=figure,
            alt=alt,
        )

    @functools.cached_property
    def _of_mistakes(self) -> dict[Any, dict[int, Fault | None]]:
        return {}

    @functools.cached_property
    def _compared(self) -> list[tuple[Any, Any]]:
        cases = sample(self.inputs, COMPARED)
        return [(case, self.judge.expect(case)) for case in cases]


def _never_ended(fault: Fault | None) -> bool:
    return fault is not None and fault.never_ended
