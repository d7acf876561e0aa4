"""What notebook 02 says of its measurements: whether a step with a cache stays flat."""

from __future__ import annotations

from collections.abc import Sequence


def steps_with_and_without(
    num_tokens: Sequence[int],
    without_s: Sequence[float],
    with_s: Sequence[float],
    read_bytes: Sequence[float],
) -> str:
    """How much slower a step became from the shortest text to the longest, with and without cache.

    Args:
        num_tokens: lengths of the text, ascending.
        without_s: seconds of one step without a cache, for each length.
        with_s: seconds of one step with a cache.
        read_bytes: bytes that a step with a cache must read: weights, and cache.
    """
    longer = num_tokens[-1] / num_tokens[0]
    slower = without_s[-1] / without_s[0]
    cached, predicted = with_s[-1] / with_s[0], read_bytes[-1] / read_bytes[0]
    rows = [
        f"from {num_tokens[0]} to {num_tokens[-1]} tokens, {longer:.0f} times the text, a step "
        "takes",
        f"  without cache {slower:5.1f} times as long",
        f"  with cache    {cached:5.2f} times as long (predicted from its bytes: {predicted:.2f})",
    ]
    if cached >= slower:
        rows.append("Here it is otherwise: the step with a cache grew no less than that without.")
    elif cached > 1.25 * predicted:
        rows.append("So the cache helps, and yet its steps grew more than their bytes did.")
    elif cached < predicted / 1.25:
        rows.append("So the cache helps. Its steps even became faster, which no formula predicts.")
    else:
        rows.append("So it is as predicted: with a cache a step stays nearly flat.")
        return "\n".join(rows)
    return "\n".join([*rows, "A busy machine does that; run the cell again."])
