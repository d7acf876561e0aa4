"""The first place where an answer leaves its contract, and calls that cannot break the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.feedback import WHERE_TO_LOOK
from utils.checks.kit.patience import TimeUp, limit
from utils.checks.kit.runner import NO_END, NO_END_LOOK, Mismatch, NotWritten, call


class NoEnd(Exception):
    """Stands for the error of code that was broken off."""


@dataclass(frozen=True)
class Raised:
    """Stands for a value where an error came instead, in words that name the learner's line."""

    error: type[BaseException]
    says: str = ""
    look: str = ""
    words: tuple[str, str] | None = None  # what was expected and what came, if a check says so

    def __eq__(self, other: object) -> bool:
        """Equal if one is a kind of the other: a subclass of ValueError is a ValueError."""
        if not isinstance(other, Raised):
            return False
        return issubclass(self.error, other.error) or issubclass(other.error, self.error)

    def __hash__(self) -> int:
        return hash(Raised)

    def __str__(self) -> str:
        return {NoEnd: "no end", Mismatch: "no result"}.get(self.error, self.error.__name__)


@dataclass(frozen=True)
class Fault:
    """What is wrong with an answer on one input.

    Args:
        clause: the part of the contract that is broken; the words for it are a `Clause`'s
        where: in which step of a story, or "" in a single call
        got: what came; it is also what tells known mistakes apart
        says: a sentence about this very difference, for clauses that quote it
        look: where to look, if this is known better here than in the clause
        words: `expected` and `got` as the feedback shows them, if not by `shown`
        picture: draws a figure and its words, when the feedback is written
    """

    clause: str
    where: str = ""
    expected: Any = None
    got: Any = None
    says: str = ""
    look: str = ""
    words: tuple[str, str] | None = None
    picture: Callable[[], tuple[Figure | None, str]] | None = field(default=None, compare=False)

    @property
    def never_ended(self) -> bool:
        return isinstance(self.got, Raised) and self.got.error is NoEnd


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the learner's code; an error, or no end, becomes a `Raised`."""
    try:
        with limit():
            return call(function, *args, **kwargs)
    except NotWritten:
        raise
    except TimeUp:
        return Raised(NoEnd, NO_END, NO_END_LOOK)
    except SystemExit:
        return Raised(SystemExit, "Your code ends Python (`exit`).", "`return` ends a function.")
    except Mismatch as wrong:
        error = type(wrong.__context__) if wrong.__context__ is not None else Mismatch
        end = "" if wrong.headline.endswith((".", "!", "?")) else "."
        said = dict(wrong.details)
        words = (said["Expected"], said["Yours"]) if {"Expected", "Yours"} <= said.keys() else None
        return Raised(error, wrong.headline + end, said.get(WHERE_TO_LOOK, ""), words)
