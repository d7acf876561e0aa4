"""What lab 13 says of a hit rate from two scrapes of Prometheus metrics: exercise 7."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.runner import Mismatch, call, describe

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
Series = Mapping[str, tuple[float, float]]  # engine -> (queries, hits)


@dataclass(frozen=True)
class Scrapes:
    """Two scrapes of one server: each engine's counters, before and after."""

    story: str
    before: Series
    after: Series

    @property
    def texts(self) -> tuple[str, str]:
        return scrape(self.before, (77.0, 11.0)), scrape(self.after, (1077.0, 511.0))

    @property
    def rate(self) -> float | None:
        """The right answer, from the numbers themselves."""
        totals = [0.0, 0.0]
        for engine, counts in self.after.items():
            for i, count in enumerate(counts):
                earlier = self.before.get(engine, (0.0, 0.0))[i]
                totals[i] += count if count < earlier else count - earlier
        return totals[1] / totals[0] if totals[0] else None


def scrape(series: Series, external: tuple[float, float] = (0.0, 0.0)) -> str:
    """What vLLM's `/metrics` shows of its prefix cache, in Prometheus' text format."""
    lines = []
    for number, name in enumerate((QUERIES, HITS)):
        what = ("queries", "hits")[number]
        lines += [f"# HELP {name} Prefix cache {what}, in terms of number of tokens.",
                  f"# TYPE {name} counter"]  # fmt: skip
        lines += [
            f'{name}{{engine="{engine}",model_name="model"}} {counts[number]}'
            for engine, counts in series.items()
        ]
        created = name.replace("_total", "_created")
        lines += [f"# TYPE {created} gauge"]
        lines += [f'{created}{{engine="{e}",model_name="model"}} 1.79e+09' for e in series]
    labels = '{engine="0",model_name="model"}'
    lines += [f"vllm:external_prefix_cache_queries_total{labels} {external[0]}",
              f"vllm:external_prefix_cache_hits_total{labels} {external[1]}",
              f"vllm:num_requests_running{labels} 3.0"]  # fmt: skip
    return "\n".join(lines) + "\n"


CASES = (
    Scrapes("a server that has just started", {"0": (0, 0)}, {"0": (100.0, 25.0)}),
    Scrapes("a server that has run for a while", {"0": (1000.0, 900.0)}, {"0": (1200.0, 950.0)}),
    Scrapes("nothing was asked in between", {"0": (1000.0, 900.0)}, {"0": (1000.0, 900.0)}),
    Scrapes("everything was a miss", {"0": (50.0, 10.0)}, {"0": (90.0, 10.0)}),
    Scrapes("large numbers, as Prometheus writes them", {"0": (1.0e6, 5.0e5)},
            {"0": (1.25e7, 8.0e6)}),
    Scrapes("two engines", {"0": (100.0, 50.0), "1": (400.0, 0.0)},
            {"0": (200.0, 140.0), "1": (800.0, 10.0)}),
    Scrapes("a second engine has joined", {"0": (100.0, 50.0)},
            {"0": (200.0, 90.0), "1": (100.0, 10.0)}),
    Scrapes("the server was restarted in between", {"0": (1000.0, 900.0)}, {"0": (80.0, 20.0)}),
    Scrapes("one of two engines was restarted", {"0": (1000.0, 900.0), "1": (100.0, 50.0)},
            {"0": (80.0, 20.0), "1": (500.0, 350.0)}),
)  # fmt: skip


def judge_hit_rate(function: Callable[..., float | None]) -> str:
    """Check `hit_rate(before, after)`."""
    answers = []
    for case in CASES:
        before, after = case.texts
        answers.append(call(function, before, after, given=_told(case)))
    for case, got in zip(CASES, answers, strict=True):
        if got is not None and (isinstance(got, bool) or not isinstance(got, int | float)):
            raise Mismatch(f"Your function returned {describe(got)}; expected a number or None.",
                           input=_told(case))  # fmt: skip
        if _same(got, case.rate):
            continue
        says, look = _explain(answers)
        raise Mismatch(
            says, input=_told(case), expected=describe(case.rate), got=describe(got), look=look
        )
    return (
        f"Right on {len(CASES)} pairs of scrapes: several engines, restarts, and a time in which "
        "nobody asked."
    )


def _same(got: Any, want: float | None) -> bool:
    if got is None or want is None:
        return got is want
    return abs(got - want) < 1e-9


def _told(case: Scrapes) -> str:
    def lines(series: Series) -> str:
        return "\n".join(
            f"  engine {engine}: queries {counts[0]:g}, hits {counts[1]:g}"
            for engine, counts in series.items()
        )

    return f"{case.story}\nbefore\n{lines(case.before)}\nafter\n{lines(case.after)}"


def _sum(series: Series, i: int) -> float:
    return sum(counts[i] for counts in series.values())


def _ratio(hits: float, queries: float) -> float | None:
    return hits / queries if queries else None


_DELTA = "Counters only grow. What happened in between is after minus before."
_SERIES = "Keep a number for each combination of labels; subtract, and then sum."
_RESET = "A counter that is smaller than before was restarted at 0: its increase is its new value."
_IDLE = "Without queries there is no rate. Return None, so that a chart shows a gap."


def _total_delta(case: Scrapes, *, restart: bool) -> float | None:
    changes = []
    for i in range(2):
        before, after = _sum(case.before, i), _sum(case.after, i)
        changes.append(after if restart and after < before else after - before)
    return _ratio(changes[1], changes[0])


def _one_engine(case: Scrapes, last: bool) -> float | None:
    """Only one line of each counter is read."""
    ends = [list(series.values())[-1 if last else 0] for series in (case.before, case.after)]
    changes = [
        after if after < before else after - before for before, after in zip(*ends, strict=True)
    ]
    return _ratio(changes[1], changes[0])


def _mean_of_rates(case: Scrapes) -> float | None:
    rates = []
    for engine in case.after:
        one = Scrapes("", {k: v for k, v in case.before.items() if k == engine},
                      {engine: case.after[engine]}).rate  # fmt: skip
        rates += [] if one is None else [one]
    return sum(rates) / len(rates) if rates else None


def _per_series(case: Scrapes, reset: Callable[[float, float], float]) -> float | None:
    totals = [0.0, 0.0]
    for engine, counts in case.after.items():
        for i, count in enumerate(counts):
            totals[i] += reset(case.before.get(engine, (0.0, 0.0))[i], count)
    return _ratio(totals[1], totals[0])


def _without_new(case: Scrapes) -> float | None:
    known = {k: v for k, v in case.after.items() if k in case.before}
    return Scrapes("", case.before, known).rate


_BUGS: list[tuple[Callable[[Scrapes], float | None], str, str]] = [
    (lambda c: _ratio(_sum(c.after, 1), _sum(c.after, 0)),
     "That is the rate since the server was started, not between the two scrapes.", _DELTA),
    (lambda c: 0.0 if c.rate is None else c.rate,
     "When nothing was asked, you return 0. That looks like a cache that finds nothing, and "
     "somebody will be called at night.", _IDLE),
    (lambda c: 1.0 if c.rate is None else c.rate, "When nothing was asked, you return 1.", _IDLE),
    (lambda c: _per_series(c, lambda b, a: a - b),
     "A server was restarted, and its counters began at 0 again. Your increase is negative.",
     _RESET),
    (lambda c: _total_delta(c, restart=False),
     "A server was restarted, and its counters began at 0 again. Your increase is negative.",
     _RESET),
    (lambda c: _per_series(c, lambda b, a: max(0.0, a - b)),
     "What a restarted server has counted since is thrown away.", _RESET),
    (lambda c: _per_series(c, lambda b, a: abs(a - b)),
     "After a restart you take the difference without its sign. It tells nothing.", _RESET),
    (lambda c: _total_delta(c, restart=True),
     "The engines are summed before the restart is looked for. One engine's growth then hides the "
     "other one's restart.", _SERIES),
    (lambda c: _one_engine(c, last=True), "Only the last engine's line counts.", _SERIES),
    (lambda c: _one_engine(c, last=False), "Only the first engine's line counts.", _SERIES),
    (_mean_of_rates, "You take the mean of the engines' rates. An engine that was asked little "
     "counts as much as one that was asked a lot.", "Sum hits and queries first; divide at the "
     "end."),
    (_without_new, "An engine that was not there before is left out.",
     "What is missing in the first scrape was 0."),
    (lambda c: None if c.rate is None else 100 * c.rate, "That is percent; expected a share from 0 "
     "to 1.", "hits / queries"),
    (lambda c: 1 / c.rate if c.rate else None, "That is queries / hits, upside down.",
     "hits / queries"),
]  # fmt: skip


def _explain(answers: list[Any]) -> tuple[str, str]:
    for wrong, says, look in _BUGS:
        if all(_same(got, wrong(case)) for got, case in zip(answers, CASES, strict=True)):
            return says, look
    external = [[_wider(case, _ANY_CACHE, joined) for case in CASES] for joined in (True, False)]
    if any(_all_same(answers, rates) for rates in external):
        return "The counters of the *external* cache are counted as well.", (
            "The name must match from its first letter: a line *starts with* it."
        )
    if _all_same(answers, [_wider(case, _ANY_SUFFIX, False) for case in CASES]):
        return "Lines that end in `_created` are counted as well. They hold a time, not tokens.", (
            "A line *starts with* `vllm:prefix_cache_hits_total{`, brace included."
        )
    return "The rate is wrong.", f"{_DELTA} {_SERIES} {_RESET}"


# What stands in front of the value, which counter it is, its labels, the value.
_ANY_CACHE = r"(\S*prefix_cache_(queries|hits)_total({.*})) (\S+)"
_ANY_SUFFIX = r"(vllm:prefix_cache_(queries|hits)\S*({.*})) (\S+)"


def _all_same(answers: list[Any], rates: list[float | None]) -> bool:
    return all(_same(got, rate) for got, rate in zip(answers, rates, strict=True))


def _wider(case: Scrapes, pattern: str, joined: bool) -> float | None:
    """Every line that fits `pattern` is read. `joined`: lines of equal labels are added first."""

    def read(text: str) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if match := re.fullmatch(pattern, line):
                key = match[2], match[3] if joined else match[1]
                found[key] = found.get(key, 0.0) + float(match[4])
        return found

    (before, after), totals = map(read, case.texts), {"hits": 0.0, "queries": 0.0}
    for key, value in after.items():
        earlier = before.get(key, 0.0)
        totals[key[0]] += value if value < earlier else value - earlier
    return _ratio(totals["hits"], totals["queries"])
