"""What a load test found: latencies, percentiles, and how many promises were kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SLO:
    """A service level objective: the longest time to first token, and per token after it."""

    ttft: float  # seconds
    tpot: float  # seconds


@dataclass
class Timing:
    """One request of a load test. Times in seconds since the test began.

    Args:
        intended: when it was to be sent. Latencies count from here, or else those requests that
            had to wait for a busy client would look good: this mistake is called coordinated
            omission (Gil Tene, "How NOT to Measure Latency").
        sent: when it was sent.
        token_times: when each piece of the answer came.
        num_tokens: tokens of the answer, as the server counts them.
        num_cached_tokens: tokens of the prompt that it found in its cache; None if it does not say.
        error: what went wrong; None if nothing did.
    """

    intended: float
    sent: float
    token_times: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to first token, from the intended start."""
        return self.token_times[0] - self.intended

    @property
    def ttft_from_sent(self) -> float:
        """Time to first token, from the real start: what a careless tool would report."""
        return self.token_times[0] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first. None if there is no second one."""
        if self.num_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.num_tokens - 1)

    @property
    def e2e(self) -> float:
        """From the intended start to the last token."""
        return self.token_times[-1] - self.intended

    @property
    def succeeded(self) -> bool:
        return self.error is None and bool(self.token_times)

    def meets(self, slo: SLO) -> bool:
        """Whether the answer came, and in time. A failed request keeps no promise."""
        in_time = self.succeeded and self.ttft <= slo.ttft
        return in_time and (self.tpot is None or self.tpot <= slo.tpot)


@dataclass
class LoadReport:
    """All requests of a load test.

    Args:
        timings: in the order of their intended starts, without those of the warm-up.
        seconds: from the first intended start to the end of the last answer.
    """

    timings: list[Timing]
    seconds: float

    @property
    def succeeded(self) -> list[Timing]:
        return [timing for timing in self.timings if timing.succeeded]

    @property
    def errors(self) -> list[str]:
        return [timing.error or "no token" for timing in self.timings if not timing.succeeded]

    @property
    def tokens_per_second(self) -> float:
        return sum(timing.num_tokens for timing in self.succeeded) / self.seconds

    @property
    def requests_per_second(self) -> float:
        return len(self.succeeded) / self.seconds

    @property
    def lateness(self) -> float:
        """The longest time by which a request was sent too late, in seconds: can one trust this?"""
        return max((timing.sent - timing.intended for timing in self.timings), default=0.0)

    def values(self, name: str) -> list[float]:
        """One figure of all requests that have it: "ttft", "tpot", "e2e" or "ttft_from_sent"."""
        found = (getattr(timing, name) for timing in self.succeeded)
        return [value for value in found if value is not None]

    def percentile(self, name: str, percent: float) -> float:
        """See `percentile` and `values`."""
        return percentile(self.values(name), percent)

    def attainment(self, slo: SLO) -> float:
        """The part of the requests for which the promise was kept, 0 to 1."""
        return sum(timing.meets(slo) for timing in self.timings) / len(self.timings)

    def goodput(self, slo: SLO) -> float:
        """Requests per second for which the promise was kept (DistServe, arXiv 2401.09670)."""
        return sum(timing.meets(slo) for timing in self.timings) / self.seconds

    def table(self, percents: Sequence[float] = (50, 90, 99)) -> str:
        """TTFT, TPOT and end-to-end latency at some percentiles, in milliseconds."""
        rows = [f"{'':8}" + "".join(f"{f'p{p:g}':>9}" for p in percents)]
        for name in ("ttft", "tpot", "e2e"):
            cells = [f"{1e3 * self.percentile(name, p):6.0f} ms" for p in percents]
            rows.append(f"{name.upper():8}" + "".join(cells))
        return "\n".join(rows)


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that is not exceeded by `percent` % of the values (the nearest rank).

    It is always a value that was measured, never one between two.

    Raises:
        ValueError: there are no values, or `percent` is not in (0, 100].
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("No values, so no percentile. Did every request fail? See `errors`.")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be in (0, 100], got {percent!r}.")
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]
