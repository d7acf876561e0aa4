"""A histogram as Prometheus keeps it, and the quantile that it still knows: exercise 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake

Step = tuple[Any, ...]
MANY = 400


@dataclass(frozen=True)
class Story:
    """What two histograms with the same bounds observe and are asked."""

    bounds: tuple[float, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"two histograms with bounds {list(self.bounds)}"


def draw_story(c: Choices) -> Story:
    scale = c.pick((1.0, 1.0, 0.001, 1e6))
    numbers = sorted({c.integer(1, 40) for _ in range(c.integer(1, 6))})
    bounds = tuple(scale * number for number in numbers)

    def value() -> float:
        if c.rarely(4):
            return c.pick((0.0, bounds[-1] * 1000, bounds[0] / 1000))
        # Often a bound itself: there `at most` and `less than` differ.
        return c.pick(bounds) if c.rarely(2) else scale * c.integer(0, 100) / 2

    def step() -> Step:
        which = c.integer(0, 1)
        kind = c.pick(("observe", "observe", "observe", "quantile", "buckets", "mark", "since"))
        if kind == "observe":
            return which, kind, *c.some(value, 1, 9)
        if kind in ("quantile", "since"):
            return which, kind, c.pick((0.5, 1.0, 0.25, 0.75, 0.9, 0.99, 0.001))
        return (which, "many") if c.rarely(20) else (which, kind)

    return Story(bounds, tuple(c.some(step, 0, 24)))


def play(stage: Stage, histogram_class: Any, story: Story) -> None:
    bounds = list(story.bounds)
    histograms = [stage.do(histogram_class, bounds) for _ in range(2)]
    for histogram in histograms:
        stage.see("new", histogram if isinstance(histogram, Raised) else "a histogram")
    bounds[:] = [7.0]  # it belongs to the caller
    marks: list[Any] = [None, None]
    for which, kind, *args in story.steps:
        histogram = histograms[which]
        told = ", ".join(f"{a:g}" for a in args)
        stage.step(f"histogram {which + 1}: {kind} {told}".rstrip())
        if kind == "observe":
            for value in args:
                stage.see("observe", stage.call(histogram, "observe", value))
        elif kind == "many":
            before = _weight(histogram)
            for number in range(MANY):
                stage.call(histogram, "observe", story.bounds[-1] * number / MANY)
            stage.see(
                "memory",
                "no value is kept"
                if _weight(histogram) < before + MANY / 2
                else "the values are kept",
            )
        elif kind == "mark":
            marks[which] = stage.call(histogram, "buckets")
        elif kind == "quantile":
            stage.see("quantile", stage.call(histogram, "quantile", *args))
        elif kind == "since":
            earlier = dict(marks[which]) if isinstance(marks[which], Mapping) else None
            stage.see("since", stage.call(histogram, "quantile", *args, earlier=earlier))
        for one in histograms:
            buckets = stage.call(one, "buckets")
            stage.see("buckets", _pairs(buckets))
            stage.see("count", stage.read(one, "count"))
            stage.see("sum", stage.read(one, "sum"))
            if isinstance(buckets, dict):
                buckets.clear()


def _pairs(buckets: Any) -> Any:
    """Buckets with their order, which a comparison of dictionaries would not see."""
    return [list(pair) for pair in buckets.items()] if isinstance(buckets, Mapping) else buckets


def _weight(value: Any, depth: int = 0) -> int:
    """How many items lie in an object's containers."""
    if depth > 4 or isinstance(value, str | bytes | int | float | None):
        return 1
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif hasattr(value, "__len__") and hasattr(value, "__iter__"):
        parts = list(value)
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    parts += [*getattr(value, "__dict__", {}).values(), *slots]
    return 1 + sum(_weight(part, depth + 1) for part in parts)


class PlainHistogram:
    """Slow and plain: how many values stand at or below each bound, counted one bound by one."""

    def __init__(self, bounds: Any) -> None:
        self.bounds = [*bounds, math.inf]
        self.counts = [0] * len(self.bounds)
        self.sum, self.count = 0.0, 0

    def observe(self, value: float) -> None:
        self.sum += value
        self.count += 1
        for i, bound in enumerate(self.bounds):
            self.counts[i] += self.fits(value, bound)

    def fits(self, value: float, bound: float) -> bool:
        return value <= bound

    def buckets(self) -> dict[float, int]:
        return dict(zip(self.bounds, self.counts, strict=True))

    def quantile(self, q: float, earlier: dict[float, int] | None = None) -> float:
        counts = [
            n - (earlier or {}).get(b, 0) for b, n in zip(self.bounds, self.counts, strict=True)
        ]
        return self.estimate(q, counts)

    def estimate(self, q: float, counts: list[int]) -> float:
        rank = q * counts[-1]
        if not counts[-1]:
            return math.nan
        number = min(i for i, n in enumerate(counts) if n >= rank)
        if number == len(counts) - 1:
            return self.beyond(counts)
        below, start = (counts[number - 1], self.bounds[number - 1]) if number else (0, 0.0)
        return self.between(start, self.bounds[number], (rank - below) / (counts[number] - below))

    def beyond(self, counts: list[int]) -> float:
        return float(self.bounds[-2])

    def between(self, start: float, end: float, share: float) -> float:
        return start + (end - start) * share


class _Apart(PlainHistogram):
    def buckets(self) -> dict[float, int]:
        apart = [n - m for n, m in zip(self.counts, [0, *self.counts], strict=False)]
        return dict(zip(self.bounds, apart, strict=True))


class _Below(PlainHistogram):
    def fits(self, value: float, bound: float) -> bool:
        return value < bound


class _NoInf(PlainHistogram):
    def buckets(self) -> dict[float, int]:
        return dict(list(super().buckets().items())[:-1])


class _UpperBound(PlainHistogram):
    def between(self, start: float, end: float, share: float) -> float:
        return end


class _Middle(PlainHistogram):
    def between(self, start: float, end: float, share: float) -> float:
        return (start + end) / 2


class _Endless(PlainHistogram):
    def beyond(self, counts: list[int]) -> float:
        return math.inf


class _FromFirstBound(PlainHistogram):
    def between(self, start: float, end: float, share: float) -> float:
        return super().between(start or end, end, share)


class _ZeroOfNothing(PlainHistogram):
    def estimate(self, q: float, counts: list[int]) -> float:
        return super().estimate(q, counts) if counts[-1] else 0.0


class _AllTime(PlainHistogram):
    def quantile(self, q: float, earlier: dict[float, int] | None = None) -> float:
        return self.estimate(q, self.counts)


class _Keeps(PlainHistogram):
    def __init__(self, bounds: Any) -> None:
        super().__init__(bounds)
        self.values: list[float] = []

    def observe(self, value: float) -> None:
        super().observe(value)
        self.values.append(value)


LINE = "From the bucket's lower bound (0 for the first) go the share `(rank - below) / in it` up."

HISTOGRAM = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainHistogram),
    passed="Right in random stories. A handful of counters stands for any number of values.",
    clauses={
        "new": Clause("`Histogram(bounds)` gives no histogram."),
        "observe": Clause("`observe(value)` returns nothing, and raises nothing."),
        "memory": Clause(
            "The histogram keeps the values: a server that runs for a month would keep them all.",
            "Count, and forget the value.",
        ),
        "buckets": Clause(
            "The buckets (bound and count) are {got}; expected {expected}.",
            "`le` means *less or equal*, and each bucket counts all below, too.",
        ),
        "count": Clause("`count` is {got}; expected {expected}.", "Also what is above all bounds."),
        "sum": Clause("`sum` is {got}; expected {expected}."),
        "quantile": Clause("The quantile is {got}; expected {expected}.", LINE),
        "since": Clause(
            "The quantile since an earlier reading is {got}; expected {expected}.",
            "Subtract the earlier counts, bucket by bucket; then as before.",
        ),
    },
    mistakes=(
        mistake(
            "Each value is counted in one bucket only. Prometheus' buckets are cumulative.",
            "A value of 0.3 is at most 0.5, at most 1, and at most infinity.",
            _Apart,
        ),
        mistake(
            "A value that equals a bound belongs to it: `le` means less *or equal*.",
            "`value <= bound`.",
            _Below,
        ),
        mistake(
            "The last bucket is missing: `math.inf`, which counts all values.",
            "Without it nobody knows how many values lie above the bounds.",
            _NoInf,
        ),
        mistake(
            "The quantile is a bucket's upper bound. Prometheus goes a part of the way.",
            LINE,
            _UpperBound,
        ),
        mistake("The quantile is a bucket's middle, wherever the rank lies in it.", LINE, _Middle),
        mistake(
            "The quantile in the last bucket is infinite. Prometheus gives the largest finite "
            "bound.",
            "Nobody knows how far beyond it the values lie.",
            _Endless,
        ),
        mistake("The first bucket begins at 0.", LINE, _FromFirstBound),
        mistake(
            "Of no values there is no quantile: NaN, not 0, which looks like a fast server.",
            "`math.nan`.",
            _ZeroOfNothing,
        ),
        mistake(
            "`earlier` is ignored: the figure is of all time since the server began.",
            "Subtract the earlier counts, bucket by bucket.",
            _AllTime,
        ),
        mistake(
            "The histogram keeps the values: a server that runs for a month would keep them all.",
            "Count, and forget the value.",
            _Keeps,
        ),
    ),
)
