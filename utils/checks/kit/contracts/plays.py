"""How a class is judged: a play tells a story to a right class, then to the learner's, in lockstep.

The play is written once. What it shows of the right class is what the learner's class must show.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.faults import Fault, Raised, attempt
from utils.checks.kit.contracts.guards import as_at_first, copied, same

Show = Callable[[Any], str]
Picture = Callable[[Any, Any], tuple[Figure | None, str]]  # of what is expected, and what came
Play = Callable[["Stage", Any, Any], None]


NOTHING = "nothing"
BEHIND = 20  # plays, one after another, to see whether something outlives the first


class Over(BaseException):
    """Ends a play at its first fault. Not an Exception: a learner's `except` must not take it."""


class Seen(NamedTuple):
    clause: str
    value: Any


class Stage:
    """Where a play is given. Everything of the learner's is called and read through it.

    Args:
        script: what was seen of the right class; None while that one plays
    """

    def __init__(self, script: list[Seen] | None = None) -> None:
        self._script = script
        self._steps: list[str] = []
        self.seen: list[Seen] = []
        self.fault: Fault | None = None

    def step(self, words: str) -> None:
        """Name the next step of the story, as the feedback will tell it."""
        self._steps.append(words)

    def now(self, words: str) -> None:
        """Name the present step, in place of all before it."""
        self._steps = [words]

    def refused(self) -> None:
        """Say of the last step that it was refused, as it should be: the story goes on."""
        self._steps[-1] += " (refused)"

    def call(self, owner: Any, name: str, *args: Any, **named: Any) -> Any:
        """Call a method: what it returns, or `Raised`. Arguments that it changes are seen."""
        return self.do(lambda *a, **n: getattr(owner, name)(*a, **n), *args, **named)

    def do(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a function, or make an object of a class: as `call`."""
        given = (*args, *named.values())
        before = copied(given, objects=False)
        got = attempt(function, *args, **named)
        self._go_on()
        pairs = zip(before, given, strict=True)
        kept = [same(old, new, objects=False) for old, new in pairs]
        changed = [f"argument {n} is changed" for n, is_kept in enumerate(kept, 1) if not is_kept]
        self.see("changes", changed, lambda which: ", ".join(which) or "arguments as before")
        return got

    def read(self, owner: Any, name: str) -> Any:
        """Read an attribute or property: its value, or `Raised`."""
        got = attempt(getattr, owner, name)
        self._go_on()
        if callable(got):
            self.blame("method", "a value", f"`{name}` is a method")
        return got

    def see(
        self,
        clause: str,
        value: Any,
        show: Show = shown,
        picture: Picture | None = None,
        look: str = "",
    ) -> None:
        """Show a value; the learner's must equal the right class's at the same place.

        Args:
            clause: of the contract, as in `Contract.clauses`
            show: the value in words
            picture: of both values, for the feedback
        """
        self.seen.append(Seen(clause, copied(value, objects=False)))
        if self._script is None:
            return
        number = len(self.seen) - 1
        want = self._script[number] if number < len(self._script) else Seen(clause, NOTHING)
        if want.clause != clause:  # the play took another way: something is missing here, or more
            self.blame(want.clause, want.value, f"{clause}: {_words(show, value)}")
        if not _equal(want.value, value):
            self.blame(clause, want.value, value, show, picture, look)

    def expect(
        self,
        clause: str,
        expected: Any,
        got: Any,
        show: Show = shown,
        picture: Picture | None = None,
        look: str = "",
    ) -> None:
        """As `see`, where the play itself knows what is right."""
        if not _equal(expected, got):
            self.blame(clause, expected, got, show, picture, look)

    def blame(
        self,
        clause: str,
        expected: Any,
        got: Any,
        show: Show = shown,
        picture: Picture | None = None,
        look: str = "",
    ) -> None:
        """End the play with a fault."""
        raised = isinstance(got, Raised)
        wanted, came = _words(show, expected), _words(show, got)
        if wanted == came:  # of two large tensors, the first number that differs
            wanted, came = shown(expected, got), shown(got, expected)
        says = f"Expected a {wanted}." if isinstance(expected, Raised) else ""
        self.fault = Fault(
            clause,
            ", ".join(self._steps),
            expected,
            got,
            says=got.says if raised else says or difference(expected, got),
            look=got.look if raised else look,
            words=(wanted, came),
            picture=picture and functools.partial(picture, expected, got),
        )
        raise Over

    def end(self) -> None:
        """All that the right class showed must have been seen."""
        for want in (self._script or [])[len(self.seen) : len(self.seen) + 1]:
            self.blame(want.clause, want.value, NOTHING)

    def _go_on(self) -> None:
        """A fault that was found inside the learner's call ends the play, even if swallowed."""
        if self.fault is not None:
            raise Over


class InLockstep:
    """An answer must show, in a play, what a right class (or function) shows."""

    keeps_from_call_to_call = True  # what an answer keeps in its class is there in the next play

    def __init__(self, play: Play, right: Any) -> None:
        self._play, self._right = play, right

    def tell(self, case: Any) -> str:
        return str(case)

    def expect(self, case: Any) -> list[Seen]:
        stage = Stage()
        self._play(stage, self._right, case)
        return stage.seen

    def fault(self, answer: Any, case: Any, expected: list[Seen]) -> Fault | None:
        as_at_first(answer)
        return self._played(answer, case, expected)

    def fault_behind_others(
        self, answer: Any, calls: Sequence[tuple[Any, list[Seen]]]
    ) -> tuple[int, Fault] | None:
        """As `fault`, but what the answer has kept from other plays stays; a few of them will do.

        Returns:
            Which play, and what is wrong in it.
        """
        for number, (case, expected) in enumerate(calls[:BEHIND]):
            fault = self._played(answer, case, expected)
            if fault is not None:
                return number, replace(fault, clause="outlives", says="", look="")
        return None

    def _played(self, answer: Any, case: Any, expected: list[Seen]) -> Fault | None:
        stage = Stage(expected)
        with contextlib.suppress(Over):
            self._play(stage, answer, case)
            stage.end()
        return stage.fault


def _words(show: Show, value: Any) -> str:
    """A wrong value may be one that `show` was not made for."""
    with contextlib.suppress(Exception):
        return str(value) if isinstance(value, Raised) else show(value)
    return shown(value)


def _equal(want: Any, value: Any) -> bool:
    if isinstance(want, Raised) or isinstance(value, Raised):
        return bool(want == value)
    return not difference(want, value)
