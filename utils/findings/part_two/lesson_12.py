"""What notebook 12 says about the checkpoints that it has just measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def more_tokens(errors: Mapping[str, Sequence[float]], rounding: float) -> str:
    """What more calibration tokens did, for each kind of text.

    Args:
        errors: kind of text -> relative squared error of a layer's output, by rising tokens.
        rounding: the error of round to nearest on the same grid.
    """
    changes = ", ".join(f"{text} {values[-1] / values[0]:.2f}" for text, values in errors.items())
    good = [text for text, values in errors.items() if values[-1] < rounding]
    end = "none of them" if not good else "all of them" if len(good) == len(errors) else "only "
    named = end if end != "only " else end + " and ".join(good)
    return (
        f"the error with most tokens, divided by that with fewest: {changes}; "
        f"below plain rounding: {named}"
    )


def four_bits_served(throughput: Sequence[float], miss: Sequence[float]) -> str:
    """What 4 bits did to the speed of a served model.

    Args:
        throughput: output tokens per second of a batch, of the 16-bit and of the 4-bit model.
        miss: seconds to the first token of a prompt that is not in the cache, of both.
    """
    faster, longer = throughput[1] / throughput[0], miss[1] / miss[0]
    said = (
        f"In 4 bits a batch is served {faster:.2f} times as fast as in 16, and a first token "
        f"(miss) takes {longer:.2f} times as long."
    )
    if faster < 0.95 and longer > 1.05:
        return f"{said} Here unpacking costs more than fewer bytes save."
    if faster > 1.05 and longer < 0.95:
        return f"{said} Here unpacking is cheap: this processor's 4-bit products are faster."
    if faster > 0.95 and longer < 1.05:
        return f"{said} Here fewer bytes and more unpacking nearly cancel."
    return f"{said} The two disagree: neither bytes nor unpacking alone explains both."
