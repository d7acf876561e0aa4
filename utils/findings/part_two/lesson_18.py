"""What notebook 18 says about four servers under one load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

CLOSE = 0.10  # speeds that differ by less are close to each other


def who_leads(loads: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Which server writes most, for each load: load -> what `leader` takes."""
    return " ".join(leader(load, found) for load, found in loads.items())


def leader(load: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """Which server writes most under one load. A lead counts if it holds in every round.

    Also a figure's title.

    Args:
        load: its name.
        found: server -> `tokens_per_second`, the median, and `rounds`, the same of each round;
            at least two servers, all with the same rounds.
    """
    first = max(found, key=lambda name: found[name]["tokens_per_second"])
    ratios = {
        name: [a / b for a, b in zip(found[first]["rounds"], other["rounds"], strict=True)]
        for name, other in found.items()
        if name != first
    }
    rival = min(ratios, key=lambda name: min(ratios[name]))
    least, most = min(ratios[rival]), max(ratios[rival])
    if least < 1 + CLOSE:
        return (
            f"With {load}, there is no clear lead: round by round, {first} wrote {least:.2f} to "
            f"{most:.2f} times as much as {rival}."
        )
    return (
        f"With {load}, {first} writes most in every round: at least "
        f"{math.floor(10 * least) / 10:.1f} times as much as {rival}."
    )


def company_pays(alone: Mapping[str, float], crowd: Mapping[str, float], users: int) -> str:
    """What running together brings each server.

    Args:
        alone, crowd: server -> tokens per second with one user, and with `users` of them.
    """
    gains = {name: crowd[name] / alone[name] for name in alone}
    rows = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
    said = f"Tokens per second with {users} users, by those with one: {rows}."
    flat = [name for name, gain in gains.items() if gain < 1 + 2 * CLOSE]
    if not flat:
        return f"{said} All gain from company."
    return f"{said} No gain worth the name: {' and '.join(flat)}."


def rounds_agree(rounds: Mapping[str, Sequence[float]]) -> str:
    """How far the rounds of each server lie apart: what one may read into the bars.

    Args:
        rounds: server and load, in words -> tokens per second of each round.
    """
    spreads = {name: max(speeds) / min(speeds) for name, speeds in rounds.items()}
    widest = max(spreads, key=lambda name: spreads[name])
    return (
        f"From slowest round to fastest, {widest} differs most, by a factor of "
        f"{spreads[widest]:.2f}. So look at the thin lines before you read a lead into two bars."
    )
