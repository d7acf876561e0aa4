"""What notebook 07 says of its measurements: what checking costs, and who gains by guessing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Fits into what the median of a few passes varies by on an idle machine.
NOISE = 0.05
PEAK = 1.5  # times the price of a larger pass: no step, since a step stays


def reading(token_s: float, weight_bytes: float, bytes_per_s: float) -> str:
    """How much of a token's time is the reading of the weights.

    Args:
        token_s: seconds per token.
        weight_bytes: of all weights.
        bytes_per_s: bandwidth of the memory.
    """
    read_s = weight_bytes / bytes_per_s
    share = read_s / token_s
    said = (
        f"The memory gives {bytes_per_s / 1e9:.0f} GB/s, so reading the weights takes "
        f"{1e3 * read_s:.0f} ms at least: {share:.0%} of a token's time."
    )
    if share > 1 + NOISE:
        return said + (
            "\nNothing is faster than the memory: it was disturbed while it was measured. "
            "Run the cell again."
        )
    if share >= 0.5:
        return said + "\nFor most of the time the processor waits for the memory."
    return said + (
        "\nHere it is otherwise: most of the time goes elsewhere, into the many small operations "
        "around the\nmatrix products (notebook 08), or to other work of a busy machine."
    )


def rise(num_tokens: Sequence[int], pass_s: Sequence[float]) -> str:
    """How the price of a pass rises with its tokens.

    Args:
        num_tokens: in each pass, the first of them 1.
        pass_s: seconds of each pass.
    """
    price = [seconds / pass_s[0] for seconds in pass_s]
    flat = next((i - 1 for i, p in enumerate(price) if p > 1.25), len(price) - 1)
    if flat == len(price) - 1:
        return (
            f"Flat, as predicted: {num_tokens[-1]} tokens take {price[-1]:.2f} times as long as 1."
        )
    first = "The second token is not free" if flat == 0 else f"Flat up to {num_tokens[flat]} tokens"
    peak = max(range(len(price) - 1), key=lambda i: price[i] / min(price[i + 1 :]))
    later = min(range(peak + 1, len(price)), key=lambda i: price[i])
    if price[peak] > PEAK * price[later]:
        return (
            f"{first}. But {num_tokens[peak]} tokens cost {price[peak]:.2f} times the price of "
            f"one, and {num_tokens[later]} tokens only {price[later]:.2f}.\n"
            "The machine was disturbed, or its library is bad at that size.\n"
            "Run the cell again: if the peak stays, it is the library."
        )
    jump = max(range(1, len(price)), key=lambda i: price[i] - price[i - 1])
    return (
        f"{first}. The steepest rise is from {num_tokens[jump - 1]} to {num_tokens[jump]} "
        f"tokens: from {price[jump - 1]:.2f} times the price of one to {price[jump]:.2f}."
    )


def packing(before: float, after: float, roofline: float) -> str:
    """What the packing of the weights did to the price of a pass of five tokens.

    Args:
        before, after: its price as loaded and packed, in passes of one token.
        roofline: the predicted price.
    """
    said = (
        f"A pass of 5 costs {before:.2f} passes of 1 as loaded, and {after:.2f} packed; "
        f"the roofline says {roofline:.2f}."
    )
    if min(before, after) < 1 - 2 * NOISE:
        return said + "\nFive tokens cannot be cheaper than one: the machine is busy. Run it again."
    if before <= roofline + NOISE:
        return said + "\nThere was nothing to win on this machine."
    won = (before - after) / (before - roofline)
    if won < 0.1:
        return said + "\nHere it is otherwise: packing does not help, or the machine is busy."
    if after <= roofline + NOISE:
        return said + "\nThat was the whole miss."
    return said + f"\nPacking takes away {won:.0%} of the miss. The rest has another reason."


def rest_of_the_miss(whole: float, product: float) -> str:
    """Where the rest of the miss comes from.

    Args:
        whole: price of a pass of five tokens, in passes of one token.
        product: the same of one large matrix product alone.
    """
    said = f"The product with lm_head alone: 5 rows take {product:.2f} times as long as 1."
    if whole <= 1 + NOISE:
        return said + " There is no miss to explain."
    if product - 1 >= 0.5 * (whole - 1):
        return said + (
            "\nSo the products themselves are not flat: with so few rows, reading and calculating "
            "do not overlap\nas well as the roofline has it."
        )
    return said + (
        "\nSo the products are flat. What grows is around them: attention, norms, the tensors of "
        "the batch."
    )


def sources(answer: str, message: str, examples: str) -> str:
    """Where the strings of a JSON answer stand: in the message, or only in the examples before it.

    Args:
        answer: may be cut anywhere.
        message: what the answer is about.
        examples: solved, of other messages.
    """
    values = re.findall(r':\s*"([^"]+)"', answer)
    right = [value for value in values if value in message]
    copied = [value for value in values if value not in message and value in examples]
    said = f"values from the message: {', '.join(right) or 'none'}"
    if not copied:
        return said + "; none is copied from an example"
    return said + (
        f"; from an example: {', '.join(copied)}\n"
        "What it copied from an example is another customer's. It did so without guesses, too."
    )


def against_formula(predicted: Sequence[float], counted: Sequence[float]) -> str:
    """Whether tokens per pass were counted below what the formula says, or above; pair by pair."""
    pairs = list(zip(predicted, counted, strict=True))
    below = sum(c < p for p, c in pairs)
    worst = max(pairs, key=lambda pair: abs(pair[1] - pair[0]))
    said = (
        f"{below} of {len(pairs)} counts are below the formula; the furthest off is "
        f"{worst[1]:.2f}, where {worst[0]:.2f} was predicted."
    )
    if below == len(pairs):
        return said + " All are too low. What does it leave out?"
    if below > len(pairs) / 2:
        return said + " Most are too low. What does it leave out?"
    return said + " These few texts do not show what the next cells do."


def gains(speeds: Mapping[str, float]) -> str:
    """Who gains by guessing and who loses.

    Args:
        speeds: name of the row -> how many times as fast as without guesses.
    """
    order = sorted(speeds.items(), key=lambda item: -item[1])
    groups = {
        "gain": [f"{name} ({speed:.2f})" for name, speed in order if speed > 1 + NOISE],
        "nothing either way": [
            f"{name} ({speed:.2f})" for name, speed in order if abs(speed - 1) <= NOISE
        ],
        "loss": [f"{name} ({speed:.2f})" for name, speed in order if speed < 1 - NOISE],
    }
    return "\n".join(f"{group}: {', '.join(names)}" for group, names in groups.items() if names)


def furthest_miss(predicted: Mapping[str, float], measured: Mapping[str, float]) -> str:
    """The row whose measured speed lies furthest from its prediction; both in times as fast."""
    name = max(predicted, key=lambda n: abs(measured[n] / predicted[n] - 1))
    off = measured[name] / predicted[name] - 1
    said = (
        f"furthest from its prediction: {name}, predicted {predicted[name]:.2f}, "
        f"measured {measured[name]:.2f} ({off:+.0%})"
    )
    if abs(off) < 0.25:
        return said
    return said + (
        ".\nA busy machine can do that, or so short a text. Run the race again: "
        "if it stays, it is the text."
    )


def company(batch_sizes: Sequence[int], speeds: Sequence[float]) -> str:
    """From how many requests on guessing is a loss; speeds in times as fast as without guesses."""
    ends = (
        f"With {batch_sizes[0]} request the draft model makes decoding {speeds[0]:.2f} times as "
        f"fast, with {batch_sizes[-1]} requests {speeds[-1]:.2f} times."
    )
    if speeds[-1] >= speeds[0]:
        return ends + " Here it is otherwise: company does no harm. Is the machine busy?"
    lost = next((b for b, speed in zip(batch_sizes, speeds, strict=True) if speed < 1), None)
    if lost is None:
        return ends + " Less is left, but it is still a gain."
    if lost == batch_sizes[0]:
        return ends + " It is a loss even for one."
    return ends + f" With {lost} it is a loss."
