"""Exercise 1: guesses from the text itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.lab_07.token_lists import VOCABULARIES, is_list, token_of

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


def _explain(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    tokens, low, high, k = given.args
    place = found(tokens, low, high)
    if place is None:
        return "made up", ""
    n, start = place
    last = f"{n} tokens, {_few(tokens[-n:])}, stand" if n > 1 else f"token, {tokens[-1]}, stands"
    where = f"The last {last} at place {start}, too, and {_few(expected)} followed."
    if len(got) > k:
        return "too many", where
    return "found" if got == [] else "returns", where


def _few(tokens: list[int], most: int = 8) -> str:
    if len(tokens) <= most:
        return f"`{tokens}`"
    return f"`[{str(tokens[: most // 2])[1:-1]}, ..., {str(tokens[-most // 2 :])[1:-1]}]`"


def _tell(given: Given) -> str:
    tokens, low, high, k = given.args
    return (
        f"token_ids {_few(tokens, 40).strip('`')}{f' ({len(tokens)} of them)' * (len(tokens) > 40)}"
        f", prompt_lookup_min {low}, prompt_lookup_max {high}, num_speculative_tokens {k}"
    )


def _lookup(
    tokens: list[int],
    low: int,
    high: int,
    k: int,
    *,
    which: int = 0,
    itself: bool = False,
    shift: int = 0,
    least: int = 0,
    most: int = 0,
    apart: bool = False,
    shortest: bool = False,
    only: bool = False,
) -> list[int]:
    """The lookup with one switch per known mistake."""
    sizes = list(range(min(high - most, len(tokens)), low + least - 1, -1))
    if only:
        sizes = [high] if high <= len(tokens) else []
    for n in sorted(sizes, reverse=not shortest):
        last = len(tokens) - n - (n if apart else 0) + itself
        suffix = tokens[len(tokens) - n :]
        starts = [s for s in range(last) if tokens[s : s + n] == suffix]
        if starts:
            return tokens[starts[which] + n + shift :][:k]
    return []


def _wrong(**switches: Any) -> Callable[..., list[int]]:
    return partial(_lookup, **switches)


def _down_to_one(tokens: list[int], low: int, high: int, k: int) -> list[int]:
    return _lookup(tokens, 1, high, k)


def _up_to_all(tokens: list[int], low: int, high: int, k: int) -> list[int]:
    return _lookup(tokens, low, len(tokens), k)


PLACE = "A match at `start` is followed by the token at `start + n`."
RANGE = "`range(prompt_lookup_max, prompt_lookup_min - 1, -1)`"
MISTAKES = (
    mistake(
        "There is never a guess. A suffix finds itself at the end, and nothing follows it there.",
        "Look only at starts before `len(token_ids) - n`.",
        _wrong(itself=True, which=-1),
    ),
    mistake(
        "Where the longest suffix is not found, shorter ones are never tried.",
        "Count n down to `prompt_lookup_min`. If you do: may the suffix find itself?",
        _wrong(only=True),
        _wrong(itself=True),
    ),
    mistake(
        "The shortest suffix is tried first. A longer match is the better guess: it has more "
        "in common with what is being written.",
        "Count n down: from `prompt_lookup_max` to `prompt_lookup_min`.",
        _wrong(shortest=True),
    ),
    mistake(
        "Suffixes shorter than `prompt_lookup_min` are looked up. Such short matches are "
        "mostly accidents, and a wrong guess costs work.",
        RANGE,
        _down_to_one,
    ),
    mistake(
        "Suffixes longer than `prompt_lookup_max` are looked up. The longer the suffix, the "
        "longer the search.",
        RANGE,
        _up_to_all,
    ),
    mistake(
        "Suffixes of exactly `prompt_lookup_min` tokens are never tried.", RANGE, _wrong(least=1)
    ),
    mistake(
        "Suffixes of exactly `prompt_lookup_max` tokens are never tried.", RANGE, _wrong(most=1)
    ),
    mistake(
        "Of several matches, the last is taken. The contract, and vLLM, take the first.",
        "Go through the starts from left to right, and return at the first match.",
        _wrong(which=-1),
    ),
    mistake(
        "The proposal begins one token too late: the first token after the match is skipped.",
        PLACE,
        _wrong(shift=1),
    ),
    mistake(
        "The proposal begins one token too early, with the last token of the match.",
        PLACE,
        _wrong(shift=-1),
    ),
    mistake(
        "A match that overlaps the suffix is not found. In 6 6 6 the suffix 6 6 also stands "
        "at the beginning, and a 6 follows it.",
        "All starts before `len(token_ids) - n` count.",
        _wrong(apart=True),
    ),
)
CLAUSES = {
    "none": Clause(
        "Your function returned None.", "Every path through it must end in `return` and a list."
    ),
    "form": Clause("Expected a list of ints; got {got}."),
    "changes": Clause(
        "Your function changes the list it was given. The engine goes on using it.",
        "`pop`, `append` and `+=` change a list. Slices are copies.",
    ),
    "made up": Clause(
        "None of the suffixes stood earlier in the text, so there is nothing to "
        "guess. A made-up token is a wrong guess, and costs work.",
        "Return an empty list.",
    ),
    "too many": Clause(
        "More than `num_speculative_tokens` tokens are proposed. {says}",
        "`token_ids[begin : begin + num_speculative_tokens]`",
    ),
    "found": Clause(
        "A match is not found, or thrown away. {says}", "Propose fewer, where fewer are known."
    ),
    "returns": Clause(
        "These are not the tokens behind the first place where the longest suffix stands. {says}",
        PLACE + " Propose fewer, where fewer are known.",
    ),
}


def proposals(sizes: Lookup | None = None) -> Contract:
    """The exercise's contract; with `sizes` that of a proposer which always looks up these."""
    return Contract(
        inputs=partial(draw_lookup, sizes=sizes),
        judge=Returns(followed, wrong=is_list(_explain)),
        passed="The longest suffix, at its first place, and what followed it there: in long and "
        "short texts, overlaps and texts too short to repeat anything included.",
        tell=_tell,
        clauses=CLAUSES,
        mistakes=MISTAKES,
    )


PROPOSE = proposals()
