"""Exercise 2: which guesses stay, if the target is greedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.lab_07.token_lists import VOCABULARIES, is_list, token_of


def draw_verification(c: Choices) -> Given:
    """Few guesses or many, right for a while, then wrong; now and then right again behind."""
    vocabulary = c.pick(VOCABULARIES)
    draft: list[int] = []
    target: list[int] = []

    def guess() -> None:
        token = token_of(c, vocabulary)
        agree = not c.rarely(5)
        draft.append(token)
        target.append(int(str(token)) if agree else token_of(c, vocabulary))

    c.some(guess, 0, 9)
    if c.rarely(6):
        many = [token_of(c, vocabulary)] * c.size(1, 300)
        draft, target = many + draft, many + target
    return Given(draft, [*target, token_of(c, vocabulary)])


def kept(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> list[int]:
    """The longest prefix of the draft that the target repeats, then the target's next token."""
    draft, target = list(draft_token_ids), list(target_token_ids)
    right = max(n for n in range(len(draft) + 1) if draft[:n] == target[:n])
    return target[: right + 1]


def _explain(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    draft, target = given.args
    right = len(expected) - 1
    says = f"{right} of the {len(draft)} guesses are right" if draft else "There are no guesses"
    if right < len(draft):
        says = f"Guess {right} is {draft[right]}, where the target says {target[right]}"
    return "returns", f"{says}."


def _count(draft: list[int], target: list[int], shift: int = 0) -> int:
    count = 0
    while count < len(draft) and draft[count] == target[count + shift]:
        count += 1
    return count


def _each(draft: list[int], target: list[int]) -> list[int]:
    return [token for token, wanted in zip(draft, target, strict=False) if token == wanted]


def _of(rule: Callable[[list[int], list[int], int], Any]) -> Callable[..., Any]:
    """An answer made of the guesses, the target's tokens, and how many guesses are right."""
    return lambda draft, target: rule(draft, target, _count(draft, target))


FIRST = "Return at the first mismatch."
SHIFTED = mistake(
    "Each guess is compared with the target's token one place too late. The target's "
    "first token is what it says in place of the *first* guess.",
    "Compare `draft_token_ids[i]` with `target_token_ids[i]`.",
    lambda d, t: t[1 : 2 + _count(d, t, 1)],
    lambda d, t: [*d[: _count(d, t, 1)], t[_count(d, t, 1)]],
)
VERIFY_GREEDY = Contract(
    inputs=draw_verification,
    judge=Returns(kept, wrong=is_list(_explain)),
    passed="The guesses up to the first mismatch, then one token of the target's own. So each step "
    "gives at least one token, and the same tokens as without guessing.",
    clauses={
        "none": Clause(
            "Your function returned None.", "Every path through it must end in `return` and a list."
        ),
        "form": Clause("Expected a list of ints; got {got}."),
        "changes": Clause(
            "Your function changes a list it was given. The engine goes on using it.",
            "Begin with a list of your own.",
        ),
        "returns": Clause(
            "These are not the right guesses, followed by one token of the target's own. {says}",
            FIRST,
        ),
    },
    mistakes=(
        mistake(
            "Only accepted guesses are returned. The target's own token behind them is "
            "missing: a step whose first guess is wrong would return nothing, and the engine "
            "would never get on.",
            "After the accepted guesses comes one more token, always: recovered or bonus.",
            _of(lambda d, t, n: t[:n]),
        ),
        mistake(
            "The bonus token is missing. When all guesses are right, the pass has computed "
            "one token more, behind the last guess.",
            "`target_token_ids` has one token more than `draft_token_ids`: its last one.",
            _of(lambda d, t, n: t[: n + 1][: len(d)]),
        ),
        mistake(
            "The bonus token is taken after a rejection. It was computed behind the rejected "
            "guess, which is not part of the text.",
            "After a rejection comes the target's token *at the place of the rejected guess*.",
            _of(lambda d, t, n: t[:n] + t[-1:]),
            _of(lambda d, t, n: t[: n + 1] + (t[-1:] if n < len(d) else [])),
        ),
        mistake(
            "The rejected guess is returned. In its place belongs the target's own token.",
            "Append the target's token, not the guess.",
            _of(lambda d, t, n: d[: n + 1] + (t[-1:] if n == len(d) else [])),
        ),
        mistake(
            "All of the target's tokens are returned. Those behind the first wrong guess were "
            "computed from a text that contains it.",
            FIRST,
            lambda d, t: list(t),
        ),
        mistake(
            "Guesses are accepted behind a wrong one. The target never saw the text without it.",
            FIRST,
            _each,
            lambda d, t: [*_each(d, t), t[-1]],
        ),
        SHIFTED,
        mistake(
            "One wrong guess rejects all of them. Those before it are right.",
            "Keep the guesses up to the first mismatch.",
            lambda d, t: t if d == t[:-1] else t[:1],
        ),
        mistake(
            "All guesses are accepted, whatever the target says.",
            "Compare each guess with the target's token at its place.",
            lambda d, t: [*d, t[-1]],
        ),
    ),
)
