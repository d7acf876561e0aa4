"""What notebook 11 says about the merged models that it has just measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev


def step_cost(numbers: float, seconds: float) -> str:
    """Whether the adapter's numbers explain the time that it costs.

    Args:
        numbers: numbers of the adapter by those of the model, such as 0.04.
        seconds: time of a step with the adapter by that of one without, such as 1.2.
    """
    more = seconds - 1
    if more <= 0:
        return (
            "Here the step got no slower: the machine was busy with something else. Run it again."
        )
    said = f"{numbers:.0%} more numbers, {more:.0%} more time"
    if more > 1.5 * numbers:
        return f"{said}: more than the numbers explain."
    return f"{said}: on this machine, about what the numbers explain."


def nearer(kl: Sequence[float], distance: Sequence[float]) -> str:
    """Which of (c) W + update and (f) Q(W + update) is nearer to what was trained.

    Args:
        kl: KL divergence from (a), of (c) and of (f), in nats.
        distance: of their weights from Q(W) + update, of (c) and of (f), relative to its length.
    """
    weights = f"Their weights are {distance[0]:.1%} and {distance[1]:.1%} away from Q(W) + update."
    (first, low), (second, high) = sorted(zip(("(c)", "(f)"), kl, strict=True), key=lambda p: p[1])
    if high < 1.1 * low:
        return f"{weights} In KL they are equally far from (a): {kl[0]:.2g} and {kl[1]:.2g}."
    said = f"{weights} In KL {first} is nearer to (a): {low:.2g}, and {second} {high:.2g}."
    if (first == "(f)") == (distance[1] < distance[0]):
        return f"{said} So the one whose weights are nearer is nearer in what it says."
    return f"{said} So nearer weights are not all: a length is not an effect."


def surer(differences: Sequence[float]) -> str:
    """Whether (f) is surer of the right answers than (c).

    Args:
        differences: loss of (f) minus loss of (c) at each answer token, in nats.
    """
    middle, error = mean(differences), 1.96 * stdev(differences) / sqrt(len(differences))
    said = f"Loss of (f) minus loss of (c): {middle:+.4f} ± {error:.4f} nats per token"
    if abs(middle) <= error:
        return f"{said}. The interval holds 0: these tokens cannot tell the two apart."
    return (
        f"{said}. On these tokens {'(f)' if middle < 0 else '(c)'} is surer of the right answers."
    )
