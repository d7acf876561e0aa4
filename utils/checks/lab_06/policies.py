"""A busy minute at a server: which policy keeps people waiting the least?

There is no model: a clock says how long each step would take. All else is the learner's own: the
scheduler, and the priority of each request.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_06 import answers
from utils.checks.lab_06.bare import bare_request, name_of
from utils.checks.lab_06.learners_engine import Watched, patiently
from utils.checks.lab_06.scheduler_story import Limits, config_of
from utils.engine.core.kv_cache_manager import KVCacheManager

STEP_S, TOKEN_S = 0.01, 0.0005  # of each step, and of each token in it
LIMITS = Limits(max_num_seqs=16, budget=256, num_blocks=20_000, block_size=16)
MEAN_S, LONGEST_S = 2.5, 15.0  # until the first token
LONG = 1000  # tokens of a prompt that is a document
Priority = Callable[[int, float], Any]


@dataclass(frozen=True)
class Visit:
    """One request: seconds after the start, tokens of its prompt and of its answer."""

    arrival: float
    num_prompt: int
    num_answer: int


@functools.cache
def visits() -> tuple[Visit, ...]:
    """Short questions come all the time, and long documents between them."""
    dice, now, found = random.Random(6), 0.0, []
    for _ in range(120):
        now += dice.expovariate(2.8)
        long = dice.random() < 0.2
        num_prompt = dice.randint(1500, 3000) if long else dice.randint(20, 200)
        found.append(Visit(now, num_prompt, dice.randint(5, 25)))
    return tuple(found)


def waits(scheduler_class: Any, priority: Priority) -> list[float]:
    """The seconds from each arrival to the first token."""
    manager = KVCacheManager(LIMITS.num_blocks, LIMITS.block_size, enable_caching=False)
    scheduler = Watched(scheduler_class, config_of(LIMITS), manager)
    coming, requests = list(enumerate(visits())), {}
    first: dict[str, float] = {}
    now = 0.0
    while coming or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[0][1].arrival)
        while coming and coming[0][1].arrival <= now:
            number, visit = coming.pop(0)
            requests[name_of(number)] = bare_request(
                name_of(number),
                visit.num_prompt,
                max_tokens=visit.num_answer,
                arrival_time=visit.arrival,
                priority=number_of(priority, visit),
            )
            scheduler.add_request(requests[name_of(number)])
        output, sampled = scheduler.schedule(), []
        now += STEP_S + TOKEN_S * sum(output.num_scheduled_tokens.values())
        for name, count in output.num_scheduled_tokens.items():
            if requests[name].lacking == count:
                requests[name].append_token(100)
                first.setdefault(name, now)
                sampled.append(requests[name])
        scheduler.update_from_output(output, sampled)
    return [first[name] - request.arrival_time for name, request in requests.items()]


def number_of(priority: Priority, visit: Visit) -> Any:
    got = patiently(priority, visit.num_prompt, visit.arrival)
    if not isinstance(got, Real) or got != got:
        raise Mismatch(
            f"`my_priority` returned {got!r}. Expected a number.",
            input=f"num_prompt_tokens {visit.num_prompt}, arrival_time {visit.arrival:.2f}",
            look="The request with the lower number is served first.",
        )
    return got


@functools.cache
def first_come() -> list[float]:
    return waits(answers.MyScheduler, lambda num_prompt_tokens, arrival_time: 0)


def judge(scheduler_class: Any, priority: Priority) -> Passed:
    """Both promises must be kept: the mean, and the longest wait."""
    theirs, mine = first_come(), waits(scheduler_class, priority)
    before, mean, longest = sum(theirs) / len(theirs), sum(mine) / len(mine), max(mine)
    title = f"Your policy: {mean:.1f} s to the first token on average, at most {longest:.1f} s"
    figure, alt = draw(theirs, mine, title), "The wait of each request, by its arrival."
    told = f"a mean of {mean:.1f} s, and at most {longest:.1f} s"
    promise = f"a mean of at most {MEAN_S} s, and nobody waits longer than {LONGEST_S:.0f} s"
    if mean > MEAN_S:
        raise Mismatch(
            f"The first token takes {mean:.1f} s on average. First come, first served takes "
            f"{before:.1f} s.",
            expected=promise,
            got=told,
            look="Which requests make many others wait? A document of 3,000 tokens keeps the "
            "budget of a dozen steps to itself.",
            figure=figure,
            alt=alt,
        )
    if longest > LONGEST_S:
        raise Mismatch(
            f"The mean is good: {mean:.1f} s. But one request waits {longest:.1f} s, because "
            "others overtake it again and again.",
            expected=promise,
            got=told,
            look="Let a request that came earlier have a lower number, too: add something that "
            "grows with `arrival_time`.",
            figure=figure,
            alt=alt,
        )
    return Passed(
        f"Your policy works: the first token takes {mean:.1f} s on average instead of "
        f"{before:.1f} s, and nobody waits longer than {longest:.1f} s. The course's own attempt, "
        "`num_prompt_tokens + 300 * arrival_time`, takes 2.0 s and 10.1 s. Can you beat it?",
        figure,
        alt,
    )


def draw(theirs: list[float], mine: list[float], title: str) -> Figure:
    """Each request's wait: first come, first served in grey, the learner's in color."""
    figure = Figure(figsize=(7.4, 3.6), layout="constrained")
    ax = figure.subplots()
    long = [visit.num_prompt > LONG for visit in visits()]
    for label, seconds, color in (
        ("first come, first served", theirs, "#b0b0b0"),
        ("yours", mine, "#1f4e9c"),
    ):
        for kind, marker in ((False, "o"), (True, "s")):
            some = [i for i, is_long in enumerate(long) if is_long == kind]
            ax.scatter(
                [visits()[i].arrival for i in some],
                [seconds[i] for i in some],
                s=40 if kind else 12,
                marker=marker,
                color=color,
                label=f"{label}, {'documents' if kind else 'questions'}",
            )
    ax.axhline(LONGEST_S, color="#333333", linestyle="--", linewidth=1, label="the promise")
    ax.set_ylim(0, None)
    ax.set_xlabel("arrival (s)", size=9)
    ax.set_ylabel("until the first token (s)", size=9)
    ax.set_title(title, size=11)
    ax.tick_params(labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure
