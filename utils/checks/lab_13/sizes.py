"""The smallest cache that finds enough: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.kit.contracts.faults import Raised


class Day(NamedTuple):
    """A day of requests: from each of these sizes on, so many more tokens are found."""

    most: int
    target: int
    gains: dict[int, int]

    def hits_with(self, num_blocks: int) -> int:
        return sum(gain for size, gain in self.gains.items() if size <= num_blocks)

    @property
    def answer(self) -> int | None:
        """Try all sizes at which something changes."""
        sizes = sorted({1, *(size for size in self.gains if size <= self.most)})
        return next((size for size in sizes if self.hits_with(size) >= self.target), None)

    @property
    def allowed(self) -> int:
        return self.most.bit_length() + 2

    def __str__(self) -> str:
        sizes = sorted({1, *(size for size in self.gains if size <= self.most)})
        found = ", ".join(f"{self.hits_with(size)} with {size}" for size in sizes[:8])
        more = " ..." if len(sizes) > 8 else ""
        return f"target {self.target}, most {self.most}; tokens found, by blocks: {found}{more}"


def draw_day(c: Choices) -> Day:
    most = c.size(1, 100_000)
    gains: dict[int, int] = {}

    def gain() -> None:
        size = most - c.integer(0, most) if c.rarely(2) else 1 + c.size(0, most - 1)
        gains[max(1, size)] = c.pick((1, 2, 100, 5000)) * c.integer(1, 9)

    c.some(gain, 0, 8)
    if c.rarely(4):  # each block finds something
        gains |= {size: c.integer(1, 3) for size in range(1, min(most, 60) + 1)}
    total, sizes = sum(gains.values()), sorted(gains)
    kind = c.pick(("all of it", "reached", "between", "none", "too much", "nearly too much"))
    at = sizes[c.integer(0, len(sizes) - 1)] if sizes else 1
    reached = sum(gains[size] for size in sizes if size <= at)
    target = {
        "all of it": total,
        "reached": reached,
        "between": max(0, reached - c.integer(0, 3)),
        "none": 0,
        "too much": 10 * total + 7,
        "nearly too much": total + 1,
    }[kind]
    return Day(most, target, gains)


def draw_days(c: Choices) -> list[Day]:
    """Mostly one; a second one finds what was kept from the first."""
    return c.some(lambda: draw_day(c), 1, 2)


def _play(stage: Stage, answer: Any, days: list[Day]) -> None:
    _replay(stage, answer, days[0], "")
    for day in days[1:]:
        stage.now("the second day")
        _replay(stage, answer, day, "again")


def _replay(stage: Stage, answer: Any, day: Day, again: str) -> None:
    asked: list[int] = []

    def hits_with(num_blocks: Any) -> int:
        number = isinstance(num_blocks, Integral) and not isinstance(num_blocks, bool)
        if not number or not 1 <= num_blocks <= day.most:
            stage.blame("asks", f"sizes from 1 to {day.most}", f"`hits_with({num_blocks!r})`")
        asked.append(num_blocks)
        if len(asked) > 3 * day.most + 100:
            stage.blame("ends", f"at most {day.allowed} questions", f"more than {len(asked) - 1}")
        return day.hits_with(int(num_blocks))

    def questions(few: bool) -> str:
        return f"at most {day.allowed}" if few else f"{len(asked)}"

    got, want = stage.do(answer, hits_with, day.target, day.most), day.answer
    if isinstance(got, Raised):
        stage.blame("raises", want, got)
    if got is not None and (not isinstance(got, Integral) or isinstance(got, bool)):
        stage.blame("kind", want, got)
    clause = "none" if want is None else "missing"
    if want is not None and got is not None:
        clause = "too small" if got < want else "too large"
    stage.expect(again or clause, want, got)
    stage.expect("calls", True, len(asked) <= day.allowed, questions)


def _halving(
    enough: Callable[[int, int], bool] = lambda hits, target: hits >= target, checked: bool = True
) -> Callable[..., Any]:
    """A binary search, with switches for known mistakes."""

    def search(hits_with: Callable[[int], int], target: int, most: int) -> int | None:
        if checked and not enough(hits_with(most), target):
            return None
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if enough(hits_with(middle), target):
                high = middle
            else:
                low = middle + 1
        return high

    return search


def _only_doubled(hits_with: Callable[[int], int], target: int, most: int) -> int | None:
    n = 1
    while hits_with(n) < target:
        if n == most:
            return None
        n = min(2 * n, most)
    return n


_ENDS = (
    "Keep two ends: below `low` nothing is enough, `high` is enough. Ask in the middle, and "
    "move one of them."
)
_HALF = "More blocks never find less. So ask in the middle, and drop one half."

SMALLEST_CACHE = Contract(
    inputs=draw_days,
    judge=InLockstep(_play, _halving()),
    passed="Right on 300 days, in caches of up to 100,000 blocks, with few enough questions.",
    examples=300,
    tell=lambda days: "\nthen ".join(map(str, days)),
    clauses={
        "none": Clause("Even `most` blocks are not enough. Then the answer is None.", _ENDS),
        "missing": Clause(
            "Your function returned None, but there is a size that is enough.", _ENDS
        ),
        "too small": Clause("That cache is too small: it does not reach the target.", _ENDS),
        "too large": Clause("That cache is enough, but a smaller one is, too.", _ENDS),
        "again": Clause(
            "One day is answered right, a second one after it is not: something is "
            "kept from call to call.",
            "A default such as `x={}` is one dict for all calls.",
        ),
        "kind": Clause("That is no number of blocks.", "Return an int, or None."),
        "asks": Clause(
            "{got} was called. A cache has at least 1 and at most `most` blocks.",
            "Keep both ends of the range inside 1 .. most, in whole numbers.",
        ),
        "ends": Clause("Your search does not end.", "Each round must make the range smaller."),
        "calls": Clause(
            "Right, but you asked {got} times; {expected} are allowed. Each question "
            "replays a whole day of requests.",
            _HALF,
        ),
    },
    mistakes=(
        mistake(
            "You stop at the first power of two that is enough, but a smaller one is, too.",
            "Then go on between the last two that you asked for.",
            _only_doubled,
        ),
        mistake(
            "You never ask whether `most` is enough. If it is not, the answer is None.",
            _ENDS,
            _halving(checked=False),
        ),
        mistake(
            "More than the target is asked for. Exactly `target` tokens are enough, but a "
            "smaller one is, too.",
            "`>=`, not `>`.",
            _halving(enough=lambda hits, target: hits > target),
        ),
    ),
)
