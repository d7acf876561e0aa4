"""What lab 07 says of one guess: exercises 3 (accept it?) and 4 (what to draw in its place)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.runner import Bug, Case, Mismatch, call, compare, describe

# Exercise 3


class _Guess(NamedTuple):
    token_id: int
    target: tuple[float, ...]
    draft: tuple[float, ...]
    uniform: float

    @property
    def given(self) -> str:
        return (
            f"guess: token {self.token_id}; target_probs {list(self.target)}, "
            f"draft_probs {list(self.draft)}, uniform {self.uniform}"
        )


_P, _Q = (0.2, 0.5, 0.3), (0.4, 0.35, 0.25)
_GUESSES = (
    _Guess(0, (0.5, 0.5), (0.5, 0.5), 0.9),
    _Guess(0, (0.0, 1.0), (1.0, 0.0), 0.5),
    _Guess(0, (0.2, 0.8), (0.8, 0.2), 0.1),
    _Guess(0, (0.2, 0.8), (0.8, 0.2), 0.9),
    _Guess(0, (0.6, 0.4), (0.5, 0.5), 0.7),
    *(_Guess(token, _P, _Q, u) for token in range(3) for u in (0.05, 0.3, 0.45, 0.55, 0.75, 0.95)),
    _Guess(1, (0.3, 0.3, 0.4), (0.8, 0.1, 0.1), 0.9),
    _Guess(0, (0.3, 0.3, 0.4), (0.8, 0.1, 0.1), 0.45),
    _Guess(2, (0.1, 0.6, 0.3), (0.0, 0.0, 1.0), 0.25),
    _Guess(2, (0.1, 0.6, 0.3), (0.0, 0.0, 1.0), 0.35),
    _Guess(0, (0.0, 1.0), (0.5, 0.5), 0.0),
    _Guess(1, (0.1, 0.9), (0.1, 0.9), 0.999),
)


def _ratio(guess: _Guess) -> float:
    return guess.target[guess.token_id] / guess.draft[guess.token_id]


def _best(probs: tuple[float, ...]) -> int:
    return probs.index(max(probs))


_RATIO = "Accept if `uniform < p / q`: p is the target's probability of the guess, q the draft's."
_ACCEPT_MISTAKES: tuple[tuple[Callable[[_Guess], bool], str, str], ...] = (
    (lambda g: g.uniform > _ratio(g),
     "The comparison is the wrong way round: you accept when the random number is *above* p / q, "
     "so the guesses that the target likes best are rejected.", _RATIO),
    (lambda g: g.uniform < (1 / _ratio(g) if _ratio(g) else 2),
     "You accept with probability q / p. It is p / q: a guess that the draft makes more often than "
     "the target would must sometimes be turned down.", _RATIO),
    (lambda g: g.uniform < g.target[g.token_id],
     "You accept with probability p, and ignore how often the draft makes this guess. Guesses that "
     "are made too seldom are then rejected, too.", _RATIO),
    (lambda g: g.uniform < g.draft[g.token_id],
     "You accept with probability q, and ignore the target.", _RATIO),
    (lambda g: g.uniform < g.target[g.token_id] / (g.target[g.token_id] + g.draft[g.token_id]),
     "You accept with probability p / (p + q). Where p is not below q, the guess must always be "
     "accepted.", _RATIO),
    (lambda g: _ratio(g) >= 1,
     "You accept exactly where p >= q, and the random number does not matter. Where p < q, the "
     "guess must be accepted with probability p / q.", _RATIO),
    (lambda g: _ratio(g) > 1,
     "You accept exactly where p > q, and the random number does not matter. Where p <= q, the "
     "guess must be accepted with probability p / q.", _RATIO),
    (lambda g: g.token_id == _best(g.target),
     "You accept only the target's most probable token. That is greedy verification; here the "
     "other tokens must have their chance.", _RATIO),
    (lambda g: g.uniform < max(g.target) / max(g.draft),
     "You compare the two largest probabilities, not those of the guess.",
     "`target_probs[token_id]` and `draft_probs[token_id]`."),
    (lambda g: g.uniform <= _ratio(g),
     "A guess that the target would never make can be accepted: with `uniform` 0, where "
     "`uniform <= 0` holds.", "`<`, not `<=`: `uniform` is in [0, 1)."),
    (lambda g: True, "Every guess is accepted.", _RATIO),
    (lambda g: False, "Every guess is rejected.", _RATIO),
)  # fmt: skip


def judge_is_accepted(function: Callable[..., bool]) -> str:
    """Check `is_accepted(token_id, target_probs, draft_probs, uniform)`."""
    answers = [_accepts(function, guess) for guess in _GUESSES]
    for guess, got in zip(_GUESSES, answers, strict=True):
        expected = guess.uniform < _ratio(guess)
        if got == expected:
            continue
        says, look = "The guess is judged wrongly.", _RATIO
        for wrong, words, where in _ACCEPT_MISTAKES:
            if all(wrong(g) == answer for g, answer in zip(_GUESSES, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=guess.given,
            expected=f"{expected}: p / q = {guess.target[guess.token_id]} / "
            f"{guess.draft[guess.token_id]} = {_ratio(guess):.3g}",
            got=str(got), look=look,
        )  # fmt: skip
    return (
        f"{len(_GUESSES)} guesses, judged by min(1, p / q). A guess that the target likes at "
        "least as much as the draft is always accepted."
    )


def _accepts(function: Callable[..., bool], guess: _Guess) -> bool:
    target = torch.tensor(guess.target, dtype=torch.float64)
    draft = torch.tensor(guess.draft, dtype=torch.float64)
    got = call(function, guess.token_id, target, draft, guess.uniform, given=guess.given)
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, bool):
        raise Mismatch(
            f"Your function returned {describe(got)}; expected True or False.", input=guess.given
        )
    return got


# Exercise 4


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def _by_hand(target: list[float], draft: list[float]) -> Tensor:
    """What accepted guesses leave of the target, token by token, shared out anew."""
    missing = [p - min(p, q) for p, q in zip(target, draft, strict=True)]
    return torch.tensor([m / sum(missing) for m in missing])


_RECOVERED_CASES = tuple(
    Case(
        f"target_probs {target}, draft_probs {draft}",
        (torch.tensor(target), torch.tensor(draft)),
        _by_hand(target, draft),
    )
    for target, draft in (
        ([0.0, 1.0], [1.0, 0.0]),
        ([0.5, 0.5], [1.0, 0.0]),
        ([0.25, 0.25, 0.5], [0.5, 0.5, 0.0]),
        ([0.4, 0.5, 0.1], [0.8, 0.1, 0.1]),
        ([0.3, 0.3, 0.3, 0.1], [0.05, 0.15, 0.6, 0.2]),
        ([0.0, 0.3, 0.7, 0.0], [0.4, 0.2, 0.2, 0.2]),
    )
)
_RULE = "The residual is `(target_probs - draft_probs).clamp(min=0)`, divided by its sum."
_RECOVERED_BUGS = (
    Bug("You return the target's own distribution. The tokens that the draft offers were accepted "
        "already, as often as they should be: drawn from here, they would come too often.", _RULE,
        lambda p, q: p.clone()),
    Bug("The residual does not sum to 1.", "Divide by the sum: `residual / residual.sum()`.",
        lambda p, q: (p - q).clamp(min=0)),
    Bug("The difference is the wrong way round: q - p. It holds the tokens that the draft offers "
        "too often; missing are those that it offers too seldom.", _RULE,
        lambda p, q: _normalised((q - p).clamp(min=0))),
    Bug("You take the absolute difference. Where the draft offers too much, nothing is missing: "
        "0, not q - p.", _RULE, lambda p, q: _normalised((p - q).abs())),
    Bug("Negative differences are not set to 0.", _RULE, lambda p, q: p - q),
    Bug("You divide before you clamp. The positive and the negative differences cancel: their sum "
        "is 0.", "Clamp first, then divide by the sum.",
        lambda p, q: ((p - q) / (p - q).sum()).clamp(min=0)),
    Bug("A softmax gives every token some probability, also those of which nothing is missing.",
        "Divide by the sum. A softmax is for logits.",
        lambda p, q: (p - q).clamp(min=0).softmax(-1)),
    Bug("A softmax gives every token some probability, also those of which nothing is missing.",
        "Divide by the sum. A softmax is for logits.", lambda p, q: (p - q).softmax(-1)),
    Bug("Where p > q, you keep all of p. The part q of it was accepted already; p - q is missing.",
        _RULE, lambda p, q: _normalised(torch.where(p > q, p, 0.0))),
    Bug("You weigh by p / q. What is missing is the difference p - q.", _RULE,
        lambda p, q: _normalised((p / q - 1).clamp(min=0))),
    Bug("You take the draft's distribution. A guess drawn from it was just rejected.", _RULE,
        lambda p, q: q.clone()),
)  # fmt: skip


def judge_recovered_probs(function: Callable[..., Tensor]) -> str:
    """Check `recovered_probs(target_probs, draft_probs)`."""

    def picture(case: Case, got: Tensor) -> tuple[Any, str]:
        figure = pictures.bars(
            case.expected, got, "token", "probability", "What is missing of the target"
        )
        return figure, "The expected distribution beside yours, token by token."

    compare(function, _RECOVERED_CASES, _RECOVERED_BUGS, picture)
    for case in _RECOVERED_CASES:
        p, q = case.args
        _judge_sum(p, q, function(p, q))
    return (
        "What accepted guesses leave of the target, shared out anew. In each case, accepted plus "
        "recovered tokens come exactly as often as the target says."
    )


def _judge_sum(p: Tensor, q: Tensor, recovered: Tensor) -> None:
    """The theorem: accepted mass plus rejected mass, spread over the residual, is the target."""
    accepted = torch.minimum(p, q)
    total = accepted + (1 - accepted.sum()) * recovered
    assert torch.allclose(total, p, atol=1e-5)
