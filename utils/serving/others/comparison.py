"""Servers by turns under one load: the same conversations, the same lengths of answers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from utils.processes.server import LocalServer
from utils.serving.load_generator import Body, LoadGenerator, chat_body
from utils.serving.load_report import LoadReport
from utils.serving.others.contenders import Contender

Messages = list[dict[str, str]]


class UnequalLoad(RuntimeError):
    """The servers did not do the same work, so their times say nothing about each other."""


async def one_round(
    chosen: Mapping[str, Contender],
    servers: Mapping[str, LocalServer],
    conversations: Sequence[Messages],
    num_users: int,
    max_tokens: int,
    warm_up: int,
) -> dict[str, LoadReport]:
    """Put each server under the same closed loop, one server after the other.

    Args:
        chosen, servers: by name; the order of `chosen` counts.
        conversations: the first `warm_up` are sent before the clock runs, by as many users, so that
            every slot of a server has worked before.
        num_users: requests at a time.
        max_tokens: of each answer, exactly.

    Raises:
        UnequalLoad: a request failed, or prompts or answers differ in their numbers of tokens.
    """
    reports: dict[str, LoadReport] = {}
    for name, contender in chosen.items():
        bodies: list[Body] = [
            contender.translate(chat_body(servers[name].model, messages, max_tokens))
            for messages in conversations
        ]
        async with LoadGenerator(servers[name].url) as load:
            warm = await load.closed_loop(bodies[:warm_up], num_users)
            check_same_work({name: warm}, max_tokens)
            reports[name] = await load.closed_loop(bodies[warm_up:], num_users)
    check_same_work(reports, max_tokens)
    return reports


def check_same_work(reports: Mapping[str, LoadReport], max_tokens: int) -> None:
    """Compare the numbers of tokens, as the servers counted them.

    Raises:
        UnequalLoad: they differ, or a request failed.
    """
    first = next(iter(reports))
    expected = sorted(timing.num_prompt_tokens for timing in reports[first].timings)
    for name, report in reports.items():
        if report.errors:
            raise UnequalLoad(f"{name} failed: {report.errors[0]}")
        lengths = sorted({timing.num_tokens for timing in report.timings})
        if lengths != [max_tokens]:
            raise UnequalLoad(f"{name} wrote {lengths} tokens. Expected {max_tokens} each time.")
        if sorted(timing.num_prompt_tokens for timing in report.timings) != expected:
            raise UnequalLoad(f"{name} and {first} did not read the same numbers of tokens.")


def measures(report: LoadReport) -> dict[str, float]:
    """Output tokens per second; medians of TTFT and TPOT, in seconds; and `cached`, the part of the
    prompts' tokens that the server found in its cache, where it says so of every answer."""
    found = {
        "tokens_per_second": report.tokens_per_second,
        "ttft": report.percentile("ttft", 50),
        "tpot": report.percentile("tpot", 50),
    }
    told = [t.num_cached_tokens for t in report.timings if t.num_cached_tokens is not None]
    if len(told) == len(report.timings):
        found["cached"] = sum(told) / sum(timing.num_prompt_tokens for timing in report.timings)
    return found


def summary(rounds: Sequence[Mapping[str, Mapping[str, float]]], base: str) -> dict[str, Any]:
    """Medians over rounds; ratios are taken within a round, so that a slow minute slows all.

    Args:
        rounds: for each round, name -> `measures`.
        base: whom the others are compared with.

    Returns:
        By name: the median of each measure that all rounds have, `rounds` (tokens per second of
        each round), and `times_base`: the median of the rounds' ratios of tokens per second to
        those of `base`.
    """
    found: dict[str, Any] = {}
    for name in rounds[0]:
        speeds = [a_round[name]["tokens_per_second"] for a_round in rounds]
        ratios = [
            a_round[name]["tokens_per_second"] / a_round[base]["tokens_per_second"]
            for a_round in rounds
        ]
        measured = [m for m in rounds[0][name] if all(m in a_round[name] for a_round in rounds)]
        found[name] = {m: statistics.median(r[name][m] for r in rounds) for m in measured}
        found[name] |= {"rounds": speeds, "times_base": statistics.median(ratios)}
    return found
