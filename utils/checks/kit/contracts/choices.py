"""What the inputs of a check are drawn with: each choice is noted as a number.

An input is made from a row of small numbers, and can be made again from it. A smaller row makes a
smaller input: that is how `shrinking.py` finds the smallest one that shows a fault. (The idea is
Hypothesis's; here it needs no database, no settings and no package.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Draws at random from `source`, or without one again from a `row` of numbers, then zeros.

    In each choice the number 0 stands for what is simplest.

    Args:
        most: no number above it, for inputs that shall be small
    """

    def __init__(
        self, source: random.Random | None = None, row: Sequence[int] = (), most: int | None = None
    ) -> None:
        self._source, self._given, self._most = source, row, most
        self.row: list[int] = []
        self.items: list[tuple[int, int]] = []  # where each item of a list stands in the row

    def integer(self, low: int, high: int) -> int:
        """A whole number; `low` is the simplest."""
        return low + self._note(self._draw(high - low), high - low)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest. To make one likely, name it twice."""
        return options[self.integer(0, len(options) - 1)]

    def rarely(self, one_in: int) -> bool:
        """True once in `one_in` times; False is the simplest."""
        return self.integer(0, one_in - 1) == one_in - 1

    def size(self, low: int, high: int, small: int = 5) -> int:
        """Mostly within `small` of `low`; often beside a power of two; sometimes any."""
        if self._source is None or self._most is not None:
            return self.integer(low, high)
        kind = self._source.choice(("small", "small", "edge", "any"))
        edges = [2**k + d for k in range(3, 40) for d in (-1, 0, 1) if low <= 2**k + d <= high]
        number = self._source.randint(low, high if kind == "any" else min(high, low + small))
        if kind == "edge" and edges:
            number = self._source.choice(edges)
        return low + self._note(number - low, high - low)

    def real(self, low: float, high: float, parts: int = 1000) -> float:
        """A number on a grid of so many parts."""
        return low + (high - low) * self.integer(0, parts) / parts

    def some(self, make: Callable[[], T], low: int, high: int) -> list[T]:
        """A list of `low` to `high` items, each length as likely. Shrinking strikes out items."""
        target = low + self._draw(high - low)
        made: list[T] = []
        while len(made) < high:
            start = len(self.row)
            if len(made) >= low:
                more = int(len(made) < target) if self._source is not None else self._draw(1)
                if not self._note(more, 1):
                    break
            made.append(make())
            self.items.append((start, len(self.row)))
        return made

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order; the given order is the simplest."""
        rest = list(items)
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in items]

    def _draw(self, most: int) -> int:
        if self._source is not None:
            return self._source.randint(0, most if self._most is None else min(most, self._most))
        return self._given[len(self.row)] if len(self.row) < len(self._given) else 0

    def _note(self, number: int, most: int) -> int:
        self.row.append(min(number, most))
        return self.row[-1]
