"""What notebook 01 says of its measurements: why the prediction and the clock differ."""

from __future__ import annotations

from collections.abc import Sequence

# Fits into what the fastest of several runs varies by on an idle machine.
NOISE = 1.1


def factors(
    first: tuple[float, float], bounds_s: tuple[float, float], measured_s: tuple[float, float]
) -> str:
    """How many times the time of a read token a written one takes: three answers, and the gaps.

    Args:
        first: seconds of one written and of one read token, as the lesson's first cell saw them.
        bounds_s: seconds predicted for a token alone, and per token of a long pass.
        measured_s: the same, by the clock.
    """
    at_first, predicted, measured = (alone / many for alone, many in (first, bounds_s, measured_s))
    alone, many = (m / b for m, b in zip(measured_s, bounds_s, strict=True))
    rows = [
        f"a written token costs {at_first:5.1f} times a read one, timed at the start",
        f"                      {predicted:5.1f} times, predicted",
        f"                      {measured:5.1f} times, measured now",
        "",
        f"Measured now is {alone / many:.2f} times the prediction: one token alone took "
        f"{alone:.2f} times\nits bound, a long pass {many:.2f} times.",
    ]
    if max(alone / many, many / alone) < NOISE:
        rows.append("What the bounds leave out weighs the same in both: the factor is hit.")
    elif alone > many:
        rows.append("What the bounds leave out weighs more in a short pass.")
    else:
        rows.append("Here the long pass lies further from its bound than the short one.")
    if min(alone, many) > 3:
        rows.append("Both are far from their bounds: the machine is busy. Run the cells again.")
    write, read = first[0] / measured_s[0], first[1] / measured_s[1]
    rows.append(
        f"At the start a written token took {write:.2f} times what it takes now, a read one "
        f"{read:.2f} times."
    )
    if max(write, read, 1 / write, 1 / read) > 1.25:
        rows.append("The machine is not equally busy all the time. Run both cells again.")
    return "\n".join(rows)


def bounds_hold(bounds_s: Sequence[float], measured_s: Sequence[float]) -> str:
    """Whether no pass was faster than its lower bound; both in seconds, pass by pass."""
    beaten = [b / m for b, m in zip(bounds_s, measured_s, strict=True) if m < b]
    if not beaten:
        return "No pass was faster than its bound."
    return (
        f"Here {len(beaten)} of {len(bounds_s)} passes beat the bound, by up to "
        f"{max(beaten):.2f} times. Nothing beats a true bound: the roof was measured\n"
        "while the machine was busy with something else. Run the cells from there on again."
    )


def flat_then_rising(
    num_tokens: Sequence[int], bounds_s: Sequence[float], measured_s: Sequence[float]
) -> str:
    """What twice the tokens cost, left and right of the ridge, next to the predicted 1 and 2.

    Args:
        num_tokens: sizes of the passes, ascending, each twice the one before.
        bounds_s: their lower bounds; where memory decides they do not grow.
        measured_s: seconds by the clock.
    """
    pairs = range(len(num_tokens) - 1)
    flat = [i for i in pairs if bounds_s[i + 1] < 1.1 * bounds_s[i]]
    rising = [i for i in pairs if bounds_s[i + 1] > 1.9 * bounds_s[i]]
    rows, growth = [], []
    for name, steps in (("memory-bound", flat), ("compute-bound", rising)):
        if not steps:
            rows.append(f"No two of these passes are {name} on this machine.")
            continue
        first, last = steps[0], steps[-1] + 1
        growth.append((measured_s[last] / measured_s[first]) ** (1 / (last - first)))
        predicted = (bounds_s[last] / bounds_s[first]) ** (1 / (last - first))
        rows.append(
            f"{name}, from {num_tokens[first]} to {num_tokens[last]} tokens: twice the tokens "
            f"take {growth[-1]:.2f} times as long (predicted {predicted:.2f})"
        )
    share = [b / m for b, m in zip(bounds_s, measured_s, strict=True)]
    low, high = (share.index(pick(share)) for pick in (min, max))
    rows.append(
        f"closest to the roof: a pass of {num_tokens[high]}, {share[high]:.0%} of it; "
        f"furthest: one of {num_tokens[low]}, {share[low]:.0%}"
    )
    if len(growth) == 2 and growth[0] >= growth[1]:
        rows.append("Here the left is not flatter than the right. A busy machine does that:")
        rows.append("run the cell again.")
    elif len(growth) == 2 and growth[0] > 1.25:
        rows.append("So the left is flatter than the right, and yet it rises: see below.")
    elif len(growth) == 2 and growth[1] < 1.8:
        rows.append("So it is nearly flat on the left. On the right it rises, by less than the")
        rows.append("tokens: the longer a pass, the nearer it comes to the roof.")
    elif len(growth) == 2:
        rows.append("So it is: nearly flat on the left, in proportion to the tokens on the right.")
    return "\n".join(rows)
