"""What the measurements of notebook 04 show."""

from __future__ import annotations

from collections.abc import Sequence

NOISE = 0.05  # of a ratio of two short times


def paged_step(lengths: Sequence[int], ratios: Sequence[float], bounds: Sequence[float]) -> str:
    """Is a decode step from blocks as cheap as the bytes say?

    Args:
        lengths: tokens in the cache.
        ratios: measured time of a paged step over that of a contiguous one, for each length.
        bounds: the largest ratio that the bytes allow, for each length.
    """
    excess, n, ratio, bound = max(
        (r - b, n, r, b) for n, r, b in zip(lengths, ratios, bounds, strict=True)
    )
    if excess > NOISE:
        return (
            f"Here it is otherwise: after {n:,} tokens a paged step takes {ratio:.2f} times a "
            f"contiguous one, and at most {bound:.2f} was predicted. Finding the blocks takes a "
            "moment in each layer, which the prediction leaves out. Or the machine was busy: run "
            "the cell again."
        )
    if min(ratios) < 1 - NOISE:
        return (
            f"Here it is otherwise: a paged step takes only {min(ratios):.2f} times a contiguous "
            "one. Nothing in our count explains that. A busy machine does it: run the cell again."
        )
    if max(ratios) <= 1 + NOISE:
        return (
            "No difference of more than 5 %: the copies are too small, or too well cached, to be "
            "felt beside the weights."
        )
    return (
        f"A paged step takes up to {max(ratios):.2f} times a contiguous one. That is the "
        "prediction, within 5 %: some of the copies go through memory."
    )


def loop_time(small: float, large: float, predicted: float) -> str:
    """Does the number of turns decide how long attention block by block takes?

    Args:
        small: how many times slower the loop is with blocks of 1 token than with 16.
        large: the same with blocks of 16 and 256.
        predicted: both, if every turn costs the same.
    """
    if small > 1.3 * predicted or large > 1.3 * predicted:
        return (
            "Here it is otherwise: the loop gets faster than its turns get fewer. A busy machine "
            "does that: run the cells again."
        )
    if small >= 0.7 * predicted:
        sentence = "With small blocks the number of turns decides, as predicted."
    else:
        sentence = "Even with small blocks, a turn with more tokens takes longer."
    if large < 0.7 * predicted:
        return f"{sentence} With large blocks it decides less: a turn has more arithmetic in it."
    return f"{sentence} With large blocks it decides as well."
