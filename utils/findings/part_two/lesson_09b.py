"""Sentences of notebook 09b that depend on what was just measured.

Errors are shares (0.01 is one percent), perplexities are per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SAME = 0.02  # two perplexities within this share of each other are no ranking


def kept_channels(nothing: float, random: float, heaviest: float, loudest: float) -> str:
    """Which input channels are worth keeping in 16 bits.

    Args:
        nothing: the output's error with no channel kept.
        random, heaviest, loudest: with a few kept, chosen in this way.
    """
    left = {"at random": random, "by their weights": heaviest, "by their inputs": loudest}
    best = min(left, key=left.__getitem__)
    said = "; ".join(f"{name}: {error / nothing:.0%}" for name, error in left.items())
    said = f"The error that is left when the channels to keep are chosen {said}."
    if best == "by their inputs" and loudest < 0.8 * min(random, heaviest):
        return f"{said} The inputs decide."
    return (
        f"{said} Here it is otherwise than AWQ's paper found: in this layer no input is so loud "
        f"that its channels stand out."
    )


def best_scale(errors: Mapping[float, float]) -> str:
    """Which scale leaves the least error.

    Args:
        errors: scale, ascending from 1, which is none -> the output's error.
    """
    scales = list(errors)
    best = min(errors, key=errors.__getitem__)
    if best == scales[0]:
        return "Here no scale helps: the error is least without one."
    left = errors[best] / errors[scales[0]]
    said = f"The error is least at s = {best:g}: {left:.0%} of what it is without a scale."
    if best == scales[-1]:
        return f"{said} That is the largest that was tried: try larger ones."
    return said


def real_layers(errors: Mapping[str, Mapping[str, float]]) -> str:
    """Whether it pays to know the inputs, and where GPTQ gains least.

    Args:
        errors: layer -> method -> error of the output; RTN, GPTQ and AWQ are among the methods.
    """
    gains = {name: min(e["GPTQ"], e["AWQ"]) / e["RTN"] for name, e in errors.items()}
    of_gptq = {name: e["GPTQ"] / e["RTN"] for name, e in errors.items()}
    least = max(of_gptq, key=of_gptq.__getitem__)
    if max(gains.values()) < 1:
        first = (
            f"Knowing the inputs pays in each of these layers: the better of GPTQ and AWQ leaves "
            f"{min(gains.values()):.0%} to {max(gains.values()):.0%} of RTN's error."
        )
    else:
        lost = ", ".join(name for name, gain in gains.items() if gain >= 1)
        first = f"Here it is otherwise: in {lost}, knowing the inputs gains nothing over RTN."
    return f"{first} GPTQ gains least in {least}: {of_gptq[least]:.0%} of RTN's error is left."


def few_and_many_bits(base: float, eight: float, three: float) -> str:
    """What 8 bits and 3 bits of plain rounding cost.

    Args:
        base, eight, three: perplexity in full, with 8 bits, with 3 bits.
    """
    small, large = eight / base - 1, three / base - 1
    first = f"8 bits change the perplexity by {small:+.1%}"
    first += ", which nobody would notice." if abs(small) < 0.01 else ": more than expected."
    second = f"3 bits without calibration change it by {large:+.0%}"
    second += ", far too much." if large > 0.2 else ". This model bears it."
    return f"{first} {second}"


def winners(
    small: int, large: int, rtn: Mapping[int, float], others: Mapping[str, Mapping[int, float]]
) -> str:
    """Which methods do with large groups what RTN needs small ones for. A figure's title.

    A gap within `SAME` ranks nobody.

    Args:
        small, large: group sizes.
        rtn: group size -> perplexity.
        others: method -> group size -> perplexity.
    """
    ratios = {name: runs[large] / rtn[small] for name, runs in others.items()}
    beat = [name for name, ratio in ratios.items() if ratio < 1 - SAME]
    level = [name for name, ratio in ratios.items() if abs(ratio - 1) <= SAME]
    behind = [name for name, ratio in ratios.items() if ratio > 1 + SAME]
    start, rival = f"With groups of {large}, ", f"RTN with groups of {small}"
    if not beat and not level:
        return f"{start}none beats {rival}"
    said = []
    if beat:
        said.append(f"{' and '.join(beat)} beat{'s' * (len(beat) == 1)} {rival}")
    if level:
        verb = "is" if len(level) == 1 else "are"
        said.append(f"{' and '.join(level)} {verb} level with {'it' if beat else rival}")
    if behind:
        said.append(f"{' and '.join(behind)} {'is' if len(behind) == 1 else 'are'} behind")
    return start + "; ".join(said)


def gptq_or_awq(gptq: Mapping[int, float], awq: Mapping[int, float]) -> str:
    """Whether one of the two is ahead, group size by group size.

    Args:
        gptq, awq: group size -> perplexity.
    """
    said = []
    for size in sorted(gptq):
        ratio = gptq[size] / awq[size]
        if abs(ratio - 1) <= SAME:
            said.append(f"with groups of {size} they are alike within {SAME:.0%}")
        else:
            ahead, share = ("GPTQ", 1 / ratio - 1) if ratio < 1 else ("AWQ", ratio - 1)
            said.append(f"with groups of {size} {ahead} is ahead by {share:.0%}")
    return f"GPTQ against AWQ: {'; '.join(said)}."


def nf4_for_its_bits(nf4: tuple[float, float], rtn: Sequence[tuple[float, float]]) -> str:
    """Whether NF4's levels are worth it, against RTN with about as many bits.

    Args:
        nf4: bits per weight and perplexity.
        rtn: the same, for several group sizes.
    """
    bits, perplexity = min(rtn, key=lambda point: abs(point[0] - nf4[0]))
    said = (
        f"NF4 has a perplexity of {nf4[1]:.1f} with {nf4[0]:.3f} bits, and RTN of {perplexity:.1f} "
        f"with {bits:.3f}: "
    )
    if nf4[1] < (1 - SAME) * perplexity:
        return said + "it makes more of its bits: 8-bit scales and no zeros pay for small blocks."
    if nf4[1] > (1 + SAME) * perplexity:
        return said + "here that does not pay."
    return said + "here the two are alike."


def calibration(
    tokens: Sequence[int], gptq: Sequence[float], awq: Sequence[float], rounding: float
) -> str:
    """How much text GPTQ and AWQ need.

    Args:
        tokens: numbers of calibration tokens, rising.
        gptq, awq: the error on other text, for each of them.
        rounding: the error of RTN, which needs none.
    """
    worse = [n for n, error in zip(tokens, gptq, strict=True) if error >= rounding]
    if worse:
        first = f"With {worse[-1]} tokens GPTQ is still worse than plain rounding."
    else:
        first = f"GPTQ beats plain rounding with {tokens[0]} tokens already."
    ahead = [n for n, g, a in zip(tokens, gptq, awq, strict=True) if g < a]
    second = f"It passes AWQ at {ahead[0]}." if ahead else f"It does not reach AWQ by {tokens[-1]}."
    gains = [errors[0] / errors[-1] for errors in (gptq, awq)]
    third = (
        f"From {tokens[0]} to {tokens[-1]} tokens, GPTQ's error falls {gains[0]:.2f} times, "
        f"AWQ's {gains[1]:.2f} times."
    )
    return f"{first} {second} {third}"
