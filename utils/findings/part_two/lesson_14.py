"""What notebook 14 says about the load that it has just measured."""

from __future__ import annotations

from collections.abc import Sequence

NEAR = 0.2  # a difference of shares that a handful of requests makes
FAR = 2.0  # so many times as long is more than noise


def bursts_agree(predicted: float, measured: float) -> str:
    """Whether a, c and T_p explain how long a request alone waited for its first token.

    Args:
        predicted: a + c + T_p, in seconds.
        measured: the wait, in seconds. It holds the way there and back, too.
    """
    said = (
        f"By these numbers a request alone waits {1e3 * predicted:.0f} ms for its first token; "
        f"measured: {1e3 * measured:.0f} ms."
    )
    if measured > FAR * predicted:
        return (
            f"{said} They do not explain the wait. Either something disturbed the bursts: run the "
            "cell again. Or the engine is so fast here that HTTP is much of it."
        )
    if predicted > FAR * measured:
        return f"{said} That cannot be: something disturbed the bursts. Run the cell again."
    return said


def promises_kept(rates: Sequence[float], kept: Sequence[float], expected: Sequence[float]) -> str:
    """Whether promises broke where the simulation said so.

    Args:
        rates: requests per second that were sent, ascending.
        kept: at each rate, the part of the answers that was in time, 0 to 1.
        expected: the same, simulated with the same arrivals.
    """
    worst = max(range(len(rates)), key=lambda i: abs(kept[i] - expected[i]))
    where = (
        f"at {rates[worst]:.1f}/s {kept[worst]:.0%} were in time, simulated {expected[worst]:.0%}"
    )
    if abs(kept[worst] - expected[worst]) <= NEAR:
        measured, simulated = (", ".join(f"{s:.0%}" for s in shares) for shares in (kept, expected))
        return f"In time, rate by rate: {measured}; simulated with the same arrivals: {simulated}."
    if kept[worst] < expected[worst]:
        return (
            f"Here it is otherwise: {where}. A busy machine does that, now or during the bursts; "
            "run the cells again, from the bursts on."
        )
    return (
        f"Here it is better than simulated: {where}. The machine was slower when the bursts were "
        "measured, or they were too short; run the cells again, from the bursts on."
    )


def formula_holds(
    step: float, capacity: float, rates: Sequence[float], tpots: Sequence[float]
) -> str:
    """Up to which rate the formula gives the time per token. A figure's title.

    Args:
        step: seconds of a step with one request; the formula is `step / (1 - rate / capacity)`.
        capacity: requests per second.
        rates: requests per second that were sent, ascending.
        tpots: the measured median at each rate, in seconds.
    """
    held = None
    for rate, tpot in zip(rates, tpots, strict=True):
        if rate >= capacity or abs(tpot * (1 - rate / capacity) / step - 1) > NEAR:
            break
        held = rate
    if held is None:
        return f"The formula misses the time per token from {rates[0]:.1f}/s on"
    return f"The formula gives the time per token up to {held:.1f}/s"


def promise_breaks(rates: Sequence[float], kept: Sequence[float]) -> str:
    """At which rate the promise breaks for more than a tenth of the answers. A figure's title.

    Args:
        rates: requests per second that were sent, ascending.
        kept: at each rate, the part of the answers that was in time, 0 to 1.
    """
    for rate, share in zip(rates, kept, strict=True):
        if share < 0.9:
            return f"At {rate:.1f} requests per second only {share:.0%} are in time"
    return f"At each of these rates at least {min(kept):.0%} are in time"


def overload(answered: Sequence[float], in_time: Sequence[float]) -> str:
    """What throughput and goodput say at the highest rate.

    Args:
        answered: answers per second, by rising request rate.
        in_time: those of them that kept the promise, per second.
    """
    best = max(in_time)
    if best == 0:
        return (
            "At no rate was an answer in time, so there is nothing to compare. Run the cells "
            "again, from the bursts on."
        )
    if in_time[-1] > 0.8 * best:
        return (
            f"At the highest rate {in_time[-1]:.1f} of {answered[-1]:.1f} answers per second are "
            f"in time, and {best:.1f} at best: this load was no overload. Raise the rates to see "
            "one."
        )
    if answered[-1] < 0.9 * max(answered):
        return (
            f"At the highest rate both fall: {answered[-1]:.1f} answers per second, "
            f"{in_time[-1]:.1f} of them in time. More load should not slow the server itself. Does "
            "something else run on this machine? Then run the cell again."
        )
    return (
        f"From the best rate to the highest, answers in time fall from {best:.1f} to "
        f"{in_time[-1]:.1f} per second. All answers together do not: {answered[-1]:.1f} per second."
    )


def execution_share(share: float) -> str:
    """What the part of a token's time that is execution means.

    Args:
        share: seconds of execution by all seconds, 0 to 1.
    """
    if share >= 0.9:
        return (
            f"Execution is {share:.1%}: here the model is nearly everything, although it is tiny."
        )
    if share >= 0.5:
        return (
            f"Execution is {share:.1%}: most of the time, but on this machine the rest is no small "
            "change any more."
        )
    return (
        f"Execution is {share:.1%}, less than half: this machine is already as fast as the one "
        "that you are asked to imagine next."
    )
