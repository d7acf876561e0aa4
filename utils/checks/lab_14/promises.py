"""Attainment and goodput of a load test, counted honestly: exercise 3."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Once, Returns, mistake


@dataclass(frozen=True)
class Attempt:
    """One try of a load test to get an answer. Times in seconds since the test began.

    Args:
        request_id: whose request it is. Who is refused may try again, under the same id.
        due: when the schedule wanted it to be sent.
        sent: when it was sent.
        status: 200, or what the server said instead (503: refused).
        token_times: when each piece of the answer came; a piece can hold several tokens.
        num_tokens: tokens of the answer, as the server counts them.
        finished: whether the answer came to its end before the test was over.
    """

    request_id: str
    due: float
    sent: float
    status: int = 200
    token_times: tuple[float, ...] = ()
    num_tokens: int = 0
    finished: bool = False


def draw_attempts(c: Choices) -> Given:
    """All times are multiples of 1/8, so that what is just in time is so exactly."""
    names = iter([f"r{n}" for n in range(100)])
    scale = c.pick((1, 1, 1000))

    def eighths(low: int, high: int) -> float:
        return scale * c.integer(low, high) / 8

    def attempt(name: str, due: float) -> Attempt:
        sent = due + (eighths(0, 16) if c.rarely(3) else 0)
        kind = c.pick(("done", "done", "done", "done", "unfinished", "silent", "broken", "refused"))
        if kind == "refused":
            return Attempt(name, due, sent, c.pick((503, 500, 429)))
        pieces = c.integer(1, 5)
        times = [sent + eighths(0, 16)]
        for _ in range(pieces - 1):
            times.append(times[-1] + eighths(0, 8))
        num_tokens = 1 + c.pick([n for n in (0, 1, 2, 4, 8) if n >= pieces - 1])
        status = c.pick((500, 503, 404)) if kind == "broken" else 200
        if kind == "silent":
            times, num_tokens = [], 0
        finished = kind == "done" or (kind == "broken" and c.rarely(2))
        return Attempt(name, due, sent, status, tuple(times), num_tokens, finished)

    def request() -> list[Attempt]:
        made = [attempt(next(names), eighths(0, 160))]
        while len(made) < 4 and c.rarely(2):
            made.append(attempt(made[0].request_id, made[-1].sent + eighths(0, c.pick((2, 16)))))
        return made

    attempts = [one for made in c.some(request, 0, 12) for one in made]
    end_at = c.pick(attempts).due if attempts and c.rarely(2) else 0.0
    if c.rarely(2):
        attempts = c.shuffled(attempts)
    if c.rarely(4):
        attempts = Once(attempts)
    begin = eighths(0, 80) if c.rarely(2) else 0.0
    end = end_at if end_at > begin else begin + eighths(1, 160)
    return Given(
        attempts, begin, end, eighths(1, 16), eighths(0, 3) if c.rarely(2) else eighths(0, 8)
    )


def count(
    attempts: Iterable[Attempt], begin: float, end: float, ttft: float, tpot: float
) -> tuple[float, float]:
    """One request after the other; each looked for among all attempts."""
    everything = list(attempts)
    num_requests = num_kept = 0
    for name in {attempt.request_id for attempt in everything}:
        mine = [attempt for attempt in everything if attempt.request_id == name]
        due = min(attempt.due for attempt in mine)
        if begin <= due < end:
            num_requests += 1
            num_kept += any(kept(attempt, due, ttft, tpot) for attempt in mine)
    return num_kept / num_requests if num_requests else math.nan, num_kept / (end - begin)


def kept(attempt: Attempt, due: float, ttft: float, tpot: float) -> bool:
    if attempt.status != 200 or not attempt.finished or attempt.token_times[0] > due + ttft:
        return False
    writing = attempt.token_times[-1] - attempt.token_times[0]
    return attempt.num_tokens < 2 or writing <= tpot * (attempt.num_tokens - 1)


def _changed(change: Any) -> Any:
    """A right answer that sees other attempts."""

    def report(attempts: Any, begin: float, end: float, ttft: float, tpot: float) -> Any:
        return count(change(list(attempts)), begin, end, ttft, tpot)

    return report


def _sent(attempts: list[Attempt]) -> list[Attempt]:
    return [replace(a, due=a.sent) for a in attempts]


def _each_attempt(attempts: list[Attempt]) -> list[Attempt]:
    return [replace(a, request_id=f"{n}") for n, a in enumerate(attempts)]


def _last_due(attempts: list[Attempt]) -> list[Attempt]:
    last = {
        a.request_id: max(b.due for b in attempts if b.request_id == a.request_id) for a in attempts
    }
    return [replace(a, due=last[a.request_id]) for a in attempts]


def _no_errors(attempts: list[Attempt]) -> list[Attempt]:
    return [a for a in attempts if a.status == 200]


def _only_finished(attempts: list[Attempt]) -> list[Attempt]:
    return [a for a in attempts if a.finished]


def _not_the_unfinished(attempts: list[Attempt]) -> list[Attempt]:
    return [a for a in attempts if a.finished or a.status != 200]


def _taken_as_finished(attempts: list[Attempt]) -> list[Attempt]:
    return [replace(a, finished=bool(a.token_times)) for a in attempts]


def _pieces(attempts: list[Attempt]) -> list[Attempt]:
    return [replace(a, num_tokens=len(a.token_times)) for a in attempts]


def _one_more(attempts: list[Attempt]) -> list[Attempt]:
    return [replace(a, num_tokens=a.num_tokens + 1) for a in attempts]


def _without_begin(attempts: Any, begin: float, end: float, ttft: float, tpot: float) -> Any:
    share, rate = count(attempts, 0.0, end, ttft, tpot)
    return share, rate * end / (end - begin)


def _strict(attempts: Any, begin: float, end: float, ttft: float, tpot: float) -> Any:
    return count(attempts, begin, end, ttft - 1e-6, tpot)


SLO_REPORT = Contract(
    inputs=draw_attempts,
    judge=Returns(count),
    passed="Right. Who was refused, or is still waiting, was kept no promise, and is counted.",
    clauses={
        "returns": Clause(
            "Attainment and goodput are wrong. {says}",
            "Go through the contract, sentence by sentence: who counts, from when, "
            "and who is in time?",
        ),
        "raises": Clause("{says}", "An attempt can have no token at all; a window no request."),
    },
    mistakes=(
        mistake(
            "Waits are counted from when a request was *sent*. That is coordinated omission: a "
            "tool that is held up by the server hides the wait.",
            "Count from `due`.",
            _changed(_sent),
        ),
        mistake(
            "Each attempt is counted as a request. Who tries three times is one person.",
            "Group the attempts by `request_id`.",
            _changed(_each_attempt),
        ),
        mistake(
            "Who was refused and tried again has waited since the *first* attempt was due.",
            "The smallest `due` among the request's attempts.",
            _changed(_last_due),
        ),
        mistake(
            "Requests that were refused or failed are left out: the more a server refuses, the "
            "better it looks.",
            "They count, and have kept no promise.",
            _changed(_no_errors),
        ),
        mistake(
            "Only finished requests are counted. Those that a slow server has not finished are "
            "just those that broke their promise.",
            "They count, and have kept no promise.",
            _changed(_only_finished),
            _changed(_not_the_unfinished),
        ),
        mistake(
            "An answer that has not come to its end is counted as kept.",
            "Without `finished` no promise is kept.",
            _changed(_taken_as_finished),
        ),
        mistake(
            "A piece can hold several tokens: `token_times` has a time for each piece.",
            "Divide by `num_tokens - 1`.",
            _changed(_pieces),
        ),
        mistake(
            "The time per token after the first: of n tokens, n - 1 come after it.",
            "Divide by `num_tokens - 1`.",
            _changed(_one_more),
        ),
        mistake(
            "What was due before `begin` is warm-up, and not counted.",
            "`begin <= due < end`.",
            _without_begin,
        ),
        mistake("Just in time is in time.", "`<=`.", _strict),
    ),
)
