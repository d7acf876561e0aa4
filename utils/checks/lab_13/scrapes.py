"""Pages of metrics in Prometheus' text format, drawn by pairs, and the hit rate between the two."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.differences import difference

NAMES = {"queries": "vllm:prefix_cache_queries_total", "hits": "vllm:prefix_cache_hits_total"}
MODELS = ("model", "other", "queries", "a/b-1.5_total", "m=1", "x,y", "a,b=c", NAMES["hits"])
CHANGES = ("grows", "grows", "same", "restarted", "restarted at 0", "one line restarted")
WHERE = ("both", "both", "both", "both", "after", "before")
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


def written(value: int, style: str) -> str:
    """A number as Python, or Prometheus, writes it: 1200, 1200.0 or 1.2e+03."""
    if style == "whole":
        return str(value)
    if value == 0 or style == "plain" or (style == "large" and value < 10**6):
        return f"{value}.0"
    digits = str(value).rstrip("0")
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e+{len(str(value)) - 1:02d}"


def draw_counts(c: Choices) -> tuple[list[int], list[int]]:
    """Queries and hits of one engine, before and after. The simplest find all that is new."""
    unit, base = c.pick(((1, 0), (100, 0), (1, 1_234_567_890), (50_000, 0)))
    queries = base + unit * c.integer(0, 40)
    hits = c.integer(0, 40) * queries // 40
    more = unit * c.integer(1, 40)
    found = c.integer(-40, 0) * -more // 40
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
        there, counts = c.pick(WHERE), draw_counts(c)
        if mine in labels:
            return
        labels.append(mine)
        for when, page, values in zip(("before", "after"), pages, counts, strict=True):
            if there in ("both", when):
                for name, value in zip(NAMES.values(), values, strict=True):
                    page.append(f"{name}{mine} {written(value, style)}")

    def other() -> None:
        line, value = c.pick(OTHERS), c.integer(1, 900)
        mine, more = c.pick(labels), c.integer(0, 500)
        name = line.format(mine, "", "").rsplit(" ", 1)[0]
        if name in others:  # each series stands once on a page
            return
        others.append(name)
        for page, number in zip(pages, (value, value + more), strict=True):
            told = line.format(mine, written(number, style), written(179 * 10**7 + number, style))
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


def series(text: str) -> dict[str, Fraction]:
    """The two counters' lines: name and labels -> value, in exact fractions."""
    rows = [line.split(" ") for line in text.split("\n")]
    names = NAMES.values()
    return {row[0]: Fraction(row[1]) for row in rows if row[0].split("{")[0] in names}


def increase_ratio(before: str, after: str) -> float | None:
    """What the hits have grown by, of what the queries have."""
    old, grown = series(before), dict.fromkeys(NAMES.values(), Fraction(0))
    for name, new in series(after).items():
        then = old.get(name, Fraction(0))
        grown[name.split("{")[0]] += new if new < then else new - then
    queries, hits = grown[NAMES["queries"]], grown[NAMES["hits"]]
    return float(hits / queries) if queries else None


def wrong_rate(expected: float | None, got: Any, given: Given) -> Fault | None:
    """A fault if this isn't the rate; its clause says what is special about these pages."""
    clause = special(*given.args)
    if expected is None:
        says = "" if got is None else "Nothing was looked up, so it must be None."
        clause = "idle" if clause == "returns" else clause
    elif got is None:
        says = "Your function returned None, although prompts were looked up."
    else:
        says = difference(expected, got, rtol=1e-9)
        if isinstance(got, float) and got in (round(expected, n) for n in range(2, 7)):
            clause = "rounded"
    return Fault(clause, "", expected, got, says) if says else None


def special(before: str, after: str) -> str:
    """What must be seen on these pages; the smallest ones hold little else."""
    old, new = series(before), series(after)
    if "e+" in before + after:
        return "exponent"
    if len(after.split()) > 2 * len(new):
        return "other lines"
    if any(value < old.get(name, 0) for name, value in new.items()):
        return "restart"
    if new.keys() - old.keys():
        return "new line"
    if old.keys() - new.keys():
        return "lost line"
    return "several engines" if len(new) > len(NAMES) else "returns"
