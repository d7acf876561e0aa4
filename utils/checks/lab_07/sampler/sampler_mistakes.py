"""Rejection samplers with the mistakes that learners make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import mistake


def _flawed(
    draft: list[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    generator: torch.Generator,
    *,
    accept: str = "p / q",
    recover: str = "residual",
    bonus: str = "right",
    fresh: bool = True,
    after: str = "stop",
) -> list[int]:
    """A rejection sampler with one switch per known mistake."""

    def uniform() -> float:
        return float(torch.rand((), generator=generator))

    def one_of(weights: Tensor) -> int:
        return int(torch.multinomial(weights, 1, generator=generator))

    out: list[int] = []
    u = uniform() if not fresh else 0.0
    stopped = False
    for i, token in enumerate(draft):
        p = target_probs[i]
        q = torch.zeros_like(p)
        if draft_probs is None:
            q[token] = 1.0
        else:
            q = draft_probs[i]
        u = uniform() if fresh else u
        a, b = float(p[token]), float(q[token])
        if {
            "p / q": u < a / b,
            "above": u > a / b,
            "q / p": u < b / max(a, 1e-30),
            "p": u < a,
            "p >= q": a >= b,
            "p > q": a > b,
            "always": True,
            "best": token == int(p.argmax()),
        }[accept]:
            out.append(token)
            continue
        weights = _weights(recover, p, q, token)
        if recover == "same number":
            reached = weights.double().cumsum(-1)
            out.append(int(torch.searchsorted(reached, u * reached[-1], right=True)))
        elif recover != "nothing":
            out.append(one_of(weights))
        if after == "stop":
            stopped = True
            break
    if bonus != "none" and (not stopped or bonus == "always"):
        last = target_probs[max(0, len(draft) - 1)] if bonus == "row before" else target_probs[-1]
        out.append(int(last.argmax()) if bonus == "best" else one_of(last))
    return out


def _weights(how: str, p: Tensor, q: Tensor, token: int) -> Tensor:
    if how == "target":
        return p
    if how == "without the guess":
        rest = p.clone()
        rest[token] = 0.0
        return rest
    residual = {"draft": q, "q - p": q - p, "|p - q|": (p - q).abs()}.get(how, p - q).clamp(min=0)
    if how == "best":
        residual = torch.zeros_like(p).index_fill(0, residual.argmax(), 1.0)
    return residual


def _wrong(**switches: Any) -> Callable[..., list[int]]:
    return partial(_flawed, **switches)


RULE = "Accept the guess if `uniform < p / q`, with a fresh random number for each guess."
RESIDUAL = "After a rejection, draw from `recovered_probs(target_probs[i], draft_probs[i])`."
STOP = "After a rejection: one recovered token, then return."
DRAWN = "`torch.multinomial(probs, 1, generator=generator)`"
MISTAKES = (
    mistake(
        "After a rejection you draw from the target, not from the residual. The tokens that "
        "the draft offers then come too often: once as accepted guesses, and once more here.",
        RESIDUAL,
        _wrong(recover="target"),
    ),
    mistake(
        "After a rejection you draw from the target without the rejected guess. Other tokens "
        "that the draft offers too often must go, too.",
        RESIDUAL,
        _wrong(recover="without the guess"),
    ),
    mistake(
        "The residual is the wrong way round: q - p instead of p - q.",
        RESIDUAL,
        _wrong(recover="q - p"),
    ),
    mistake(
        "The residual holds absolute differences. Where p < q, nothing is missing.",
        RESIDUAL,
        _wrong(recover="|p - q|"),
    ),
    mistake(
        "The recovered token is always the most probable one of the residual. It must be drawn.",
        DRAWN,
        _wrong(recover="best"),
    ),
    mistake(
        "The random number that rejected the guess draws the recovered token, too. After a "
        "rejection it is above p / q, so it is not uniform any more: some tokens never come.",
        f"Draw with a fresh random number: {DRAWN}.",
        _wrong(recover="same number"),
    ),
    mistake(
        "A bonus token is taken after a rejection. Its row was computed behind the rejected "
        "guess, which is not part of the text.",
        STOP,
        _wrong(bonus="always"),
        _wrong(bonus="always", recover="nothing"),
    ),
    mistake(
        "The bonus token is missing. When all guesses are accepted, the last row of "
        "`target_probs` gives one token more.",
        "`target_probs` has one row more than there are guesses.",
        _wrong(bonus="none"),
    ),
    mistake(
        "The bonus token is drawn from the row of the last guess. That row says what comes in "
        "place of the guess, not behind it.",
        "`target_probs[len(draft_token_ids)]`",
        _wrong(bonus="row before"),
    ),
    mistake(
        "The comparison is the wrong way round: you accept when the random number is *above* "
        "p / q.",
        RULE,
        _wrong(accept="above"),
    ),
    mistake("You accept with probability q / p. It is p / q.", RULE, _wrong(accept="q / p")),
    mistake(
        "You accept with probability p, and ignore how often the draft makes this guess.",
        RULE,
        _wrong(accept="p"),
        _wrong(accept="p", recover="without the guess"),
    ),
    mistake(
        "You compare p with q, and no random number decides. Where p < q, the guess must be "
        "accepted with probability p / q.",
        RULE,
        _wrong(accept="p >= q"),
        _wrong(accept="p > q"),
    ),
    mistake(
        "You accept only the target's most probable token. That is greedy verification; here "
        "tokens are sampled.",
        RULE,
        _wrong(accept="best"),
        _wrong(accept="best", recover="target"),
    ),
    mistake("Every guess is accepted, whatever the target says.", RULE, _wrong(accept="always")),
    mistake(
        "One random number serves for all guesses. A second guess is then accepted too often "
        "or too seldom, for the number that accepted the first is not a fresh one.",
        "Draw `torch.rand` inside the loop.",
        _wrong(fresh=False),
    ),
    mistake(
        "After a rejection you go on with the next guess. It was made for a text that contains "
        "the rejected one.",
        STOP,
        _wrong(after="go on"),
        _wrong(after="go on", bonus="none"),
    ),
)
