"""The checks of lab 07: what is drawn, and what is right.

Oracles: brute force over all matches and prefixes; the exact law of each step, and of all
that a sampler can do with its random numbers; a chi-square test; the engine without speculation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import laid_out
from utils.checks.kit.contracts.int_lists import is_list
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Passed, describe
from utils.checks.lab_07 import answers, guesser, learners_engine
from utils.checks.lab_07.laws import draw_step
from utils.checks.lab_07.lookups import draw_lookup, followed, tell_lookup, wrong_guesses
from utils.checks.lab_07.many_steps import experiment
from utils.checks.lab_07.sampling import BY_ITS_LAW
from utils.checks.lab_07.token_lists import VOCABULARIES, token_of

LAB = Lab(__file__)

# Exercise 1: guesses from the text itself

propose = LAB.check(
    answers.propose, draw_lookup, Returns(followed, wrong=is_list(wrong_guesses)), tell=tell_lookup
)
# The same for a proposer that always looks up the sizes of `my_parts`.
PROPOSER = LAB.check(
    answers.propose,
    functools.partial(draw_lookup, sizes=learners_engine.LOOKUP),
    Returns(followed, wrong=is_list(wrong_guesses)),
    tell=tell_lookup,
).contract

# Exercise 2: which guesses stay, if the target is greedy


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


def wrong_tokens(expected: list[int], got: list[int], given: Given) -> tuple[str, str]:
    draft, target = given.args
    right = len(expected) - 1
    if right < len(draft):
        return "returns", f"Guess {right} is {draft[right]}, but the target says {target[right]}."
    return "returns", "All the guesses are right." if draft else "There are no guesses."


verify_greedy = LAB.check(
    answers.verify_greedy, draw_verification, Returns(kept, wrong=is_list(wrong_tokens))
)

# Exercise 3: does a guess stay?

# The random number, relative to p / q (0 to 1): just below it, just above, anywhere; its ends.
BELOW, ABOVE = (0.5, 0.9, 0.99, 0.999, 0.9999), (1.5, 1.1, 1.01, 1.001, 1.0001)
ALMOST_ONE = 1 - 2**-24


def draw_guess(c: Choices) -> Given:
    """Ratios from above 1 to a trillionth, of probabilities large and tiny; p = q and p = 0."""
    size = c.size(2, 70_000, small=3)
    token = c.integer(0, size - 1)
    dtype = c.pick((torch.float32, torch.float32, torch.float64, torch.float16))
    half = dtype == torch.float16  # tiny numbers have few digits in it
    unit = 2.0 ** -c.pick((4, 4, 5, 8, 9, 7) if half else (4, 4, 5, 20, 20, 40))
    kind = c.pick(("below", "below", "above", "equal", "never"))
    p = q = float(c.integer(1, 8))
    if kind != "equal":
        p, q = (c.integer(0, 6), c.integer(7, 16)) if kind == "below" else (c.integer(7, 16), q)
    far = 0 if half else c.pick((0, 0, 0, 8, 16, 38))
    p = 0.0 if kind == "never" else p * 2.0**-far
    target, draft = (row_with(c, size, token, n * unit).to(dtype) for n in (p, q))
    ratio = min(1.0, p / q)
    uniform = c.pick(("below", "above", "0", "below 1"))
    near = BELOW if uniform == "below" else ABOVE
    factor = c.pick(near[:3] if half else near)
    most = 0.999 if half else ALMOST_ONE
    u = {"0": 0.0, "below 1": most}.get(uniform, min(most, ratio * factor))
    layout = c.pick(("contiguous", "contiguous", "a slice"))
    return Given(token, laid_out(target, layout), laid_out(draft, layout), u)


def row_with(c: Choices, size: int, token: int, share: float) -> Tensor:
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


def wrong_verdict(expected: bool, got: Any, given: Given) -> Fault | None:
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


def tell_guess(given: Given) -> str:
    token, p, q, u = given.args
    rows = [f"[{', '.join(f'{x:.4g}' for x in row.tolist())}]" for row in (p, q) if len(row) <= 8]
    if not rows:
        rows = [f"{float(row[token]):.4g} at token {token}" for row in (p, q)]
    return f"guess: token {token} of {len(p)}; target_probs {rows[0]}; draft_probs {rows[1]}; " + (
        f"uniform {u:.9g}"
    )


is_accepted = LAB.check(
    answers.is_accepted,
    draw_guess,
    Returns(accepts, wrong=wrong_verdict),
    tell=tell_guess,
    examples=300,
)

# Exercise 4: what to draw from after a rejection


def draw_two_rows(c: Choices) -> Given:
    """p and q, in whole units of a power of two: so their difference is exact, however small."""
    size = c.size(2, 70_000, small=4)
    most = c.pick((4, 8, 1))
    p, q = (units_of(c, size, most) for _ in range(2))
    if c.rarely(4):  # all but equal: a millionth is missing, of one token or a little of several
        total, several = c.pick(((20, 1), (24, 16)))
        p *= 2.0 ** (total - round(float(p.sum().log2())))
        q = p.clone()
        for one in p.topk(min(several, size // 2)).indices.tolist():
            if p[one] > 0:
                q[one] -= 1
                q[(one + c.integer(1, size - 1)) % size] += 1
    p, q = (row / row.sum() for row in (p, q))
    if torch.equal(p, q):  # which the contract rules out
        p, q = torch.zeros(2, size)
        p[0] = q[-1] = 1.0
    layout = c.pick(("contiguous", "contiguous", "a slice"))
    return Given(laid_out(p, layout), laid_out(q, layout))


def units_of(c: Choices, size: int, most: int) -> Tensor:
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


def wrong_distribution(expected: Tensor, got: Any, given: Given) -> Fault | None:
    if isinstance(got, Tensor) and got.is_floating_point() and got.dtype != expected.dtype:
        got = got.to(expected.dtype)
    says = difference(expected, got, 1e-4)
    if not says:
        return None
    same_shape = isinstance(got, Tensor) and got.shape == expected.shape
    off = ~torch.isclose(got, expected, rtol=1e-4, atol=1e-6) if same_shape else None
    picture = functools.partial(draw_bars, expected, got) if len(expected) <= 12 else None
    words = describe(expected, off), describe(got, off)
    return Fault("returns", "", expected, got, says, picture=picture, words=words)


def draw_bars(expected: Tensor, got: Any) -> tuple[Figure | None, str]:
    figure = pictures.bars(expected, got, "token", "probability", "What is missing of the target")
    return figure, "The expected distribution beside yours, token by token."


recovered_probs = LAB.check(
    answers.recovered_probs,
    draw_two_rows,
    Returns(left_of_the_target, wrong=wrong_distribution),
    examples=100,
)

# Exercise 5: a whole step

rejection_sample = LAB.check(
    answers.rejection_sample, draw_step, BY_ITS_LAW, passed=experiment, examples=100
)

# Exercise 6: what a step is worth


def draw_rate(c: Choices) -> Given:
    """Rates from 0 to 1, both included, and close to them; few guesses and many."""
    rate = c.pick((0.5, 0.0, 1.0, 0.8, 0.001, 0.999, 1 - 1e-6, *(2 * [c.real(0.0, 1.0)])))
    return Given(rate, c.size(0, 600))


def mean_tokens(acceptance_rate: float, num_speculative_tokens: int) -> float:
    """Over all that can happen: n guesses accepted and the next one not, or all k accepted."""
    a, k = acceptance_rate, num_speculative_tokens
    stopped = ((n + 1) * a**n * (1 - a) for n in range(k))
    return math.fsum([*stopped, (k + 1) * a**k])


def wrong_number(expected: float, got: Any, given: Given) -> Fault | None:
    if got is not None and (not isinstance(got, Real) or isinstance(got, bool)):
        return Fault("form", "", expected, got)
    says = difference(expected, got, 3e-5)  # float32 is exact enough
    return Fault("returns", "", expected, got, says) if says else None


expected_tokens = LAB.check(
    answers.expected_tokens, draw_rate, Returns(mean_tokens, wrong=wrong_number)
)

# Exercise 7: how many tokens to guess


def gain(a: float, k: int, cost: float) -> float:
    """Tokens per time."""
    return mean_tokens(a, k) / (1 + k * cost)


def draw_situation(c: Choices) -> Given:
    """The best number stands out, or is tied in numbers that no rounding touches."""
    most = c.size(0, 120)
    kind = c.pick(("any", "any", "any", "any", "tie", "free", "hardly"))
    if kind == "tie":  # one guess gives as much as none; with 1.0 all numbers do
        rate = c.pick((0.5, 0.0, 0.25, 1.0))
        return Given(rate, most, rate)
    rate = c.pick((0.8, 0.0, 1.0, *(3 * [c.real(0.0, 0.99)])))
    if kind == "free":  # beyond 4 guesses, a^k is lost in the rounding of float32
        return Given(c.pick((max(rate, 0.1), 0.1)), c.pick((min(most, 4), 4)), 0.0)
    if kind == "hardly":  # one guess gives a little more than none, or a little less
        rate = c.real(0.1, 0.6)
        return Given(rate, most, rate * c.pick((0.999, 1.001)))
    cost = c.pick((0.1, 0.02, 1e-4, *(2 * [c.real(0.001, 2.0)])))
    while not stands_out(rate, most, cost):
        cost += 0.0137
    return Given(rate, most, cost)


def stands_out(a: float, most: int, cost: float) -> bool:
    gains = sorted((gain(a, k, cost) for k in range(most + 1)), reverse=True)
    return len(gains) == 1 or gains[1] < gains[0] * (1 - 1e-5)


def best_number(
    acceptance_rate: float, max_num_speculative_tokens: int, draft_token_cost: float
) -> int:
    gains = [
        gain(acceptance_rate, k, draft_token_cost) for k in range(max_num_speculative_tokens + 1)
    ]
    return next(k for k, of in enumerate(gains) if of > max(gains) * (1 - 1e-12))


def wrong_choice(expected: int, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, Integral) or isinstance(got, bool):
        return Fault("form", "", expected, got)
    if got == expected:
        return None
    a, most, cost = given.args
    if not 0 <= int(got) <= most:
        return Fault("range", "", expected, got)
    words = tuple(f"`{k}`: {gain(a, k, cost):.6g} tokens per time" for k in (expected, int(got)))
    tied = gain(a, int(got), cost) > gain(a, expected, cost) * (1 - 1e-12)
    return Fault("tie" if tied else "returns", "", expected, int(got), words=(words[0], words[1]))


def praise_choice(answer: Callable[..., int]) -> str:
    return (
        "Right, and the smallest of equally good numbers. If a guess costs a tenth of a step and "
        f"at most 6 are allowed, you guess {answer(0.8, 6, 0.1)} tokens when 80% are accepted, and "
        f"{answer(0.3, 6, 0.1)} when 30% are."
    )


choose_num_speculative_tokens = LAB.check(
    answers.choose_num_speculative_tokens,
    draw_situation,
    Returns(best_number, wrong=wrong_choice),
    passed=praise_choice,
)

# Exercise 8: a guesser of the learner's own


@LAB.exercise
def guess_better(function: guesser.Guesser) -> Passed:
    """Check `guess_better`: more tokens per step than with `propose`, and no more waste."""
    return guesser.judge(function)


# Exercise 9: the engine with the learner's guesses and verification


@LAB.exercise
def engine(make_parts: Callable[[], tuple[Any, Any]]) -> Passed:
    """Check `make_parts()`, a proposer and a rejection sampler: text, steps, distribution."""
    parts = learners_engine.parts_of(make_parts)
    learners_engine.each_speaks_first(
        make_parts,
        parts,
        {
            "propose": PROPOSER,
            "greedy": verify_greedy.contract,
            "sample": rejection_sample.contract,
            "is_accepted": is_accepted.contract,
            "recovered_probs": recovered_probs.contract,
        },
    )
    return learners_engine.run(make_parts, followed, kept)
