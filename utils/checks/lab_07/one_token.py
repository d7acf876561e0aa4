"""One guess: exercise 3 (does it stay?) and exercise 4 (what to draw in its place)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import laid_out
from utils.checks.kit.runner import describe

# Exercise 3

# The random number, relative to p / q (0 to 1): just below it, just above, anywhere; its ends.
BELOW, ABOVE = (0.5, 0.9, 0.99, 0.999, 0.9999), (1.5, 1.1, 1.01, 1.001, 1.0001)
ALMOST_ONE = 1 - 2**-24


def draw_guess(c: Choices) -> Given:
    """Ratios below and above 1, of probabilities large and tiny; p = q and p = 0."""
    size = c.size(2, 70_000, small=3)
    token = c.integer(0, size - 1)
    dtype = c.pick((torch.float32, torch.float32, torch.float64, torch.float16))
    half = dtype == torch.float16  # tiny numbers have few digits in it
    unit = 2.0 ** -c.pick((4, 4, 5, 8, 9, 7) if half else (4, 4, 5, 20, 20, 40))
    kind = c.pick(("below", "below", "above", "equal", "never"))
    p = q = float(c.integer(1, 8))
    if kind != "equal":
        p, q = (c.integer(0, 6), c.integer(7, 16)) if kind == "below" else (c.integer(7, 16), q)
    far = 0 if half else c.pick((0, 0, 0, 8, 16))
    p = 0.0 if kind == "never" else p * 2.0**-far
    target, draft = (_row(c, size, token, n * unit).to(dtype) for n in (p, q))
    ratio = min(1.0, p / q)
    uniform = c.pick(("below", "above", "0", "below 1"))
    near = BELOW if uniform == "below" else ABOVE
    factor = c.pick(near[:3] if half else near)
    most = 0.999 if half else ALMOST_ONE
    u = {"0": 0.0, "below 1": most}.get(uniform, min(most, ratio * factor))
    layout = c.pick(("contiguous", "contiguous", "a slice"))
    return Given(token, laid_out(target, layout), laid_out(draft, layout), u)


def _row(c: Choices, size: int, token: int, share: float) -> Tensor:
    """A distribution with this share for the token; the rest goes to some of the others."""
    others = torch.zeros(size, dtype=torch.float64)
    for _ in range(c.integer(1, 3)):
        others[(token + 1 + c.integer(0, size - 2)) % size] += c.integer(1, 4)
    others *= (1 - share) / others.sum()
    others[token] = share
    return others


def accepts(token_id: int, target_probs: Tensor, draft_probs: Tensor, uniform: float) -> bool:
    """Nothing is divided."""
    p, q = target_probs.tolist()[token_id], draft_probs.tolist()[token_id]
    return bool(uniform * q < p)


def _true_or_false(expected: bool, got: Any, given: Given) -> Fault | None:
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, bool | np.bool_):
        return Fault("form", "", expected, got)
    if bool(got) == expected:
        return None
    token, p, q, _ = given.args
    ratio = float(p[token]) / float(q[token])
    says = f"p / q = {float(p[token]):.4g} / {float(q[token]):.4g} = {ratio:.4g}"
    return Fault("returns", "", expected, bool(got), says, words=(f"{expected}: {says}", f"{got}"))


def _tell_guess(given: Given) -> str:
    token, p, q, u = given.args
    if p.numel() > 8:
        p_and_q = (
            f"p of it {float(p[token]):.4g}, q of it {float(q[token]):.4g}, {p.numel()} tokens"
        )
        return f"guess: token {token}; {p_and_q}; uniform {u:.9g}"
    return f"guess: token {token}; target_probs {_numbers(p)}, draft_probs {_numbers(q)}, " + (
        f"uniform {u:.9g}"
    )


def _numbers(row: Tensor) -> str:
    return f"[{', '.join(f'{x:.4g}' for x in row.tolist())}]"


def _if(rule: Callable[[float, float, float], Any]) -> Callable[..., bool]:
    """An answer made of p and q of the guess, and of the random number."""
    return lambda token, p, q, u: bool(rule(float(p[token]), float(q[token]), u))


RATIO = "Accept if `uniform < p / q`: p is the target's probability of the guess, q the draft's."
IS_ACCEPTED = Contract(
    inputs=draw_guess,
    judge=Returns(accepts, wrong=_true_or_false),
    examples=300,
    tell=_tell_guess,
    passed="All guesses are judged by min(1, p / q), from 1 down to a trillionth. A guess that the "
    "target likes at least as much as the draft is always accepted.",
    clauses={
        "form": Clause("Your function returned {got}; expected True or False.", RATIO),
        "returns": Clause("The guess is judged wrongly. {says}.", RATIO),
    },
    mistakes=(
        mistake(
            "The comparison is the wrong way round: you accept when the random number is "
            "*above* p / q, so the guesses that the target likes best are rejected.",
            RATIO,
            _if(lambda p, q, u: u > p / q),
            _if(lambda p, q, u: u >= p / q),
        ),
        mistake(
            "You accept with probability q / p. It is p / q: a guess that the draft makes more "
            "often than the target would must sometimes be turned down.",
            RATIO,
            _if(lambda p, q, u: u < q / p if p else True),
        ),
        mistake(
            "You accept with probability p, and ignore how often the draft makes this guess. "
            "Guesses that are made too seldom are then rejected, too.",
            RATIO,
            _if(lambda p, q, u: u < p),
        ),
        mistake(
            "You accept with probability q, and ignore the target.",
            RATIO,
            _if(lambda p, q, u: u < q),
        ),
        mistake(
            "You accept with probability p / (p + q). Where p is not below q, the guess must "
            "always be accepted.",
            RATIO,
            _if(lambda p, q, u: u < p / (p + q)),
        ),
        mistake(
            "You compare p with q, and the random number does not matter. Where p < q, the "
            "guess must be accepted with probability p / q.",
            RATIO,
            _if(lambda p, q, u: p >= q),
            _if(lambda p, q, u: p > q),
        ),
        mistake(
            "You accept only the target's most probable token. That is greedy verification; "
            "here the other tokens must have their chance.",
            RATIO,
            lambda token, p, q, u: token == int(p.argmax()),
        ),
        mistake(
            "You compare the two largest probabilities, not those of the guess.",
            "`target_probs[token_id]` and `draft_probs[token_id]`.",
            lambda token, p, q, u: u < float(p.max() / q.max()),
        ),
        mistake(
            "A guess that the target would never make can be accepted: with `uniform` 0, where "
            "`uniform <= 0` holds.",
            "`<`, not `<=`: `uniform` is in [0, 1).",
            _if(lambda p, q, u: u <= p / q),
        ),
        mistake("Every guess is accepted.", RATIO, lambda token, p, q, u: True),
    ),
)


# Exercise 4


def draw_two_rows(c: Choices) -> Given:
    """p and q, in whole units of a power of two: so their difference is exact, however small."""
    size = c.size(2, 70_000, small=4)
    most = c.pick((4, 8, 1))
    p, q = (_units(c, size, most) for _ in range(2))
    if c.rarely(4):  # all but equal: about a millionth is missing
        p *= 2.0 ** (20 - round(float(p.sum().log2())))
        q = p.clone()
        one = int(p.argmax())
        q[one] -= 1
        q[(one + c.integer(1, size - 1)) % size] += 1
    p, q = (row / row.sum() for row in (p, q))
    if torch.equal(p, q):  # which the contract rules out
        p, q = torch.zeros(2, size)
        p[0] = q[-1] = 1.0
    layout = c.pick(("contiguous", "contiguous", "a slice"))
    return Given(laid_out(p, layout), laid_out(q, layout))


def _units(c: Choices, size: int, most: int) -> Tensor:
    """Whole numbers that sum to a power of two; many are 0."""
    if size <= 8:
        units = torch.tensor([float(c.integer(0, most)) for _ in range(size)])
    else:
        generator = torch.Generator().manual_seed(c.integer(0, 9999))
        units = torch.randint(0, most + 1, (size,), generator=generator).float()
    total = float(units.sum())
    units[c.integer(0, size - 1)] += 2 ** max(0, int(total)).bit_length() - total
    return units


def left_of_the_target(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """What accepted guesses leave of the target, token by token, shared out anew."""
    pairs = zip(target_probs.tolist(), draft_probs.tolist(), strict=True)
    missing = torch.tensor([p - min(p, q) for p, q in pairs], dtype=torch.float64)
    return (missing / missing.sum()).float()


def _distribution(expected: Tensor, got: Any, given: Given) -> Fault | None:
    if isinstance(got, Tensor) and got.is_floating_point() and got.dtype != expected.dtype:
        got = got.to(expected.dtype)
    says = difference(expected, got, 1e-4)
    if not says:
        return None
    picture = functools.partial(_bars, expected, got)
    words = describe(expected, _off(expected, got)), describe(got, _off(expected, got))
    return Fault("returns", "", expected, got, says, picture=picture, words=words)


def _off(expected: Tensor, got: Any) -> Tensor | None:
    same_shape = isinstance(got, Tensor) and got.shape == expected.shape
    return ~torch.isclose(got, expected, rtol=1e-4, atol=1e-6) if same_shape else None


def _bars(expected: Tensor, got: Any) -> tuple[Figure | None, str]:
    if expected.numel() > 12:
        return None, ""
    figure = pictures.bars(expected, got, "token", "probability", "What is missing of the target")
    return figure, "The expected distribution beside yours, token by token."


def _shared_out(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """An answer that divides these weights by their sum."""
    return lambda p, q: weigh(p, q) / weigh(p, q).sum()


RULE = "The residual is `(target_probs - draft_probs).clamp(min=0)`, divided by its sum."
RECOVERED_PROBS = Contract(
    inputs=draw_two_rows,
    judge=Returns(left_of_the_target, wrong=_distribution),
    passed="What accepted guesses leave of the target, shared out anew, also where only a "
    "millionth is missing. Accepted plus recovered tokens come exactly as often as the target "
    "says.",
    clauses={"returns": Clause("{says}", RULE)},
    mistakes=(
        mistake(
            "You return the target's own distribution. The tokens that the draft offers were "
            "accepted already, as often as they should be: drawn from here, they would come "
            "too often.",
            RULE,
            lambda p, q: p.clone(),
        ),
        mistake(
            "The residual does not sum to 1.",
            "Divide by the sum: `residual / residual.sum()`.",
            lambda p, q: (p - q).clamp(min=0),
        ),
        mistake(
            "The difference is the wrong way round: q - p. It holds the tokens that the draft "
            "offers too often; missing are those that it offers too seldom.",
            RULE,
            _shared_out(lambda p, q: (q - p).clamp(min=0)),
        ),
        mistake(
            "You take the absolute difference. Where the draft offers too much, nothing is "
            "missing: 0, not q - p.",
            RULE,
            _shared_out(lambda p, q: (p - q).abs()),
        ),
        mistake("Negative differences are not set to 0.", RULE, lambda p, q: p - q),
        mistake(
            "You divide before you clamp. The positive and the negative differences cancel: "
            "their sum is 0.",
            "Clamp first, then divide by the sum.",
            lambda p, q: ((p - q) / (p - q).sum()).clamp(min=0),
        ),
        mistake(
            "A softmax gives every token some probability, also those of which nothing is missing.",
            "Divide by the sum. A softmax is for logits.",
            lambda p, q: (p - q).clamp(min=0).softmax(-1),
            lambda p, q: (p - q).softmax(-1),
        ),
        mistake(
            "Where p > q, you keep all of p. The part q of it was accepted already; p - q is "
            "missing.",
            RULE,
            _shared_out(lambda p, q: torch.where(p > q, p, 0.0)),
        ),
        mistake(
            "You take the draft's distribution. A guess drawn from it was just rejected.",
            RULE,
            lambda p, q: q.clone(),
        ),
    ),
)
