"""How a function is judged: by what it returns, and by what it leaves as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.faults import Fault, Raised, attempt
from utils.checks.kit.contracts.guards import as_at_first, copied, same, share_memory

# Says what is wrong with an answer, where more than one is right: (expected, got, given).
Wrong = Callable[[Any, Any, "Given"], Fault | None]


class Given:
    """The arguments of one call; by position, unless named."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.args, self.named = args, named

    def copied(self) -> Given:
        return Given(*map(copied, self.args), **{k: copied(v) for k, v in self.named.items()})

    def values(self) -> list[Any]:
        return [*self.args, *self.named.values()]

    def __repr__(self) -> str:
        return f"Given{(*self.args, *self.named.items())}"


class Returns:
    """An answer must return what the oracle returns on the same input.

    Its clauses are "returns" (another value), "raises" (an error), "refuses" (none, where the
    oracle raises a ValueError), "changes" (an argument), "shares", "again", "kept" and "earlier".

    Args:
        oracle: right, and found in another way than the learner's
        rtol, atol: as in `difference`
        own: what is returned must share no memory with an argument
        wrong: replaces the comparison where more than one answer is right
    """

    keeps_from_call_to_call = True  # what an answer keeps is there in the next call

    def __init__(
        self,
        oracle: Callable[..., Any],
        *,
        rtol: float = 1e-4,
        atol: float | None = None,
        own: bool = False,
        wrong: Wrong | None = None,
    ) -> None:
        self._oracle, self._rtol, self._atol = oracle, rtol, atol
        self._own, self._wrong = own, wrong
        self._names = list(inspect.signature(oracle).parameters)

    def tell(self, given: Given) -> str:
        return ", ".join(f"{n} {shown(v).replace('`', '')}" for n, v in self._named(given))

    def expect(self, given: Given) -> Any:
        mine = given.copied()
        try:
            return self._oracle(*mine.args, **mine.named)
        except ValueError as error:
            return Raised(type(error), str(error))

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        as_at_first(answer)
        theirs, got, fault = self._called(answer, given, expected)
        if fault is not None:
            return fault
        for (name, old), new in zip(self._named(given), theirs.values(), strict=True):
            if not same(old, new):
                return Fault("changes", f"argument `{name}`", old, new, words=_of_flag(old, new))
            if self._own and share_memory(got, new):
                return Fault("shares", "", "memory of its own", f"that of `{name}`")
        _, got, fault = self._called(answer, given, expected)
        if fault is None or fault.never_ended:  # too slow to be called twice: nothing is kept
            return fault
        return Fault("again", "the second call", expected, got)

    def fault_behind_others(
        self, answer: Any, calls: Sequence[tuple[Given, Any]]
    ) -> tuple[int, Fault] | None:
        """As `fault`, but what the answer has kept from calls with other arguments stays.

        Args:
            calls: arguments of each call, and what it is to return

        Returns:
            Which call, and what is wrong with it.
        """
        results = []
        for number, (given, expected) in enumerate(calls):
            torch.default_generator.manual_seed(0)
            _, got, fault = self._called(answer, given, expected)
            if fault is not None:
                return number, Fault("kept", "behind calls with other arguments", expected, got)
            if isinstance(got, Tensor | list | dict | set | tuple):
                results.append((number, given, expected, got))
        for number, given, expected, got in results:
            if self._of_result(expected, got, given) is not None:
                return number, Fault("earlier", "before calls with other arguments", expected, got)
        return None

    def _called(self, answer: Any, given: Given, expected: Any) -> tuple[Given, Any, Fault | None]:
        """The copies that the answer was given, what came, and what is wrong with it."""
        theirs = given.copied()
        got = attempt(answer, *theirs.args, **theirs.named)
        return theirs, got, self._of_result(expected, got, given)

    def _of_result(self, expected: Any, got: Any, given: Given) -> Fault | None:
        if isinstance(expected, Raised):
            if isinstance(got, Raised) and issubclass(got.error, expected.error):
                return None
            # Another error, such as one of Python's own, is told in its own words.
            says, look = (got.says, got.look) if isinstance(got, Raised) else ("", "")
            return Fault("refuses", "", expected, got, says, look)
        if isinstance(got, Raised):
            return Fault("raises", "", expected, got, got.says, got.look, got.words)
        if self._wrong is not None:
            return self._wrong(expected, got, given)
        says = difference(expected, got, self._rtol, self._atol)
        return Fault("returns", "", expected, got, says) if says else None

    def _named(self, given: Given) -> list[tuple[str, Any]]:
        return [*zip(self._names, given.args, strict=False), *given.named.items()]


def _of_flag(old: Any, new: Any) -> tuple[str, str] | None:
    """Words for a tensor whose numbers are as before, but not whether it needs a gradient."""
    if not isinstance(old, Tensor) or old.requires_grad == new.requires_grad:
        return None
    return f"`requires_grad` is {old.requires_grad}", f"`requires_grad` is {new.requires_grad}"
