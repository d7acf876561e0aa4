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


def nearer(c_kl: Sequence[float], f_kl: Sequence[float], distance: Sequence[float]) -> str:
    """Which of (c) W + update and (f) Q(W + update) is nearer to what was trained.

    Args:
        c_kl, f_kl: KL divergence of (c) and of (f) from (a) at each answer token, in nats.
        distance: of their weights from Q(W) + update, of (c) and of (f), relative to its length.
    """
    middle, error = _interval([f - c for c, f in zip(c_kl, f_kl, strict=True)])
    said = (
        f"Their weights are {distance[0]:.1%} and {distance[1]:.1%} away from Q(W) + update, "
        f"their KL from (a) is {mean(c_kl):.2g} and {mean(f_kl):.2g}: "
        f"a difference of {middle:+.2g} ± {error:.2g}."
    )
    if abs(middle) <= error:
        return f"{said} The interval holds 0: in KL, these tokens cannot tell which is nearer."
    said = f"{said} So {'(f)' if middle < 0 else '(c)'} is nearer to (a)"
    if (middle < 0) == (distance[1] < distance[0]):
        return f"{said}, as its weights are."
    return f"{said}, though its weights are not: a length is not an effect."


def surer(differences: Sequence[float]) -> str:
    """Whether (f) is surer of the right answers than (c).

    Args:
        differences: loss of (f) minus loss of (c) at each answer token, in nats.
    """
    middle, error = _interval(differences)
    said = f"Loss of (f) minus loss of (c): {middle:+.4f} ± {error:.4f} nats per token"
    if abs(middle) <= error:
        return f"{said}. The interval holds 0: these tokens cannot tell the two apart."
    return (
        f"{said}. On these tokens {'(f)' if middle < 0 else '(c)'} is surer of the right answers."
    )


def _interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean, and how far to each side its 95 % interval reaches."""
    return mean(differences), 1.96 * stdev(differences) / sqrt(len(differences))
