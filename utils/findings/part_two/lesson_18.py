"""What notebook 18 says about four servers under one load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CLOSE = 0.10  # speeds that differ by less are called equal


def who_leads(speeds: Mapping[str, Mapping[str, float]]) -> str:
    """Which server writes most, for each load.

    Args:
        speeds: load -> server -> tokens per second.
    """
    return " ".join(f"{_leader(load, found)}" for load, found in speeds.items())


def _leader(load: str, found: Mapping[str, float]) -> str:
    first, second, *_ = sorted(found, key=lambda name: -found[name])
    lead = found[first] / found[second]
    if lead < 1 + CLOSE:
        return f"With {load}, {first} and {second} write about the same."
    return f"With {load}, {first} writes most: {lead:.1f} times as much as {second}."


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
        rounds: server -> tokens per second of each round.
    """
    spreads = {name: max(speeds) / min(speeds) for name, speeds in rounds.items()}
    widest = max(spreads, key=lambda name: spreads[name])
    return (
        f"From its slowest round to its fastest, {widest} differs most, by a factor of "
        f"{spreads[widest]:.2f}. A lead that is smaller than this is no lead."
    )
