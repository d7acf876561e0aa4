"""The hit rate between two scrapes of Prometheus metrics: exercise 7."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake

NAMES = {"queries": "vllm:prefix_cache_queries_total", "hits": "vllm:prefix_cache_hits_total"}
MODELS = ("model", "hits", "queries", "a/b-1.5_total")
CHANGES = ("grows", "grows", "same", "restarted", "restarted at 0", "one line restarted")
# What else stands on the page; {0} are labels, {1} is a number, {2} the time of a start.
OTHERS = (
    "# HELP vllm:prefix_cache_queries_total Prefix cache queries, in number of queried tokens.",
    "# TYPE vllm:prefix_cache_hits_total counter",
    "# vllm:prefix_cache_hits_total{0} {1}",
    "vllm:prefix_cache_queries_created{0} {2}",
    "vllm:prefix_cache_hits_created{0} {2}",
    "vllm:external_prefix_cache_queries_total{0} {1}",
    "vllm:external_prefix_cache_hits_total{0} {1}",
    "vllm:mm_cache_queries_total{0} {1}",
    "job:vllm:prefix_cache_hits_total{0} {1}",
    "vllm:num_requests_running{0} {1}",
    "vllm:kv_cache_usage_perc{0} NaN",
    'python_info{{implementation="CPython",major="3"}} 1.0',
)


def _written(value: int, style: str) -> str:
    if style == "whole":
        return str(value)
    if value == 0 or style == "plain" or (style == "large" and value < 10**6):
        return f"{value}.0"
    digits = str(value).rstrip("0")
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e+{len(str(value)) - 1:02d}"


def _counts(c: Choices) -> tuple[list[int], list[int]]:
    """Queries and hits of one engine, before and after."""
    unit, base = c.pick(((1, 0), (100, 0), (1, 1_234_567_890), (50_000, 0)))
    queries = base + unit * c.integer(0, 40)
    hits = c.integer(0, 40) * queries // 40
    more = unit * c.integer(1, 40)
    found = c.integer(0, 40) * more // 40
    change = c.pick(CHANGES)
    if change == "restarted":
        after = [queries * c.integer(0, 39) // 40, hits * c.integer(0, 39) // 40]
    else:
        after = {
            "grows": [queries + more, hits + found],
            "same": [queries, hits],
            "restarted at 0": [0, 0],
            "one line restarted": [queries + more, hits // 2],
        }[change]
    return [queries, hits], after


def draw_scrapes(c: Choices) -> Given:
    pages: tuple[list[str], list[str]] = ([], [])
    style = c.pick(("plain", "large", "scientific", "whole"))
    labels: list[str] = []
    others: list[str] = []

    def engine() -> None:
        mine = f'{{engine="{c.pick((0, 1, 10, 2))}",model_name="{c.pick(MODELS)}"}}'
        there = c.pick(("both", "both", "both", "both", "after", "before"))
        counts = _counts(c)
        if mine in labels:
            return
        labels.append(mine)
        for when, page, values in zip(("before", "after"), pages, counts, strict=True):
            if there in ("both", when):
                for name, value in zip(NAMES.values(), values, strict=True):
                    page.append(f"{name}{mine} {_written(value, style)}")

    def other() -> None:
        line, value = c.pick(OTHERS), c.integer(1, 900)
        mine, more = c.pick(labels), c.integer(0, 500)
        name = line.format(mine, "", "").rsplit(" ", 1)[0]
        if name in others:  # each series stands once on a page
            return
        others.append(name)
        for page, number in zip(pages, (value, value + more), strict=True):
            told = line.format(mine, _written(number, style), _written(179 * 10**7 + number, style))
            page.insert(c.integer(0, len(page)), told)

    c.some(engine, 1, 5)
    c.some(other, 0, 8)
    if c.rarely(3):
        pages = pages[0], pages[1][::-1]
    if c.rarely(3):  # each counter's lines together
        pages = pages[0], sorted(pages[1], key=lambda line: "hits_total{" in line)
    end = c.pick(("\n", "\n", ""))
    before, after = ("\n".join(page) + end if page else "" for page in pages)
    return Given(before, after)


def increase_ratio(before: str, after: str) -> float | None:
    """In exact fractions, with each series found by its whole name."""

    def value(text: str, series: str) -> Fraction | None:
        found = [line.split(" ")[1] for line in text.split("\n") if line.split(" ")[0] == series]
        return Fraction(found[0]) if found else None

    grown = {"queries": Fraction(0), "hits": Fraction(0)}
    for what, name in NAMES.items():
        for line in after.split("\n"):
            series = line.split(" ")[0]
            if series.split("{")[0] == name:
                new, old = value(after, series) or Fraction(0), value(before, series) or Fraction(0)
                grown[what] += new if new < old else new - old
    return float(grown["hits"] / grown["queries"]) if grown["queries"] else None


# Known mistakes


def _read(text: str, fits: Callable[[str], bool]) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {series: float(value) for series, value in lines if fits(series)}


def _exactly(series: str) -> bool:
    return series.split("{")[0] in NAMES.values()


def _restart(old: float, new: float) -> float:
    return new if new < old else new - old


def _rate(
    change: Callable[[float, float], float] = _restart,
    idle: Any = None,
    times: float = 1.0,
    fits: Callable[[str], bool] = _exactly,
    only_known: bool = False,
    summed_first: bool = False,
) -> Callable[[str, str], Any]:
    def rate(before: str, after: str) -> Any:
        totals = []
        for what in ("hits", "queries"):
            old, new = (
                {s: v for s, v in _read(text, fits).items() if what in s.split("{")[0]}
                for text in (before, after)
            )
            pairs = [(old.get(s, 0.0), new[s]) for s in new if s in old or not only_known]
            if summed_first:
                pairs = [(sum(old.values()), sum(new.values()))]
            totals.append(sum(change(*pair) for pair in pairs))
        return times * totals[0] / totals[1] if totals[1] else idle

    return rate


def _since_the_start(before: str, after: str) -> float:
    lines = _read(after, _exactly)
    queries, hits = (sum(v for s, v in lines.items() if what in s.split("{")[0]) for what in NAMES)
    return hits / queries


_DELTA = "Counters only grow. What happened in between is after minus before."
_SERIES = "Keep a number for each combination of labels; subtract, and then sum."
_RESET = "A counter that is smaller than before was restarted at 0: its increase is its new value."
_IDLE = "Without queries there is no rate. Return None, so that a chart shows a gap."

HIT_RATE = Contract(
    inputs=draw_scrapes,
    judge=Returns(increase_ratio, rtol=1e-9),
    examples=400,
    tell=lambda given: "before\n{}\nafter\n{}".format(*(text or "(empty)" for text in given.args)),
    passed="Right on 400 pairs of scrapes: several engines and models, restarts, lines that come "
    "and go, and times in which nobody asked.",
    clauses={"returns": Clause("The rate is wrong. {says}", f"{_DELTA} {_SERIES} {_RESET}")},
    mistakes=(
        mistake(
            "That is the rate since the server was started, not between the two scrapes.",
            _DELTA,
            _rate(change=lambda old, new: new),
            _since_the_start,
        ),
        mistake(
            "When nothing was asked, you return 0. That looks like a cache that finds nothing, "
            "and somebody will be called at night.",
            _IDLE,
            _rate(idle=0.0),
        ),
        mistake(
            "A server was restarted, and its counters began at 0 again. Your increase is negative.",
            _RESET,
            _rate(change=lambda old, new: new - old),
            _rate(change=lambda old, new: new - old, summed_first=True),
        ),
        mistake(
            "What a restarted server has counted since is thrown away.",
            _RESET,
            _rate(change=lambda old, new: max(0.0, new - old)),
        ),
        mistake(
            "After a restart you take the difference without its sign. It tells nothing.",
            _RESET,
            _rate(change=lambda old, new: abs(new - old)),
        ),
        mistake(
            "The engines are summed before the restart is looked for. One engine's growth then "
            "hides the other one's restart.",
            _SERIES,
            _rate(summed_first=True),
        ),
        mistake(
            "An engine that was not there before is left out.",
            "What is missing in the first scrape was 0.",
            _rate(only_known=True),
        ),
        mistake(
            "That is percent; expected a share from 0 to 1.", "hits / queries", _rate(times=100.0)
        ),
        mistake(
            "The counters of the *external* cache are counted as well.",
            "The name must match from its first letter: a line *starts with* it.",
            _rate(fits=lambda series: "prefix_cache_" in series and "_total{" in series),
        ),
        mistake(
            "Lines that end in `_created` are counted as well. They hold a time, not tokens.",
            "A line *starts with* `vllm:prefix_cache_hits_total{`, brace included.",
            _rate(
                fits=lambda series: series.startswith(
                    ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
                )
            ),
        ),
    ),
)
