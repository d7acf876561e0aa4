"""What lab 08 says of the report of a run: exercise 7."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.lab_08.request_times import Latencies

FIELDS = ("median_ttft", "p99_ttft", "p99_itl", "output_throughput", "request_goodput")
Report = dict[str, float]


def request_of(ttft: float, itl: Sequence[float]) -> Latencies:
    tpot = sum(itl) / len(itl) if itl else None
    return Latencies(ttft / 2, ttft, tpot, list(itl), ttft + sum(itl))


def draw(c: Choices) -> Given:
    """Few requests or hundreds; milliseconds or hours; limits that some just keep."""
    unit = c.pick((0.125, 2.0**-20, 1024.0))

    def request() -> Latencies:
        gaps = c.some(lambda: c.integer(0, 16) * unit, 0, 6)
        return request_of(c.integer(0, 40) * unit, gaps)

    requests = c.some(request, 0, 12)
    if c.rarely(5):  # so many that the 99th of a hundred is another one than the last
        first = c.integer(0, 40)
        requests += [
            request_of((first + 7 * i % 41) * unit, [3 * i % 17 * unit])
            for i in range(c.integer(0, 300))
        ]
    requests.insert(c.integer(0, len(requests)), request_of(c.integer(1, 8) * unit, [unit]))
    ttft_slo = c.pick((16 * unit, c.pick(requests).ttft))
    tpot_slo = c.pick((8 * unit, c.pick(requests).tpot or unit))
    return Given(requests, c.pick((1.0, 4, 0.5, 3600.0)), ttft_slo, tpot_slo)


def right_report(
    requests: list[Latencies], duration: float, ttft_slo: float, tpot_slo: float
) -> Report:
    """The oracle: numpy's percentiles, and counting."""
    ttfts = [request.ttft for request in requests]
    gaps = [gap for request in requests for gap in request.itl]
    good = 0
    for request in requests:
        in_time = request.ttft <= ttft_slo
        steady = request.tpot is None or request.tpot <= tpot_slo
        good += in_time and steady
    return {
        "median_ttft": float(np.percentile(ttfts, 50)),
        "p99_ttft": float(np.percentile(ttfts, 99)),
        "p99_itl": float(np.percentile(gaps, 99)),
        "output_throughput": (len(requests) + len(gaps)) / duration,
        "request_goodput": good / duration,
    }


def _fault(expected: Report, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, dict) or set(got) != set(FIELDS):
        return Fault("form", "", ", ".join(FIELDS), got)
    for name, want in expected.items():
        if says := difference(want, got[name], rtol=1e-6):
            words = f"{want:.6g}", f"{got[name]:.6g}" if isinstance(got[name], float) else str(got)
            return Fault(name, "", expected, got, says, words=words)
    return None


def _told(given: Given) -> str:
    requests, duration, ttft_slo, tpot_slo = given.args
    shown = "; ".join(f"TTFT {r.ttft:g}, gaps {r.itl}" for r in requests[:4])
    more = "; ..." if len(requests) > 4 else ""
    return (
        f"{len(requests)} requests in {duration:g} s ({shown}{more}); limits: TTFT "
        f"{ttft_slo:g} s, TPOT {tpot_slo:g} s"
    )


Rule = Callable[[list[Latencies], float], float]


def _but(**changes: Rule) -> Callable[..., Report]:
    """The right answer, with another rule for one field: of the requests, and the duration."""

    def wrong(requests: list[Latencies], duration: float, ttft: float, tpot: float) -> Report:
        right = right_report(requests, duration, ttft, tpot)
        return right | {name: rule(requests, duration) for name, rule in changes.items()}

    return wrong


def _good(rule: Callable[[Latencies, bool, bool, float], bool]) -> Callable[..., Report]:
    """Another rule for who is good: of the request, `fast`, `steady` and the TPOT limit."""

    def wrong(requests: list[Latencies], duration: float, ttft: float, tpot: float) -> Report:
        good = sum(
            rule(r, r.ttft <= ttft, r.tpot is None or r.tpot <= tpot, tpot) for r in requests
        )
        return right_report(requests, duration, ttft, tpot) | {"request_goodput": good / duration}

    return wrong


def _strict(requests: list[Latencies], duration: float, ttft: float, tpot: float) -> Report:
    good = sum(r.ttft < ttft and (r.tpot is None or r.tpot < tpot) for r in requests)
    return right_report(requests, duration, ttft, tpot) | {"request_goodput": good / duration}


def _scaled(rule: Callable[[int, int], float]) -> Callable[..., Report]:
    """Another goodput, made of the number of good requests, and of all."""

    def wrong(requests: list[Latencies], duration: float, *limits: float) -> Report:
        right = right_report(requests, duration, *limits)
        good = round(right["request_goodput"] * duration)
        return right | {"request_goodput": rule(good, len(requests))}

    return wrong


def _one_of(rule: Callable[[int, float], int]) -> Callable[..., Report]:
    """Percentiles that pick one of the values."""

    def percentile(values: list[float], share: float) -> float:
        return sorted(values)[min(len(values) - 1, max(0, rule(len(values), share)))]

    return _but(
        median_ttft=lambda rs, d: percentile(_ttfts(rs), 0.5),
        p99_ttft=lambda rs, d: percentile(_ttfts(rs), 0.99),
        p99_itl=lambda rs, d: percentile(_gaps(rs), 0.99),
    )


def _ttfts(requests: list[Latencies]) -> list[float]:
    return [request.ttft for request in requests]


def _gaps(requests: list[Latencies]) -> list[float]:
    return [gap for request in requests for gap in request.itl]


NUMPYS = "`numpy.percentile(values, 99)`, which interpolates between neighbours."
GOOD = "A request is good when its TTFT *and* its TPOT keep their limits."
TOKENS = "`len(request.itl) + 1` tokens per request, divided by `duration`."

SERVING_REPORT = Contract(
    inputs=draw,
    judge=Returns(right_report, wrong=_fault),
    passed="Right for runs of one request and of hundreds: percentiles as numpy's, tokens and good "
    "requests per second. A system may have a high throughput and no goodput at all.",
    clauses={
        "form": Clause("Your function returned {got}; expected a dict with the keys {expected}."),
        "median_ttft": Clause("`median_ttft` is wrong. {says}", "`numpy.percentile(values, 50)`."),
        "p99_ttft": Clause("`p99_ttft` is wrong. {says}", NUMPYS),
        "p99_itl": Clause(
            "`p99_itl` is wrong. {says}", "Put the gaps of all requests into one list. " + NUMPYS
        ),
        "output_throughput": Clause("`output_throughput` is wrong. {says}", TOKENS),
        "request_goodput": Clause("`request_goodput` is wrong. {says}", GOOD),
    },
    mistakes=(
        mistake(
            "Your percentiles pick one of the values. Expected is numpy's way: between the two "
            "neighbours.",
            NUMPYS,
            _one_of(lambda n, q: math.ceil(q * n) - 1),
            _one_of(lambda n, q: int(q * n)),
        ),
        mistake(
            "`median_ttft` is the mean. A single slow request moves it; the median stays.",
            "`numpy.percentile(values, 50)`.",
            _but(median_ttft=lambda rs, d: float(np.mean(_ttfts(rs)))),
        ),
        mistake("`p99_ttft` is the maximum.", NUMPYS, _but(p99_ttft=lambda rs, d: max(_ttfts(rs)))),
        mistake(
            "`p99_itl` is taken over the requests' means (TPOT). A single long gap vanishes in "
            "a mean, and the user has felt it.",
            "Put the gaps of all requests into one list.",
            _but(
                p99_itl=lambda rs, d: float(
                    np.percentile([r.tpot for r in rs if r.tpot is not None], 99)
                )
            ),
        ),
        mistake(
            "`p99_itl` is a mean of percentiles. That is no percentile of anything.",
            "Put the gaps of all requests into one list.",
            _but(
                p99_itl=lambda rs, d: float(
                    np.mean([np.percentile(r.itl, 99) for r in rs if r.itl])
                )
            ),
        ),
        mistake(
            "Each request's first token is missing in `output_throughput`: n gaps are n + 1 "
            "tokens.",
            TOKENS,
            _but(output_throughput=lambda rs, d: len(_gaps(rs)) / d),
        ),
        mistake(
            "`output_throughput` divides by the requests' own times. They ran side by side: "
            "divide by the duration of the run.",
            TOKENS,
            _but(
                output_throughput=lambda rs, d: (
                    (len(rs) + len(_gaps(rs))) / sum(r.e2e_latency for r in rs)
                )
            ),
        ),
        mistake(
            "`request_goodput` is a count. Expected are good requests per second.",
            "Divide by `duration`.",
            _scaled(lambda good, n: good),
        ),
        mistake(
            "`request_goodput` is the part of the requests that are good. Expected are good "
            "requests per second.",
            "Divide by `duration`.",
            _scaled(lambda good, n: good / n),
        ),
        mistake("`request_goodput` looks at TTFT only.", GOOD, _good(lambda r, f, s, t: f)),
        mistake(
            "A request that keeps only one of the two limits is counted as good.",
            GOOD,
            _good(lambda r, f, s, t: f or s),
        ),
        mistake(
            "Answers of one token are never good. They have no TPOT, so they cannot miss its "
            "limit.",
            "`request.tpot is None or request.tpot <= tpot_slo`.",
            _good(lambda r, f, s, t: f and s and r.tpot is not None),
        ),
        mistake(
            "A request that just meets its limit is not counted as good.", "`<=`, not `<`.", _strict
        ),
        mistake(
            "One long gap makes a request bad. The limit is for TPOT, the mean of the gaps.",
            GOOD,
            _good(lambda r, f, s, t: f and max(r.itl, default=0) <= t),
        ),
    ),
    tell=_told,
)
