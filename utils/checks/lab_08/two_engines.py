"""What lab 08 says of two engines that give different answers: exercise 8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.lab_08 import pictures

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Difference:
    """Where two answers part, and whether rounding explains it.

    Args:
        index: the first place where they differ.
        gap: by how much engine A's logits prefer its own token to that of B. None: one answer
            ends there.
        explained: whether rounding noise may have turned the choice around.
    """

    index: int
    gap: float | None
    explained: bool


def draw(c: Choices) -> Given:
    """Near ties and sure choices; tiny, large and negative logits; answers of unlike length."""
    vocab = c.pick((4, c.integer(2, 9), 300, 70_000 if c.rarely(8) else 5))
    unit, low = c.pick((0.125, 2.0**-20, 64.0)), c.pick((0, -90))
    tokens_a, tokens_b, rows = [], [], []
    length = c.size(0, 40, small=4) if vocab < 1000 else 2
    parts = c.pick((1, 4, 12))  # one in so many places is another token
    for _ in range(length):
        other = torch.Generator().manual_seed(c.integer(0, 999))
        row = low + torch.randint(0, 24, (vocab,), generator=other)
        best = vocab - 1 - c.integer(0, vocab - 1)
        row[best] = low + 24 + c.integer(0, 6)
        token = vocab - 1 - c.integer(0, vocab - 1) if c.integer(1, parts) == 1 else best
        if c.rarely(3):
            row[token] = row[best] - c.integer(0, 4)
        if token != best and c.rarely(3):  # a near tie, but with a third token
            row[(token + 1) % vocab] = row[best]
        rows.append(row * unit)
        tokens_a.append(best)
        tokens_b.append(token)
    both = tokens_a[: c.integer(0, len(tokens_a))] if c.rarely(5) else tokens_b
    more = c.some(lambda: c.integer(0, vocab - 1), 0, 2) if len(both) == length else []
    logits = torch.stack(rows) if rows else torch.zeros(0, vocab)
    logits = laid_out(logits.to(c.pick(DTYPES)), c.pick(LAYOUTS))
    return Given(tokens_a, both + more, logits, c.pick((1, 0, 2, 0.5, 1.5, 8)) * unit)


def right_difference(
    tokens_a: list[int], tokens_b: list[int], logits: Tensor, noise: float
) -> Difference | None:
    """The oracle: walk until the tokens differ. Both logits may be off by the noise."""
    if tokens_a == tokens_b:
        return None
    index = 0
    while tokens_a[: index + 1] == tokens_b[: index + 1]:
        index += 1
    if index == min(len(tokens_a), len(tokens_b)):
        return Difference(index, None, False)
    own, other = logits[index, [tokens_a[index], tokens_b[index]]].tolist()
    return Difference(index, own - other, own - noise <= other + noise)


def _fault(expected: Difference | None, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, Difference | None):
        return Fault("form", "", "None, or `Difference(index, gap, explained)`", got)
    if expected is None or got is None:
        clause = "equal" if expected is None else "differ"
        return (
            None
            if got is expected
            else Fault(clause, "", expected, got, words=_words(expected, got))
        )
    try:
        came = Difference(
            int(got.index), None if got.gap is None else float(got.gap), bool(got.explained)
        )
    except (TypeError, ValueError):
        return Fault("form", "", "`Difference(index, gap, explained)`", got)
    for name in ("index", "gap", "explained"):
        want, mine = getattr(expected, name), getattr(came, name)
        if difference(want, mine):
            return Fault(
                name,
                "",
                expected,
                _values(came),
                words=_words(expected, came),
                picture=lambda: _drawn(given, expected),
            )
    return None


def _values(answer: Difference) -> tuple[Any, ...]:
    return answer.index, answer.gap, answer.explained


def _words(*answers: Difference | None) -> tuple[str, str]:
    one, other = (
        "None: the answers are equal"
        if a is None
        else f"index {a.index}, gap {a.gap}, explained: {a.explained}"
        for a in answers
    )
    return one, other


def _drawn(given: Given, want: Difference) -> tuple[Figure | None, str]:
    tokens_a, tokens_b, logits, noise = given.args
    if want.gap is None or logits.shape[1] > 9:
        return None, ""
    i, words = want.index, "within" if want.explained else "beyond"
    figure = pictures.rivals(
        logits[i].tolist(),
        tokens_a[i],
        tokens_b[i],
        f"Token {i}: the gap is {want.gap:g}, {words} twice the noise of {noise:g}",
    )
    return figure, "The logits at the first difference, as bars."


def _told(given: Given) -> str:
    tokens_a, tokens_b, logits, noise = given.args
    rows = f"logits {logits.tolist()}" if logits.numel() <= 20 else f"{len(logits)} rows of logits"
    kind = "" if logits.dtype == torch.float32 else f" ({str(logits.dtype)[6:]})"
    return f"A {tokens_a}, B {tokens_b}, {rows}{kind}, noise {noise:g}"


Rule = Callable[[Tensor, int, int, float], tuple[float, bool]]  # row, A's token, B's, noise


def _at_first(rule: Rule) -> Callable[..., Difference | None]:
    """The right place, with a wrong gap or verdict."""

    def wrong(a: list[int], b: list[int], logits: Tensor, noise: float) -> Difference | None:
        right = right_difference(a, b, logits, noise)
        if right is None or right.gap is None:
            return right
        i = right.index
        return Difference(i, *rule(logits[i].double(), a[i], b[i], noise))

    return wrong


def _verdict(rule: Callable[[float, float], bool]) -> Callable[..., Difference | None]:
    return _at_first(lambda row, a, b, n: (float(row[a] - row[b]), rule(float(row[a] - row[b]), n)))


def _zipped(a: list[int], b: list[int], logits: Tensor, noise: float) -> Difference | None:
    right = right_difference(a, b, logits, noise)
    return None if right is None or right.gap is None else right


def _last(a: list[int], b: list[int], logits: Tensor, noise: float) -> Difference | None:
    places = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if not places:
        return right_difference(a, b, logits, noise)
    i = places[-1]
    gap = float(logits[i, a[i]].double() - logits[i, b[i]].double())
    return Difference(i, gap, gap <= 2 * noise)


def _ended(a: list[int], b: list[int], logits: Tensor, noise: float) -> Difference | None:
    right = right_difference(a, b, logits, noise)
    return Difference(right.index, None, True) if right and right.gap is None else right


def _top_two(row: Tensor, a: int, b: int, noise: float) -> tuple[float, bool]:
    first, second = row.topk(2).values.tolist()
    return first - second, first - second <= 2 * noise


TWO = "A's token may have lost up to `noise`, B's may have gained as much: `gap <= 2 * noise`."
GAP = "A's token first: `logits[i][tokens_a[i]] - logits[i][tokens_b[i]]`."

FIRST_DIFFERENCE = Contract(
    inputs=draw,
    judge=Returns(right_difference, wrong=_fault),
    passed="Right for near ties and sure choices, logits of all sizes and number formats, and "
    "answers that end early. So you know whether two engines compute the same.",
    clauses={
        "form": Clause("Your function returned {got}; expected {expected}."),
        "equal": Clause("The answers are equal, and you find a difference.", "`return None`."),
        "differ": Clause(
            "The answers differ, and you call them equal.",
            "`zip` ends with the shorter list. Compare the lengths, too.",
        ),
        "index": Clause(
            "The first place where the answers differ is another one.",
            "Places are counted from 0. Stop at the first that differs.",
        ),
        "gap": Clause("The gap is wrong.", GAP + " When one answer ends there: None."),
        "explained": Clause("Whether rounding explains it is decided wrongly.", TWO),
    },
    mistakes=(
        mistake(
            "Answers of different length count as equal when one is the beginning of the "
            "other. One engine stopped, and the other did not.",
            "`zip` ends with the shorter list. Compare the lengths, too.",
            _zipped,
        ),
        mistake(
            "You take the last difference. After the first one, both engines continue "
            "different texts, and there is nothing left to compare.",
            "Stop at the first index where they differ.",
            _last,
        ),
        mistake(
            "One answer simply ends, and you call it explained. No logits were compared there.",
            "`Difference(index, None, False)`.",
            _ended,
        ),
        mistake(
            "You measure the gap between the two best tokens. B may have taken the third: then "
            "the near tie of the first two explains nothing.",
            GAP,
            _at_first(_top_two),
        ),
        mistake(
            "The gap has the wrong sign. A greedy engine prefers its own token: the gap is not "
            "negative, and a negative one always looks explained.",
            GAP,
            _at_first(lambda row, a, b, n: (float(row[b] - row[a]), True)),
        ),
        mistake(
            "You allow for the noise of one logit. Two are compared, and each may be off, in "
            "opposite directions.",
            TWO,
            _verdict(lambda gap, noise: gap <= noise),
        ),
        mistake(
            "A gap of exactly twice the noise can still be turned around to a tie.",
            TWO,
            _verdict(lambda gap, noise: gap < 2 * noise),
        ),
        mistake(
            "Everything counts as explained. A large gap means that the engines do not compute "
            "the same thing.",
            TWO,
            _verdict(lambda gap, noise: True),
        ),
        mistake(
            "Nothing counts as explained. A gap within the noise is no bug.",
            TWO,
            _verdict(lambda gap, noise: False),
        ),
    ),
    tell=_told,
    examples=250,
)
