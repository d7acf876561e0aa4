"""What the measurements of notebook 06 show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

AGAIN = "A busy machine does that; run the cells again."


def batch_sweep(
    batch_sizes: Sequence[int], seconds: Sequence[float], predicted: float, measured: float
) -> str:
    """Where is the knee, and what do more requests bring before and behind it?

    Args:
        batch_sizes: requests in a decode step, growing.
        seconds: of a step.
        predicted: the knee, in requests, from the machine's peaks.
        measured: the knee, in requests, from a straight line through the steps. Not above 0, or
            infinite, where the line does not rise as it should.
    """
    if not 0 < measured < 10 * batch_sizes[-1]:
        return f"Here it is otherwise: the steps lie on no line that has a knee. {AGAIN}"
    sentence = f"predicted knee: {predicted:.0f} requests, measured: {measured:.0f}."
    if measured > 1.5 * predicted:
        sentence += " It comes later: what all requests share costs more than reading the weights."
    elif measured < predicted / 1.5:
        sentence += " It comes earlier: a request costs more than arithmetic at the peak."
    knee = max((b for b in batch_sizes[1:-1] if b <= measured), default=batch_sizes[1])
    i = list(batch_sizes).index(knee)
    for first, last in ((0, i), (i, len(batch_sizes) - 1)):
        longer = seconds[last] / seconds[first]
        more = batch_sizes[last] / batch_sizes[first] / longer
        sentence += (
            f"\nfrom {batch_sizes[first]} to {batch_sizes[last]} requests: a step takes "
            f"{longer:.1f} times as long, and makes {more:.1f} times the tokens per second"
        )
    return sentence


def as_foreseen(predicted: Mapping[str, float], measured: Mapping[str, float]) -> str:
    """How far are the policies from their prediction, and may one compare them?

    Args:
        predicted, measured: mean seconds per output token, by policy.
    """
    factors = {name: measured[name] / predicted[name] for name in predicted}
    told = ", ".join(f"{factor:.1f} ({name})" for name, factor in factors.items())
    sentence = f"measured over predicted time per output token: {told}."
    worst = max(factors, key=lambda name: factors[name])
    if factors[worst] <= 1.4 * min(factors.values()):
        return sentence
    return f"{sentence} Something disturbed the {worst} run: do not compare the two. {AGAIN}"


def waits(static: Mapping[str, float], continuous: Mapping[str, float]) -> str:
    """Who waits less for the first token when requests may join a running batch, and who more?

    Somebody's difference of less than a twentieth of the mean wait is noise, and not told.

    Args:
        static, continuous: seconds to the first token, by request.
    """
    before, after = mean(static.values()), mean(continuous.values())
    sentence = f"mean wait for the first token: {before:.2f} s static, {after:.2f} s continuous."
    longer = [name for name in static if continuous[name] > static[name] + 0.05 * before]
    if after >= before:
        return f"{sentence} Here it is otherwise than predicted. {AGAIN}"
    if not longer:
        return f"{sentence} Nobody waits longer than before."
    names = " and ".join(", ".join(longer).rsplit(", ", 1))
    return f"{sentence} Longer than before: {names}."


def sooner(static: Mapping[str, float], continuous: Mapping[str, float]) -> str:
    """How much sooner the first tokens come when requests may join a running batch. A title.

    Args:
        static, continuous: seconds to the first token, by request.
    """
    times = mean(static.values()) / mean(continuous.values())
    if times >= 1.1:
        return f"With continuous batching the first token comes {times:.1f} times sooner on average"
    late = "hardly sooner" if times > 1 else "no sooner"
    return f"Here the first token comes {late} with continuous batching, on average"


def budgets(
    sizes: Sequence[int], gaps: Sequence[float], ttfts: Sequence[float], predicted: Sequence[float]
) -> str:
    """What does a smaller budget do to those who read, and to the newcomer?

    Args:
        sizes: tokens per step, falling.
        gaps: the longest measured stop of a chat, in seconds, for each.
        ttfts: the newcomer's measured wait in seconds, for each.
        predicted: the predicted stop in seconds, for each.
    """
    far = max(gap / guess for gap, guess in zip(gaps, predicted, strict=True))
    sentence = f"measured stops are up to {far:.1f} times the predicted ones. "
    if gaps[-1] >= gaps[0]:
        return sentence + f"Here a smaller budget does not shorten the stop. {AGAIN}"
    sentence += f"From budget {sizes[0]} to {sizes[-1]} the stop becomes "
    sentence += f"{gaps[0] / gaps[-1]:.1f} times shorter, the newcomer's wait "
    if ttfts[-1] <= ttfts[0]:
        return sentence + "no longer: here the price does not show."
    return sentence + f"{ttfts[-1] / ttfts[0]:.1f} times longer."
