"""What the measurements of notebook 05 show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean


def hit_time(
    shared: Sequence[int], miss: Sequence[float], hit: Sequence[float], first: float, second: float
) -> str:
    """Which of two predictions of a hit's time is better, and how flat is the line of hits?

    Args:
        shared: tokens of the shared prefix.
        miss, hit: measured seconds to the first token, for each length of the prefix.
        first, second: predicted seconds for a hit, from long and from short prompts.
    """
    errors = [mean(abs(guess / seconds - 1) for seconds in hit) for guess in (first, second)]
    sentence = f"The first attempt is off by {errors[0]:.0%} on average, the second by "
    sentence += f"{errors[1]:.0%}. "
    if errors[1] < 0.6 * errors[0]:
        sentence += "So the size of the matrix products was most of the miss. "
    elif errors[1] < errors[0]:
        sentence += "So the size of the matrix products is at most a part of the miss. "
    else:
        sentence += (
            "Here the second is no better: a token costs the same in both sizes, or the machine "
            "was busy. Run the cells again. "
        )
    rise, growth = hit[-1] - hit[0], miss[-1] - miss[0]
    lengths = f"From {shared[0]} to {shared[-1]} shared tokens"
    if rise >= 0.5 * growth:
        return sentence + (
            f"{lengths} a hit gets {1e3 * rise:.0f} ms slower, a miss {1e3 * growth:.0f} ms. Here "
            "a hit is not flat. A busy machine does that: run the cells again."
        )
    if rise <= 0:
        return sentence + f"{lengths} a hit does not get slower: the attention to them is hidden."
    return sentence + (
        f"{lengths} a hit gets {1e3 * rise:.0f} ms slower, a miss {1e3 * growth:.0f} ms."
    )


def attack(seconds: Mapping[str, float], right: str) -> str:
    """Does the fastest guess give the secret away?

    Args:
        seconds: to the first token, for each guess.
        right: the guess that is true.
    """
    fastest, second = sorted(seconds, key=lambda guess: seconds[guess])[:2]
    ratio = seconds[second] / seconds[fastest]
    found = f"The fastest is {fastest}, {ratio:.1f} times faster than the next."
    if fastest != right:
        return f"{found} That is wrong: this machine was too busy for the attack. Run it again."
    if ratio < 1.2:
        return f"{found} It is the right one, but an attacker could not be sure of it."
    return f"{found} He knows."
