"""Small cases of rejection sampling, of which all possible outcomes are known, and the known
mistakes. The mistakes serve to recognise a sampler by what comes out of it, never as oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

Rows = tuple[tuple[float, ...], ...]
Outcome = tuple[int, ...]
FlawedSampler = Callable[[Outcome, "Rows | None", Rows, random.Random], Outcome]


@dataclass(frozen=True)
class SamplerCase:
    """Guesses, the rows that they were drawn from (None: certain), the target's rows."""

    draft_token_ids: Outcome
    draft_probs: Rows | None
    target_probs: Rows

    @property
    def given(self) -> str:
        q = None if self.draft_probs is None else [list(row) for row in self.draft_probs]
        return (
            f"draft_token_ids {list(self.draft_token_ids)}\n"
            f"draft_probs {q}\ntarget_probs {[list(row) for row in self.target_probs]}"
        )


HALF = (0.5, 0.5, 0.0)
# Each possible outcome has a probability of 0.1 or more, so that a few hundred draws show it.
CASES = (
    SamplerCase((), None, ((0.5, 0.0, 0.5),)),
    SamplerCase((0,), ((1.0, 0.0, 0.0),), ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0))),
    SamplerCase((0,), (HALF,), ((0.6, 0.4, 0.0), (0.0, 0.0, 1.0))),
    SamplerCase((0,), (HALF,), (HALF, (0.0, 0.0, 1.0))),
    SamplerCase((0,), ((0.8, 0.2, 0.0),), ((0.2, 0.8, 0.0), (0.0, 0.0, 1.0))),
    SamplerCase((0,), (HALF,), ((0.25, 0.25, 0.5), (0.5, 0.5, 0.0))),
    SamplerCase((0,), ((0.8, 0.2, 0.0),), ((0.4, 0.4, 0.2), (0.0, 0.0, 1.0))),
    SamplerCase((0, 1), (HALF, (0.0, 0.6, 0.4)), (HALF, (0.3, 0.3, 0.4), (0.5, 0.0, 0.5))),
    SamplerCase(
        (0, 1), ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
        ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5), (1.0, 0.0, 0.0)),
    ),
    SamplerCase((1, 2), (HALF, (0.0, 0.0, 1.0)), ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), HALF)),
    SamplerCase((0,), None, ((0.5, 0.25, 0.25), (0.0, 1.0, 0.0))),
    SamplerCase((1, 1), None, ((0.0, 1.0, 0.0), (0.5, 0.0, 0.5), (0.0, 0.0, 1.0))),
)  # fmt: skip


def exact_law(draft: Outcome, draft_probs: Rows | None, target_probs: Rows) -> dict[Outcome, float]:
    """Every possible outcome and its probability, by going through all that can happen."""
    law: dict[Outcome, float] = {}
    reached = 1.0  # the probability that all guesses so far were accepted
    for place, token in enumerate(draft):
        p = target_probs[place]
        q = one_hot(token, len(p)) if draft_probs is None else draft_probs[place]
        accepted = min(1.0, p[token] / q[token])
        missing = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        if accepted < 1.0:
            for other, mass in enumerate(missing):
                if mass:
                    share = reached * (1.0 - accepted) * mass / sum(missing)
                    law[(*draft[:place], other)] = share
        reached *= accepted
    for token, p_bonus in enumerate(target_probs[len(draft)]):
        if reached * p_bonus:
            law[(*draft, token)] = reached * p_bonus
    return law


def one_hot(token: int, size: int) -> tuple[float, ...]:
    return tuple(1.0 if i == token else 0.0 for i in range(size))


# The known mistakes


def flawed(
    draft: Outcome, draft_probs: Rows | None, target_probs: Rows, dice: random.Random, *,
    accept: str = "p/q", recover: str = "residual", bonus: str = "right", uniform: str = "each",
    row: int = 0, draft_row: int = 0, after: str = "stop", certain: str = "one-hot",
) -> Outcome:  # fmt: skip
    """A rejection sampler with one switch per known mistake."""
    out: list[int] = []
    u = dice.random()
    rejected = False
    for place, token in enumerate(draft):
        p = target_probs[min(place + row, len(target_probs) - 1)]
        q = one_hot(token, len(p))
        if draft_probs is not None and certain != "always":
            q = draft_probs[(place + draft_row) % len(draft_probs)]
        elif draft_probs is None and certain == "uniform":
            q = (1 / len(p),) * len(p)
        if uniform == "each":
            u = dice.random()
        ratio = p[token] / q[token] if q[token] else 2.0 if p[token] else -1.0
        inverse = q[token] / p[token] if p[token] else 2.0
        good = {
            "p/q": u < ratio, "u > p/q": u > ratio, "q/p": u < inverse, "p": u < p[token],
            "q": u < q[token], "p >= q": ratio >= 1, "p > q": ratio > 1, "always": True,
            "argmax": token == p.index(max(p)), "p > 0": p[token] > 0,
        }[accept]  # fmt: skip
        if good:
            out.append(token)
            continue
        rejected = True
        out += _recovered(recover, token, p, q, u, dice)
        if after == "stop":
            break
    if not rejected or bonus == "always" or after == "next guess":
        out += _bonus(bonus, draft_probs, target_probs, dice)
    return tuple(out)


def _recovered(
    how: str, token: int, p: Sequence[float], q: Sequence[float], u: float, dice: random.Random
) -> list[int]:
    residual = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    if how == "nothing":
        return []
    if how == "the guess":
        return [token]
    if how == "argmax of residual":
        return [residual.index(max(residual))]
    if how == "argmax of target":
        return [p.index(max(p))]
    if how == "same number":
        reached = list(accumulate(residual))
        return [sum(total <= u * reached[-1] for total in reached)]
    weights = {
        "residual": residual,
        "target": p,
        "draft": q,
        "q - p": [max(0.0, b - a) for a, b in zip(p, q, strict=True)],
        "|p - q|": [abs(a - b) for a, b in zip(p, q, strict=True)],
        "target without the guess": [0.0 if i == token else a for i, a in enumerate(p)],
        "softmax": [1.0] * len(p),  # every token is possible
    }[how]
    return [pick(weights, dice)]


def _bonus(
    how: str, draft_probs: Rows | None, target_probs: Rows, dice: random.Random
) -> list[int]:
    last = target_probs[-1]
    if how == "none":
        return []
    if how == "argmax":
        return [last.index(max(last))]
    if how == "draft's last row" and draft_probs:
        return [pick(draft_probs[-1], dice)]
    if how == "row before" and len(target_probs) > 1:
        return [pick(target_probs[-2], dice)]
    return [pick(last, dice)]


def pick(weights: Sequence[float], dice: random.Random) -> int:
    return dice.choices(range(len(weights)), weights)[0]  # a ValueError where all are 0


_RULE = "Accept the guess if `uniform < p / q`, with a fresh random number for each guess."
_RESIDUAL = "After a rejection, draw from `recovered_probs(target_probs[i], draft_probs[i])`."
_STOP = "After a rejection: one recovered token, then return."
MISTAKES: tuple[tuple[FlawedSampler, str, str], ...] = tuple(
    (partial(flawed, **switches), says, look)
    for switches, says, look in (
        ({"recover": "target"},
         "After a rejection you draw from the target, not from the residual. The tokens that the "
         "draft offers then come too often: once as accepted guesses, and once more here.",
         _RESIDUAL),
        ({"recover": "target without the guess"},
         "After a rejection you draw from the target without the rejected guess. Other tokens that "
         "the draft offers too often must go, too.", _RESIDUAL),
        ({"recover": "draft"},
         "After a rejection you draw from the draft's distribution.", _RESIDUAL),
        ({"recover": "q - p"},
         "The residual is the wrong way round: q - p instead of p - q.", _RESIDUAL),
        ({"recover": "|p - q|"},
         "The residual holds absolute differences. Where p < q, nothing is missing.", _RESIDUAL),
        ({"recover": "softmax"},
         "The recovered token can be any token, also one of which nothing is missing.", _RESIDUAL),
        ({"recover": "argmax of residual"},
         "The recovered token is always the most probable one of the residual. It must be drawn.",
         "`torch.multinomial(probs, 1, generator=generator)`"),
        ({"recover": "argmax of target"},
         "The recovered token is always the target's most probable one. It must be drawn, and "
         "from the residual.", _RESIDUAL),
        ({"recover": "same number"},
         "The random number that rejected the guess draws the recovered token, too. After a "
         "rejection it is above p / q, so it is not uniform any more: some tokens never come.",
         "Draw with a fresh random number: `torch.multinomial(probs, 1, generator=generator)`."),
        ({"recover": "the guess"},
         "The rejected guess is returned. In its place belongs a recovered token.", _RESIDUAL),
        ({"recover": "nothing"},
         "After a rejection no token is recovered. A step whose first guess is rejected would "
         "return nothing, and the target's distribution is not kept.", _RESIDUAL),
        ({"bonus": "always"},
         "A bonus token is taken after a rejection. Its row was computed behind the rejected "
         "guess, which is not part of the text.", _STOP),
        ({"recover": "nothing", "bonus": "always"},
         "After a rejection you take the bonus token instead of a recovered one. Its row was "
         "computed behind the rejected guess, which is not part of the text.", _RESIDUAL),
        ({"bonus": "none"},
         "The bonus token is missing. When all guesses are accepted, the last row of "
         "`target_probs` gives one token more.",
         "`target_probs` has one row more than there are guesses."),
        ({"bonus": "draft's last row"},
         "The bonus token is drawn from the draft's last row. It must be the target's.",
         "`target_probs[len(draft_token_ids)]`"),
        ({"bonus": "row before"},
         "The bonus token is drawn from the row of the last guess. That row says what comes in "
         "place of the guess, not behind it.", "`target_probs[len(draft_token_ids)]`"),
        ({"bonus": "argmax"},
         "The bonus token is always the most probable one. It must be drawn.",
         "`torch.multinomial(probs, 1, generator=generator)`"),
        ({"accept": "u > p/q"},
         "The comparison is the wrong way round: you accept when the random number is *above* "
         "p / q.", _RULE),
        ({"accept": "q/p"}, "You accept with probability q / p. It is p / q.", _RULE),
        ({"accept": "p"},
         "You accept with probability p, and ignore how often the draft makes this guess.", _RULE),
        ({"accept": "q"}, "You accept with probability q, and ignore the target.", _RULE),
        ({"accept": "p >= q"},
         "You accept exactly where p >= q. Where p < q, the guess must be accepted with "
         "probability p / q.", _RULE),
        ({"accept": "p > q"},
         "You accept exactly where p > q. Where p <= q, the guess must be accepted with "
         "probability p / q.", _RULE),
        ({"accept": "always"}, "Every guess is accepted, whatever the target says.", _RULE),
        ({"accept": "p > 0"},
         "Every guess that the target could make is accepted. It must be accepted with "
         "probability p / q.", _RULE),
        ({"accept": "argmax", "recover": "argmax of target", "bonus": "argmax"},
         "You accept all guesses up to the first that is not the target's most probable token. "
         "That is greedy verification; here tokens are sampled.", _RULE),
        ({"accept": "argmax"},
         "You accept only the target's most probable token. That is greedy verification; here "
         "tokens are sampled.", _RULE),
        ({"accept": "argmax", "recover": "target"},
         "You accept only the target's most probable token. That is greedy verification; here "
         "tokens are sampled.", _RULE),
        ({"accept": "argmax", "recover": "argmax of target"},
         "You accept only the target's most probable token. That is greedy verification; here "
         "tokens are sampled.", _RULE),
        ({"uniform": "once"},
         "One random number serves for all guesses. A second guess is then accepted too often or "
         "too seldom, for the number that accepted the first is not a fresh one.",
         "Draw `torch.rand` inside the loop."),
        ({"row": 1},
         "Each guess is judged by the target's row one place too late. Row i is what the target "
         "says in place of guess i.", "`target_probs[i]` belongs to `draft_token_ids[i]`."),
        ({"draft_row": 1},
         "Each guess is judged by another guess's row of `draft_probs`.",
         "`draft_probs[i]` belongs to `draft_token_ids[i]`."),
        ({"draft_row": -1},
         "Each guess is judged by another guess's row of `draft_probs`.",
         "`draft_probs[i]` belongs to `draft_token_ids[i]`."),
        ({"after": "next guess"},
         "After a rejection you go on with the next guess. It was made for a text that contains "
         "the rejected one.", _STOP),
        ({"after": "next guess", "bonus": "none"},
         "After a rejection you go on with the next guess. It was made for a text that contains "
         "the rejected one.", _STOP),
        ({"certain": "always"},
         "You accept with probability p even where the guess was drawn from `draft_probs`. The "
         "text is still the target's, but guesses are rejected that need not be.", _RULE),
        ({"certain": "uniform"},
         "Without `draft_probs`, you assume that the draft chose among all tokens alike. The guess "
         "was certain: q is 1 for it, and 0 for all others.",
         "A row with a single 1: `F.one_hot(torch.tensor(token_id), vocab_size)`."),
    )
)  # fmt: skip
