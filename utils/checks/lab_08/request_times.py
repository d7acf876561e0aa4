"""What lab 08 says of the times of a request: exercise 6."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.runner import Passed
from utils.checks.lab_08 import pictures


class Latencies(NamedTuple):
    """What a user felt of a request, in seconds."""

    queue_time: float
    ttft: float
    tpot: float | None
    itl: list[float]
    e2e_latency: float


def draw(c: Choices) -> Given:
    """Clocks that begin anywhere; gaps of 0, of microseconds and of minutes; one token or many."""
    clock = float(c.pick((0, 10, 2**20)))
    tick = c.pick((2.0**-3, 2.0**-20, 2.0**6))

    def wait() -> float:
        return c.integer(0, 9) * tick

    arrival = clock + wait()
    scheduled = arrival + wait()
    first = scheduled + wait()
    gaps = c.some(wait, 0, 8)
    if c.rarely(6):
        gaps *= c.integer(1, 60)
    return Given(arrival, scheduled, list(itertools.accumulate([first, *gaps])))


def right_latencies(arrival_time: float, scheduled_ts: float, token_ts: list[float]) -> Latencies:
    """The oracle: walk along the clock, from event to event."""
    ttft = token_ts[0] - arrival_time
    gaps: list[float] = []
    clock = token_ts[0]
    for ts in token_ts[1:]:
        gaps.append(ts - clock)
        clock = ts
    tpot = math.fsum(gaps) / len(gaps) if gaps else None
    return Latencies(scheduled_ts - arrival_time, ttft, tpot, gaps, ttft + math.fsum(gaps))


def _fault(expected: Latencies, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, Latencies):
        return Fault("form", "", "Latencies(queue_time, ttft, tpot, itl, e2e_latency)", got)
    for name, want, came in zip(Latencies._fields, expected, got, strict=True):
        if says := difference(want, came, rtol=1e-6):
            if want is None or came is None:
                says = ""
            words = _lines(expected), _lines(got)
            return Fault(name, "", expected, got, says, words=words, picture=lambda: _drawn(given))
    return None


def _lines(values: Sequence[Any]) -> str:
    return "\n".join(f"{n}: {v}" for n, v in zip(Latencies._fields, values, strict=True))


def _drawn(given: Given) -> tuple[Figure | None, str]:
    if len(given.args[2]) > 9:
        return None, ""
    arrival, scheduled, stamps = given.args
    title = "What lies between the events of a request"
    figure = pictures.timeline(arrival, scheduled, stamps, title)
    return figure, "A line of time: arrival, first scheduled, tokens, and the spans between."


def _told(given: Given) -> str:
    arrival, scheduled, stamps = given.args
    shown = stamps if len(stamps) <= 9 else f"{len(stamps)} times from {stamps[0]} to {stamps[-1]}"
    return f"arrival {arrival} s, first scheduled {scheduled} s, tokens at {shown} s"


def _but(**changes: Callable[..., Any]) -> Callable[..., Latencies]:
    """The right answer, with other rules (arrival, scheduled, stamps, right) for some fields."""

    def wrong(arrival: float, scheduled: float, stamps: list[float]) -> Latencies:
        right = right_latencies(arrival, scheduled, stamps)
        return right._replace(
            **{k: rule(arrival, scheduled, stamps, right) for k, rule in changes.items()}
        )

    return wrong


def _passed(answer: Callable[..., Any]) -> Passed:
    return Passed(
        "Right for answers of one token and of many, tokens that come together, and clocks that "
        "begin anywhere.",
        pictures.timeline(
            10.0, 10.5, [11.0, 11.25, 11.5, 12.5], "One of the requests, and what its user felt"
        ),
        "A line of time: arrival, first scheduled, tokens, and the spans between.",
    )


TPOT = "n tokens have n - 1 gaps: `(token_ts[-1] - token_ts[0]) / (len(token_ts) - 1)`."
ONE = "Return None for a single token."

LATENCIES = Contract(
    inputs=draw,
    judge=Returns(right_latencies, wrong=_fault),
    passed=_passed,
    clauses={
        "form": Clause("Your function returned {got}; expected `{expected}`."),
        "queue_time": Clause(
            "The queue time is wrong. {says}",
            "`scheduled_ts - arrival_time`: it ends when the request is first scheduled.",
        ),
        "ttft": Clause("TTFT is wrong. {says}", "`token_ts[0] - arrival_time`."),
        "tpot": Clause("TPOT is wrong. {says}", "The mean of the gaps, None without one. " + TPOT),
        "itl": Clause(
            "The inter-token latencies are wrong. {says}",
            "A list with one gap per pair of neighbours: n tokens have n - 1.",
        ),
        "e2e_latency": Clause(
            "The end-to-end latency is wrong. {says}", "`token_ts[-1] - arrival_time`."
        ),
    },
    mistakes=(
        mistake(
            "TTFT leaves out the time in the queue. The user's clock runs from the arrival.",
            "`token_ts[0] - arrival_time`.",
            _but(ttft=lambda a, s, ts, r: ts[0] - s),
        ),
        mistake(
            "TPOT divides by the number of tokens. The first token is paid by TTFT; n tokens "
            "have n - 1 gaps.",
            TPOT,
            _but(tpot=lambda a, s, ts, r: (ts[-1] - ts[0]) / len(ts)),
            _but(tpot=lambda a, s, ts, r: r.tpot and (ts[-1] - ts[0]) / len(ts)),
        ),
        mistake(
            "TPOT holds the prompt's time as well. It is about the tokens after the first.",
            TPOT,
            _but(tpot=lambda a, s, ts, r: (ts[-1] - a) / len(ts)),
            _but(tpot=lambda a, s, ts, r: (ts[-1] - a) / len(r.itl) if r.itl else None),
        ),
        mistake(
            "TPOT is the mean of the gaps, not the median.",
            TPOT,
            _but(tpot=lambda a, s, ts, r: sorted(r.itl)[len(r.itl) // 2] if r.itl else None),
        ),
        mistake(
            "An answer of one token has no time per token after the first: TPOT is None, not "
            "0. A 0 would make every average look better.",
            ONE,
            _but(tpot=lambda a, s, ts, r: r.tpot or 0.0),
        ),
        mistake(
            "For an answer of one token you report TTFT as TPOT. There is nothing to report: None.",
            ONE,
            _but(tpot=lambda a, s, ts, r: r.tpot if r.itl else r.ttft),
        ),
        mistake(
            "The first gap is TTFT. Inter-token latencies lie between tokens of the answer.",
            "n tokens have n - 1 gaps.",
            _but(itl=lambda a, s, ts, r: [ts[0] - a, *r.itl]),
        ),
        mistake(
            "Gaps of 0 are left out. Tokens that come together have a gap of 0.",
            "One gap per pair of neighbours.",
            _but(itl=lambda a, s, ts, r: [gap for gap in r.itl if gap > 0]),
        ),
        mistake(
            "The queue time ends when the request is first scheduled, not with its first token.",
            "`scheduled_ts - arrival_time`.",
            _but(queue_time=lambda a, s, ts, r: ts[0] - a),
        ),
        mistake(
            "The end-to-end latency starts with the arrival, not with the first token.",
            "`token_ts[-1] - arrival_time`.",
            _but(e2e_latency=lambda a, s, ts, r: ts[-1] - ts[0]),
        ),
        mistake(
            "The end-to-end latency leaves out the time in the queue.",
            "`token_ts[-1] - arrival_time`.",
            _but(e2e_latency=lambda a, s, ts, r: ts[-1] - s),
        ),
    ),
    tell=_told,
)
