"""What lab 08 says of times: exercises 6 and 7."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_08 import pictures
from utils.checks.lab_08.smallest_case import Fault, judge

DIGITS = 9  # beyond that, floats may differ by the order in which they were added


class Latencies(NamedTuple):
    """What a user felt of a request, in seconds."""

    queue_time: float
    ttft: float
    tpot: float | None
    itl: list[float]
    e2e_latency: float


class Times(NamedTuple):
    """When things happened to a request, in seconds of a clock."""

    arrival_time: float
    scheduled_ts: float
    token_ts: list[float]


def _rounded(value: Any) -> Any:
    if isinstance(value, float | int | np.floating):
        return round(float(value), DIGITS)
    if isinstance(value, list | tuple | np.ndarray):
        return [_rounded(part) for part in value]
    return value


# --- exercise 6 ----------------------------------------------------------------------------------


def right_latencies(times: Times) -> Latencies:
    """The oracle: walk along the clock, from event to event."""
    ttft = times.token_ts[0] - times.arrival_time
    gaps: list[float] = []
    clock = times.token_ts[0]
    for ts in times.token_ts[1:]:
        gaps.append(ts - clock)
        clock = ts
    tpot = math.fsum(gaps) / len(gaps) if gaps else None
    waited = times.scheduled_ts - times.arrival_time
    return Latencies(waited, ttft, tpot, gaps, ttft + math.fsum(gaps))


def _latency_cases() -> list[Times]:
    cases = [
        Times(0.0, 0.0, [1.0]),
        Times(10.0, 10.5, [11.25]),
        Times(10.0, 10.5, [11.0, 11.25]),
        Times(10.0, 10.5, [11.0, 11.25, 11.5, 12.5]),
        Times(3.0, 5.0, [6.0, 6.5, 6.5, 6.5, 7.0]),  # accepted guesses come together
    ]
    dice = random.Random(6)
    for _ in range(20):
        clock = dice.randrange(400) / 8
        stamps = [clock := clock + dice.randint(0, 16) / 8 for _ in range(dice.randint(3, 9))]
        cases.append(Times(stamps[0], stamps[1], stamps[2:]))
    return cases


def judge_latencies(function: Callable[..., Any]) -> Passed:
    """Check `latencies(arrival_time, scheduled_ts, token_ts)`."""

    def told(times: Times) -> str:
        return (
            f"arrival {times.arrival_time:g} s, first scheduled {times.scheduled_ts:g} s, tokens "
            f"at {[round(t, 3) for t in times.token_ts]} s"
        )

    def ask(times: Times) -> Any:
        given = told(times)
        stamps = list(times.token_ts)
        got = call(function, times.arrival_time, times.scheduled_ts, stamps, given=given)
        if not isinstance(got, tuple) or len(got) != 5:
            raise Mismatch(
                f"Your function returned {describe(got)}; expected `Latencies(queue_time, ttft, "
                "tpot, itl, e2e_latency)`.",
                input=given,
            )  # fmt: skip
        if stamps != times.token_ts:
            raise Mismatch("Your function changes the list of times.", input=given,
                           look="Only read it.")  # fmt: skip
        return _rounded(got)

    def expected(times: Times) -> Any:
        return _rounded(right_latencies(times))

    def but(**changes: Callable[[Times], Any]) -> Callable[[Times], Any]:
        def wrong(times: Times) -> Any:
            return _rounded(
                right_latencies(times)._replace(**{k: v(times) for k, v in changes.items()})
            )

        return wrong

    def gaps(times: Times) -> list[float]:
        return right_latencies(times).itl

    def spread(times: Times) -> float:
        return times.token_ts[-1] - times.token_ts[0]

    tpot_look = "n tokens have n - 1 gaps: `(token_ts[-1] - token_ts[0]) / (len(token_ts) - 1)`."
    faults = [
        Fault(but(ttft=lambda t: t.token_ts[0] - t.scheduled_ts),
              "TTFT leaves out the time in the queue. The user's clock runs from the arrival.",
              "`token_ts[0] - arrival_time`."),
        Fault(but(tpot=lambda t: spread(t) / len(t.token_ts)),
              "TPOT divides by the number of tokens. The first token is paid by TTFT; n tokens "
              "have n - 1 gaps.", tpot_look),
        Fault(but(tpot=lambda t: spread(t) / len(t.token_ts) if len(t.token_ts) > 1 else None),
              "TPOT divides by the number of tokens. The first token is paid by TTFT; n tokens "
              "have n - 1 gaps.", tpot_look),
        Fault(but(tpot=lambda t: (t.token_ts[-1] - t.arrival_time) / len(t.token_ts)),
              "TPOT holds the prompt's time as well. It is about the tokens after the first.",
              tpot_look),
        Fault(but(tpot=lambda t: (t.token_ts[-1] - t.arrival_time) / (len(t.token_ts) - 1)
                  if len(t.token_ts) > 1 else None),
              "TPOT holds the prompt's time as well. It is about the tokens after the first.",
              tpot_look),
        Fault(but(tpot=lambda t: sorted(gaps(t))[len(gaps(t)) // 2] if gaps(t) else None),
              "TPOT is the mean of the gaps, not the median.", tpot_look),
        Fault(but(tpot=lambda t: right_latencies(t).tpot or 0.0),
              "An answer of one token has no time per token after the first: TPOT is None, not 0. "
              "A 0 would make every average look better.", "Return None for a single token."),
        Fault(but(tpot=lambda t: spread(t) / (len(t.token_ts) - 1)
                  if len(t.token_ts) > 1 else right_latencies(t).ttft),
              "For an answer of one token you report TTFT as TPOT. There is nothing to report: "
              "None.", "Return None for a single token."),
        Fault(but(itl=lambda t: [right_latencies(t).ttft, *gaps(t)]),
              "The first gap is TTFT. Inter-token latencies lie between tokens of the answer.",
              "n tokens have n - 1 gaps."),
        Fault(but(itl=lambda t: [g for g in gaps(t) if g > 0]),
              "Gaps of 0 are left out. Tokens that come together have a gap of 0.",
              "One gap per pair of neighbours."),
        Fault(but(queue_time=lambda t: t.token_ts[0] - t.arrival_time),
              "The queue time ends when the request is first scheduled, not with its first token.",
              "`scheduled_ts - arrival_time`."),
        Fault(but(e2e_latency=spread),
              "The end-to-end latency starts with the arrival, not with the first token.",
              "`token_ts[-1] - arrival_time`."),
        Fault(but(e2e_latency=lambda t: t.token_ts[-1] - t.scheduled_ts),
              "The end-to-end latency leaves out the time in the queue.",
              "`token_ts[-1] - arrival_time`."),
    ]  # fmt: skip

    def picture(times: Times, want: Any, got: Any) -> tuple[Figure, str]:
        figure = pictures.timeline(*times, "What lies between the events of a request")
        return figure, "A line of time: arrival, first scheduled, tokens, and the spans between."

    def show(values: Any) -> str:
        return "\n".join(f"{n}: {v}" for n, v in zip(Latencies._fields, values, strict=True))

    cases = _latency_cases()
    judge(cases, ask, expected, told, faults,
          ("These are not the times that the user felt.", "The picture shows which is which."),
          show, picture)  # fmt: skip
    example = cases[3]
    return Passed(
        f"Right for {len(cases)} requests, answers of a single token and tokens that come together "
        "included.",
        pictures.timeline(*example, "One of the requests, and what its user felt"),
        "A line of time: arrival, first scheduled, tokens, and the spans between.",
    )


# --- exercise 7 ----------------------------------------------------------------------------------

FIELDS = ("median_ttft", "p99_ttft", "p99_itl", "output_throughput", "request_goodput")


class Run(NamedTuple):
    """The requests of a benchmark, how long it took, and the limits that users set."""

    requests: list[Latencies]
    duration: float
    ttft_slo: float
    tpot_slo: float


def right_report(run: Run) -> list[float]:
    """The oracle: numpy's percentiles, and counting."""
    ttfts = [request.ttft for request in run.requests]
    gaps = [gap for request in run.requests for gap in request.itl]
    good = 0
    for request in run.requests:
        in_time = request.ttft <= run.ttft_slo
        steady = request.tpot is None or request.tpot <= run.tpot_slo
        good += in_time and steady
    tokens = len(run.requests) + len(gaps)
    return _rounded([
        np.percentile(ttfts, 50), np.percentile(ttfts, 99), np.percentile(gaps, 99),
        tokens / run.duration, good / run.duration,
    ])  # fmt: skip


def _request(ttft: float, itl: Sequence[float]) -> Latencies:
    tpot = sum(itl) / len(itl) if itl else None
    return Latencies(ttft / 2, ttft, tpot, list(itl), ttft + sum(itl))


def _runs() -> list[Run]:
    runs = [
        Run([_request(1.0, [0.5])], 2.0, 2.0, 1.0),
        Run([_request(1.0, [0.5, 0.5]), _request(3.0, [0.5])], 4.0, 2.0, 1.0),
        Run([_request(1.0, [0.5, 0.5]), _request(1.5, [2.0, 1.0])], 4.0, 2.0, 1.0),
        Run([_request(2.0, [1.0]), _request(1.0, [])], 4.0, 2.0, 1.0),
        Run([_request(3.0, []), _request(0.5, [0.25] * 7), _request(4.0, [4.0])], 8.0, 2.0, 1.0),
        Run([_request(2.0, [0.125, 3.0, 0.125])], 8.0, 2.0, 1.0),  # one long gap, a good mean
    ]
    dice = random.Random(7)
    for _ in range(20):
        requests = [
            _request(dice.randint(1, 40) / 8, [dice.randint(0, 16) / 8 for _ in range(length)])
            for length in [dice.randint(0, 6) for _ in range(dice.randint(2, 30))]
        ]
        requests.append(_request(1.0, [0.5]))
        runs.append(Run(requests, 16.0, 2.5, 1.0))
    return runs


def judge_serving_report(function: Callable[..., Any]) -> str:
    """Check `serving_report(requests, duration, ttft_slo, tpot_slo)`."""

    def told(run: Run) -> str:
        shown = "; ".join(f"TTFT {r.ttft:g}, gaps {r.itl}" for r in run.requests[:4]) + (
            "; ..." if len(run.requests) > 4 else ""
        )
        return (
            f"{len(run.requests)} requests in {run.duration:g} s ({shown}); limits: TTFT "
            f"{run.ttft_slo:g} s, TPOT {run.tpot_slo:g} s"
        )

    def ask(run: Run) -> Any:
        given = told(run)
        got = call(function, list(run.requests), run.duration, run.ttft_slo, run.tpot_slo,
                   given=given)  # fmt: skip
        if not isinstance(got, dict) or set(got) != set(FIELDS):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a dict with the keys "
                f"{', '.join(FIELDS)}.",
                input=given,
            )  # fmt: skip
        return _rounded([got[name] for name in FIELDS])

    def but(name: str, change: Callable[[Run], float]) -> Callable[[Run], Any]:
        def wrong(run: Run) -> Any:
            values = right_report(run)
            values[FIELDS.index(name)] = _rounded(change(run))
            return values

        return wrong

    def good(run: Run, rule: Callable[[Latencies], bool]) -> float:
        return sum(map(rule, run.requests)) / run.duration

    def fast(run: Run, r: Latencies) -> bool:
        return r.ttft <= run.ttft_slo

    def steady(run: Run, r: Latencies) -> bool:
        return r.tpot is None or r.tpot <= run.tpot_slo

    def in_both(run: Run) -> float:
        return good(run, lambda r: fast(run, r) and steady(run, r))

    def nearest(values: Sequence[float], q: float) -> float:
        return sorted(values)[max(0, math.ceil(q / 100 * len(values)) - 1)]

    def at(values: Sequence[float], q: float) -> float:
        return sorted(values)[min(len(values) - 1, int(q / 100 * len(values)))]

    def ttfts(run: Run) -> list[float]:
        return [r.ttft for r in run.requests]

    def gaps(run: Run) -> list[float]:
        return [g for r in run.requests for g in r.itl]

    def percentiles_by(rule: Callable[[Sequence[float], float], float]) -> Callable[[Run], Any]:
        return lambda run: [
            *_rounded([rule(ttfts(run), 50), rule(ttfts(run), 99), rule(gaps(run), 99)]),
            *right_report(run)[3:],
        ]

    percentile_look = "`numpy.percentile(values, 99)`, which interpolates between neighbours."
    good_look = "A request is good when its TTFT *and* its TPOT keep their limits."
    faults = [
        Fault(percentiles_by(nearest),
              "Your percentiles pick one of the values. Expected is numpy's way: between the two "
              "neighbours.", percentile_look),
        Fault(percentiles_by(at),
              "Your percentiles pick one of the values. Expected is numpy's way: between the two "
              "neighbours.", percentile_look),
        Fault(but("median_ttft", lambda run: float(np.mean(ttfts(run)))),
              "`median_ttft` is the mean. A single slow request moves it; the median stays.",
              "`numpy.percentile(values, 50)`."),
        Fault(but("p99_ttft", lambda run: max(ttfts(run))),
              "`p99_ttft` is the maximum.", percentile_look),
        Fault(but("p99_ttft", lambda run: float(np.percentile(ttfts(run), 1))),
              "`p99_ttft` is the best end of the list: 1 % are below it. Expected is the value "
              "that 99 % are below.", percentile_look),
        Fault(but("p99_itl", lambda run: float(np.percentile(
                  [r.tpot for r in run.requests if r.tpot is not None], 99))),
              "`p99_itl` is taken over the requests' means (TPOT). A single long gap vanishes in a "
              "mean, and the user has felt it.",
              "Put the gaps of all requests into one list."),
        Fault(but("p99_itl", lambda run: float(np.mean(
                  [np.percentile(r.itl, 99) for r in run.requests if r.itl]))),
              "`p99_itl` is a mean of percentiles. That is no percentile of anything.",
              "Put the gaps of all requests into one list."),
        Fault(but("output_throughput", lambda run: len(gaps(run)) / run.duration),
              "Each request's first token is missing in `output_throughput`: n gaps are n + 1 "
              "tokens.", "`len(request.itl) + 1` tokens per request."),
        Fault(but("output_throughput", lambda run: len(run.requests) / run.duration),
              "`output_throughput` counts requests; expected tokens per second.",
              "`len(request.itl) + 1` tokens per request."),
        Fault(but("output_throughput",
                  lambda run: (len(run.requests) + len(gaps(run)))
                  / sum(r.e2e_latency for r in run.requests)),
              "`output_throughput` divides by the requests' own times. They ran side by side: "
              "divide by the duration of the run.", "`duration`."),
        Fault(but("request_goodput", lambda run: in_both(run) * run.duration),
              "`request_goodput` is a count. Expected are good requests per second.",
              "Divide by `duration`."),
        Fault(but("request_goodput", lambda run: in_both(run) * run.duration / len(run.requests)),
              "`request_goodput` is the part of the requests that are good. Expected are good "
              "requests per second.", "Divide by `duration`."),
        Fault(but("request_goodput", lambda run: good(run, lambda r: fast(run, r))),
              "`request_goodput` looks at TTFT only.", good_look),
        Fault(but("request_goodput", lambda run: good(run, lambda r: steady(run, r))),
              "`request_goodput` looks at TPOT only.", good_look),
        Fault(but("request_goodput",
                  lambda run: good(run, lambda r: fast(run, r) or steady(run, r))),
              "A request that keeps only one of the two limits is counted as good.", good_look),
        Fault(but("request_goodput", lambda run: good(
                  run, lambda r: r.tpot is not None and fast(run, r) and steady(run, r))),
              "Answers of one token are never good. They have no TPOT, so they cannot miss its "
              "limit.", "`request.tpot is None or request.tpot <= tpot_slo`."),
        Fault(but("request_goodput", lambda run: good(
                  run, lambda r: r.ttft < run.ttft_slo
                  and (r.tpot is None or r.tpot < run.tpot_slo))),
              "A request that just meets its limit is not counted as good.", "`<=`, not `<`."),
        Fault(but("request_goodput", lambda run: good(
                  run, lambda r: fast(run, r) and max(r.itl, default=0) <= run.tpot_slo)),
              "One long gap makes a request bad. The limit is for TPOT, the mean of the gaps.",
              good_look),
    ]  # fmt: skip

    def show(values: Any) -> str:
        return "\n".join(f"{name}: {value}" for name, value in zip(FIELDS, values, strict=True))

    runs = _runs()
    judge(runs, ask, right_report, told, faults,
          ("A number of the report is wrong.", "Compare the lines, one by one."), show)  # fmt: skip
    return (
        f"{len(runs)} runs: percentiles as numpy's, tokens and good requests per second. A system "
        "may have a high throughput and no goodput at all."
    )
