"""What notebook 13 says about the times that it has just measured."""

from __future__ import annotations

from collections.abc import Sequence

NEAR = 0.25  # a prediction from two measurements that is off by less is a good one
STEADY = 0.15  # so much may the same work differ from minute to minute
SAME = 0.05  # two speeds that differ by less are called equal


def line_holds(miss: float, hit: float, drift: float) -> str:
    """Whether the line through two measurements predicted the times of hits and misses.

    Args:
        miss: measured time of a miss by its prediction; 1 is exact.
        hit: the same for a hit.
        drift: seconds of the long prompts that fixed the line, now, by those of then.
    """
    if max(abs(miss - 1), abs(hit - 1)) <= NEAR:
        return (
            f"Within {max(abs(miss - 1), abs(hit - 1)):.0%} for both: one line holds for hits and "
            "misses alike. What counts is what is left to compute."
        )
    said = f"Here the line is off: by {miss - 1:+.0%} for misses and {hit - 1:+.0%} for hits."
    if abs(drift - 1) > STEADY:
        return (
            f"{said} The long random prompts that fixed it take {drift:.2f} times as long now as "
            "they did then: the machine is not equally fast all the time. Run the cells again, "
            "from those prompts on."
        )
    return (
        f"{said} The long random prompts that fixed it take {drift:.2f} times as long now as then, "
        "so it is not the machine's mood: the model of two numbers is too simple here."
    )


def guesses_pay(alone: Sequence[float], together: float) -> str:
    """What guessing ahead did to the speed.

    Args:
        alone: of each customer who was alone, the speed with guesses by the speed without.
        together: the same for all customers at once.
    """
    span = f"{min(alone):.2f} to {max(alone):.2f} times as fast"
    if min(alone) > 1 + SAME:
        said = f"Alone, each of the {len(alone)} is served faster with guesses ({span})."
    elif max(alone) < 1 - SAME:
        said = f"Alone, each of the {len(alone)} is served slower with guesses ({span})."
    else:
        said = f"Alone, the {len(alone)} do not agree ({span}): too few to tell whether it pays."
    word = "faster" if together > 1 + SAME else "slower" if together < 1 - SAME else "no faster"
    return f"{said} All at once it is {word}: {together:.2f} times as fast."


def form_and_truth(base: Sequence[float], schema: Sequence[float], tuned: Sequence[float]) -> str:
    """What a schema gave, and what training gave.

    Args:
        base: shares of valid JSON and of right answers, 0 to 1, of the model before training.
        schema: the same model, held to the schema.
        tuned: the fine-tuned and quantized model, free.
    """
    if schema[0] <= base[0]:
        return (
            f"Here the schema gave no form: {base[0]:.0%} valid JSON without it, {schema[0]:.0%} "
            "with it. Look whether answers were cut off."
        )
    said = (
        f"The schema lifted valid JSON of the base model from {base[0]:.0%} to {schema[0]:.0%}, "
        f"and right answers from {base[1]:.0%} to {schema[1]:.0%}; training brought "
        f"{tuned[1]:.0%} right."
    )
    if schema[1] < tuned[1]:
        return f"{said} A schema gives form, not truth."
    return f"{said} Here the schema was enough: such a model needs no training for this task."


def largest_step(together: float, cache: float) -> str:
    """What brought most: that requests run together, or that prefixes are cached.

    Args:
        together: throughput of all at once by that of one at a time, without the cache.
        cache: throughput of all at once with the cache by that without.
    """
    if max(together, cache) < 1 + SAME:
        return "Here nothing helped: the machine was busy with something else. Run it again."
    both = f"running together {together:.1f} times as fast, the cache on top {cache:.1f} times"
    first = "that requests run together" if together >= cache else "the prefix cache"
    return f"The largest step here is {first}: {both}."
