"""What lab 07 says of guesses and of greedy verification: exercises 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from utils.checks.kit.compare_lists import KnownMistake, ListCase, compare_lists

# Exercise 1


def found_by_brute_force(tokens: Sequence[int], shortest: int, longest: int, k: int) -> list[int]:
    """All places where a suffix occurred before; the longest wins, then the leftmost."""
    end = len(tokens)
    found = [
        (-n, start)
        for start in range(end)
        for n in range(shortest, longest + 1)
        if start + n < end and all(tokens[start + i] == tokens[end - n + i] for i in range(n))
    ]
    if not found:
        return []
    minus_n, start = min(found)
    return list(tokens[start - minus_n : start - minus_n + k])


def _lookup(
    tokens: list[int], shortest: int, longest: int, k: int, *, sizes: str = "longest first",
    which: str = "first", itself: bool = False, shift: int = 0, limit: bool = True,
    apart: bool = False, whole: bool = False,
) -> list[int]:  # fmt: skip
    """The lookup with one switch per known mistake; used to recognise mistakes, never as oracle."""
    order = {
        "shortest first": range(shortest, longest + 1),
        "longest only": range(longest, longest - 1, -1),
        "no minimum": range(longest, 0, -1),
        "no maximum": range(len(tokens), shortest - 1, -1),
        "minimum left out": range(longest, shortest, -1),
        "maximum left out": range(longest - 1, shortest - 1, -1),
    }.get(sizes, range(longest, shortest - 1, -1))
    for n in order:
        if n > len(tokens):
            continue
        last = len(tokens) - n - (n if apart else 0) + (1 if itself else 0)
        starts = [s for s in range(last) if tokens[s : s + n] == tokens[len(tokens) - n :]]
        if starts:
            start = starts[-1 if which == "last" else 0]
            begin = start + shift + (0 if whole else n)
            return tokens[begin : begin + k] if limit else tokens[begin:]
    return []


_LOOKUPS: tuple[ListCase, ...] = tuple(
    ListCase(
        f"token_ids {tokens}, prompt_lookup_min {low}, prompt_lookup_max {high}, "
        f"num_speculative_tokens {k}",
        (tokens, low, high, k),
        found_by_brute_force(tokens, low, high, k),
    )
    for tokens, low, high, k in (
        ([1, 2, 3], 1, 2, 2),
        ([5, 7, 8, 5], 1, 1, 2),
        ([5, 7, 8, 9, 6, 5], 1, 1, 2),
        ([5, 7, 5], 1, 1, 4),
        ([5, 7, 5, 8, 4, 5], 1, 1, 2),
        ([2, 8, 1, 2, 7, 1, 2], 1, 1, 1),
        ([1, 2, 7, 9, 2, 8, 1, 2], 1, 2, 1),
        ([9, 2, 8, 1, 2, 7, 6, 1, 2], 1, 2, 1),
        ([3, 1, 9, 2, 1], 2, 2, 3),
        ([2, 8, 1, 2, 7, 4, 3, 2], 1, 3, 2),
        ([4, 1, 2, 3, 7, 8, 1, 2, 3, 9, 4, 1, 2, 3], 1, 3, 2),
        ([1, 2, 3, 4, 6, 2, 3, 4, 7, 1, 2, 3, 4], 2, 3, 1),
        ([9, 2, 3, 8, 7, 1, 2, 3, 6, 1, 2, 3], 2, 3, 3),
        ([9, 3, 5, 2, 3, 6, 1, 2, 3], 2, 4, 3),
        ([6, 6, 6], 1, 2, 3),
        ([1, 2, 1, 2, 1], 2, 3, 4),
        ([4], 1, 3, 2),
        ([4, 4], 2, 4, 2),
    )
)

_PLACE = "A match at `start` is followed by the token at `start + n`."
_LOOKUP_MISTAKES: tuple[KnownMistake, ...] = (
    (lambda t, a, b, k: _lookup(t, a, b, k, itself=True, which="last"),
     "The suffix finds itself: the last n tokens always end the text, and nothing follows them.",
     "Look only at starts before `len(token_ids) - n`, where at least one token follows."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="longest only"),
     "Where the longest suffix is not found, shorter ones are never tried.",
     "Count n down to `prompt_lookup_min`. If you do: may the suffix find itself? Nothing follows "
     "it. Look only at starts before `len(token_ids) - n`."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="shortest first"),
     "The shortest suffix is tried first. A longer match is the better guess: it has more in "
     "common with what is being written.",
     "Count n down: from `prompt_lookup_max` to `prompt_lookup_min`."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="no minimum"),
     "Suffixes shorter than `prompt_lookup_min` are looked up. Such short matches are mostly "
     "accidents, and a wrong guess costs work.",
     "Stop after `prompt_lookup_min`."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="no maximum"),
     "Suffixes longer than `prompt_lookup_max` are looked up. The longer the suffix, the longer "
     "the search.",
     "Begin at `prompt_lookup_max`."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="minimum left out"),
     "Suffixes of exactly `prompt_lookup_min` tokens are never tried.",
     "`range(high, low, -1)` stops before `low`: it needs `low - 1`."),
    (lambda t, a, b, k: _lookup(t, a, b, k, sizes="maximum left out"),
     "Suffixes of exactly `prompt_lookup_max` tokens are never tried.",
     "`range(prompt_lookup_max, ...)` begins with `prompt_lookup_max` itself."),
    (lambda t, a, b, k: _lookup(t, a, b, k, which="last"),
     "Of several matches, the last is taken. The contract, and vLLM, take the first.",
     "Go through the starts from left to right, and return at the first match."),
    (lambda t, a, b, k: _lookup(t, a, b, k, limit=False),
     "More than `num_speculative_tokens` tokens are proposed: all that follow the match.",
     "`token_ids[begin : begin + num_speculative_tokens]`"),
    (lambda t, a, b, k: _lookup(t, a, b, k, whole=True),
     "You propose the match itself. These tokens are written already.", _PLACE),
    (lambda t, a, b, k: _lookup(t, a, b, k, shift=-1),
     "The proposal begins one token too early, with the last token of the match.", _PLACE),
    (lambda t, a, b, k: _lookup(t, a, b, k, shift=1),
     "The proposal begins one token too late: the first token after the match is skipped.", _PLACE),
    (lambda t, a, b, k: _lookup(t, a, b, k, apart=True),
     "A match that overlaps the suffix is not found. In 6 6 6 the suffix 6 6 also stands at the "
     "beginning, and a 6 follows it.",
     "All starts before `len(token_ids) - n` count."),
    (lambda t, a, b, k: (_lookup(t, a, b, k) + [0] * k)[:k],
     "The proposal is filled up to `num_speculative_tokens` tokens. A made-up token is a wrong "
     "guess, and costs work.",
     "Propose fewer, where fewer are known."),
    (lambda t, a, b, k: _lookup(t, a, b, k) if len(_lookup(t, a, b, k)) == k else [],
     "A match near the end, with fewer than `num_speculative_tokens` tokens behind it, is thrown "
     "away. Its few tokens are good guesses, too.",
     "Propose fewer, where fewer are known."),
)  # fmt: skip


def judge_propose(function: Callable[..., list[int]]) -> str:
    """Check `propose(token_ids, prompt_lookup_min, prompt_lookup_max, num_speculative_tokens)`."""
    compare_lists(
        function, _LOOKUPS, _LOOKUP_MISTAKES,
        "These are not the tokens behind the first place where the longest suffix occurred before.",
    )  # fmt: skip
    return (
        f"The longest suffix, at its first place, and what followed it there: {len(_LOOKUPS)} "
        "texts, overlaps and texts too short to repeat anything included."
    )


# Exercise 2


def accepted_by_brute_force(draft: Sequence[int], target: Sequence[int]) -> list[int]:
    """The longest prefix of the draft that the target repeats, then the target's next token."""
    agreeing = [n for n in range(len(draft) + 1) if list(draft[:n]) == list(target[:n])]
    return list(target[: max(agreeing) + 1])


_VERIFICATIONS: tuple[ListCase, ...] = tuple(
    ListCase(
        f"draft_token_ids {draft}, target_token_ids {target}",
        (draft, target),
        accepted_by_brute_force(draft, target),
    )
    for draft, target in (
        ([5], [5, 6]),
        ([5], [7, 8]),
        ([5, 6], [5, 9, 4]),
        ([5, 6, 7], [5, 6, 7, 8]),
        ([5, 6, 7], [5, 9, 7, 8]),
        ([5, 6, 7], [1, 5, 6, 7]),
        ([5, 5, 6, 8], [5, 6, 6, 8, 9]),
        ([], [4]),
    )
)


def _accepted(draft: list[int], target: list[int], shift: int = 0) -> int:
    count = 0
    while count < len(draft) and draft[count] == target[count + shift]:
        count += 1
    return count


def _each_on_its_own(draft: list[int], target: list[int]) -> list[int]:
    return [token for token, wanted in zip(draft, target, strict=False) if token == wanted]


_VERIFICATION_MISTAKES: tuple[KnownMistake, ...] = (
    (lambda d, t: t[: _accepted(d, t)],
     "Only accepted guesses are returned. The target's own token behind them is missing: a step "
     "whose first guess is wrong would return nothing, and the engine would never get on.",
     "After the accepted guesses comes one more token, always: recovered or bonus."),
    (lambda d, t: t[: min(_accepted(d, t) + 1, len(d))],
     "The bonus token is missing. When all guesses are right, the pass has computed one token "
     "more, behind the last guess.",
     "`target_token_ids` has one token more than `draft_token_ids`: its last one."),
    (lambda d, t: t[: _accepted(d, t)] + t[-1:],
     "The bonus token is taken after a rejection. It was computed behind the rejected guess, "
     "which is not part of the text.",
     "After a rejection comes the target's token *at the place of the rejected guess*."),
    (lambda d, t: t[: _accepted(d, t) + 1] + (t[-1:] if _accepted(d, t) < len(d) else []),
     "The bonus token is taken after a rejection. It was computed behind the rejected guess, "
     "which is not part of the text.",
     "Return at the first mismatch."),
    (lambda d, t: d[: _accepted(d, t) + 1] + (t[-1:] if _accepted(d, t) == len(d) else []),
     "The rejected guess is returned. In its place belongs the target's own token.",
     "Append the target's token, not the guess."),
    (lambda d, t: list(t),
     "All of the target's tokens are returned. Those behind the first wrong guess were computed "
     "from a text that contains it.",
     "Return at the first mismatch."),
    (_each_on_its_own,
     "Guesses are accepted behind a wrong one. The target never saw the text without it.",
     "Return at the first mismatch."),
    (lambda d, t: [*_each_on_its_own(d, t), t[-1]],
     "Guesses are accepted behind a wrong one. The target never saw the text without it.",
     "Return at the first mismatch."),
    (lambda d, t: t[1 : 1 + _accepted(d, t, 1) + 1],
     "Each guess is compared with the target's token one place too late. The target's first token "
     "is what it says in place of the *first* guess.",
     "Compare `draft_token_ids[i]` with `target_token_ids[i]`."),
    (lambda d, t: d[: _accepted(d, t, 1)] + t[_accepted(d, t, 1) :][:1],
     "Each guess is compared with the target's token one place too late. The target's first token "
     "is what it says in place of the *first* guess.",
     "Compare `draft_token_ids[i]` with `target_token_ids[i]`."),
    (lambda d, t: t if d == t[:-1] else t[:1],
     "One wrong guess rejects all of them. Those before it are right.",
     "Keep the guesses up to the first mismatch."),
    (lambda d, t: [*d, t[-1]],
     "All guesses are accepted, whatever the target says.",
     "Compare each guess with the target's token at its place."),
)  # fmt: skip


def judge_verify_greedy(function: Callable[..., list[int]]) -> str:
    """Check `verify_greedy(draft_token_ids, target_token_ids)`."""
    compare_lists(
        function, _VERIFICATIONS, _VERIFICATION_MISTAKES,
        "These are not the right guesses, followed by one token of the target's own.",
    )  # fmt: skip
    return (
        "The guesses up to the first mismatch, then one token of the target's own. So each step "
        "gives at least one token, and the same tokens as without guessing."
    )
