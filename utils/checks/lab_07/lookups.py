"""Exercise 1: guesses from the text itself."""

from __future__ import annotations

from collections.abc import Sequence

from utils.checks.kit.contracts import Choices, Given
from utils.checks.lab_07.token_lists import VOCABULARIES, token_of

Lookup = tuple[int, int]  # prompt_lookup_min, prompt_lookup_max


def draw_text(c: Choices) -> list[int]:
    """Tokens that repeat, pieces that are written again, and stretches in which nothing does."""
    vocabulary = c.pick(VOCABULARIES)
    text: list[int] = []
    if c.rarely(30):
        return text

    def piece() -> None:
        kind = c.pick(("token",) * 5 + ("again",) * 3 + ("something new",) * 2)
        if kind == "token" or not text:
            text.append(token_of(c, vocabulary))
        elif kind == "again":
            start = c.integer(0, len(text) - 1)
            text.extend(int(str(t)) for t in text[start : start + c.size(1, 40)])
        else:
            new = max(1000, *text) + 1
            text.extend(range(new, new + c.size(1, max(1, 300 - len(text)))))

    c.some(piece, 1, 14)
    if c.rarely(8):  # one thing once, another one twice: the first place counts, not the majority
        key = [900 + i for i in range(c.integer(1, 3))]
        text += [*key, 910, *key, 911, *key, 911, *key]
    if c.rarely(12):  # again what the text begins with, further back than any window
        new = range(200_000, 200_000 + c.pick((100, 300, 2000, 2500)))
        text += [*new, *text[: c.integer(1, len(text))]]
    return text


def draw_lookup(c: Choices, sizes: Lookup | None = None) -> Given:
    """Args: sizes: if the learner's proposer has them already"""
    text = draw_text(c)
    if sizes is None:
        low = c.size(1, 8, small=2)
        sizes = low, low + c.size(0, 3 if len(text) > 100 else 120, small=3)  # a search takes time
    k = c.size(1, 60) if not c.rarely(30) else 0
    return Given(text, *sizes, k)


def found(tokens: Sequence[int], low: int, high: int) -> tuple[int, int] | None:
    """Of all places where a suffix stands: the longest, then the leftmost. Its length and place."""
    end, best = len(tokens), (0, 0)
    for start in range(end - 1):
        n = 0  # how far back the tokens before `behind` are the last ones
        behind = start + 1
        while n < min(high, behind) and tokens[behind - 1 - n] == tokens[end - 1 - n]:
            n += 1
        if n >= low and n > best[0]:
            best = n, behind - n
    return best if best[0] else None


def followed(
    token_ids: list[int],
    prompt_lookup_min: int,
    prompt_lookup_max: int,
    num_speculative_tokens: int,
) -> list[int]:
    """What followed there."""
    place = found(token_ids, prompt_lookup_min, prompt_lookup_max)
    return token_ids[sum(place) :][:num_speculative_tokens] if place else []


def wrong_guesses(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    tokens, low, high, k = given.args
    place = found(tokens, low, high)
    if place is None:
        return "made up", ""
    n, start = place
    last = f"{n} tokens, {few(tokens[-n:])}, also stand" if n > 1 else "token also stands"
    where = f"The last {last} at place {start}, followed by {few(expected)}."
    if len(got) > k:
        return "too many", where
    return "found" if got == [] else "returns", where


def few(tokens: list[int], most: int = 8) -> str:
    if len(tokens) <= most:
        return f"`{tokens}`"
    return f"`[{str(tokens[: most // 2])[1:-1]}, ..., {str(tokens[-most // 2 :])[1:-1]}]`"


def tell_lookup(given: Given) -> str:
    tokens, low, high, k = given.args
    many = f" ({len(tokens)} of them)" if len(tokens) > 40 else ""
    return (
        f"token_ids {few(tokens, 40).strip('`')}{many}, prompt_lookup_min {low}, "
        f"prompt_lookup_max {high}, num_speculative_tokens {k}"
    )
