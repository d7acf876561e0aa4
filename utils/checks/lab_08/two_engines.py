"""What lab 08 says of two engines that give different answers: exercise 8."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.runner import Mismatch, call, describe
from utils.checks.kit.tiny_model import TinyModel, one_thread
from utils.checks.lab_08 import pictures
from utils.checks.lab_08.smallest_case import Fault, judge

NUM_PROMPTS, MAX_TOKENS = 20, 12


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


class Pair(NamedTuple):
    """Two answers, the logits that A chose from, and how far B's logits may be from them."""

    tokens_a: list[int]
    tokens_b: list[int]
    logits: Tensor  # [len(tokens_a), vocab]
    noise: float


Answer = tuple[int, float | None, bool] | None


def _round(index: int, gap: float | None, explained: bool) -> Answer:
    return index, None if gap is None else round(gap, 4), explained


def right_difference(pair: Pair) -> Answer:
    """The oracle: walk until the tokens differ. Both logits may be off by the noise."""
    a, b = pair.tokens_a, pair.tokens_b
    if a == b:
        return None
    index = 0
    while a[: index + 1] == b[: index + 1]:
        index += 1
    if index == min(len(a), len(b)):
        return _round(index, None, False)
    row = pair.logits[index].tolist()
    gap = row[a[index]] - row[b[index]]
    return _round(index, gap, gap - 2 * pair.noise <= 0)


def _pair(rows: list[list[float]], other: list[int], noise: float) -> Pair:
    """A pair in which engine A takes the largest logit of each row."""
    logits = torch.tensor(rows)
    return Pair(logits.argmax(-1).tolist(), other, logits, noise)


def _pairs() -> list[Pair]:
    sure, tie = [0.0, 1.0, 8.0, 3.0], [5.0, 1.0, 4.75, 3.0]
    pairs = [
        _pair([sure], [2], 0.5),
        _pair([tie], [2], 0.25),
        _pair([sure], [3], 0.5),
        _pair([sure, tie], [2, 2], 0.5),
        _pair([sure, tie, sure], [2, 2, 0], 0.25),  # what comes after does not count
        _pair([sure, sure, tie], [2, 3, 2], 0.25),
        _pair([tie], [3], 0.25),  # a near tie, but not with the token that B took
        _pair([tie], [2], 0.125),  # exactly on the edge
        _pair([tie], [2], 0.0625),
        _pair([sure, tie], [2], 0.25),
        _pair([sure], [2, 0], 0.25),
        _pair([tie, sure], [], 0.25),
    ]
    dice = random.Random(9)
    for _ in range(60):
        rows = [[dice.randrange(32) / 8 for _ in range(5)] for _ in range(dice.randint(1, 5))]
        for row in rows:
            row[dice.randrange(5)] = 4.0 + dice.randrange(1, 8) / 8  # one is the largest
        best = [row.index(max(row)) for row in rows]
        other = [t if dice.random() < 0.7 else dice.randrange(5) for t in best]
        pairs.append(_pair(rows, other[: dice.randint(len(other) - 1, len(other))],
                           dice.randint(1, 12) / 16))  # fmt: skip
    return pairs


def _told(pair: Pair) -> str:
    rows = [[round(x, 3) for x in row] for row in pair.logits.tolist()]
    logits = f"logits {rows}" if pair.logits.numel() <= 20 else f"{len(rows)} rows of logits"
    return f"A {pair.tokens_a}, B {pair.tokens_b}, {logits}, noise {pair.noise:g}"


def _faults() -> list[Fault]:
    def at_first(
        rule: Callable[[Pair, int], tuple[float | None, bool]], ended: bool = False
    ) -> Callable[[Pair], Answer]:
        """The right place, with a wrong gap or verdict."""

        def wrong(pair: Pair) -> Answer:
            right = right_difference(pair)
            if right is None or (right[1] is None and not ended):
                return right
            gap, explained = rule(pair, right[0])
            return _round(right[0], gap, explained)

        return wrong

    def gap_of(pair: Pair, i: int) -> float:
        return float(pair.logits[i][pair.tokens_a[i]] - pair.logits[i][pair.tokens_b[i]])

    def top_two(pair: Pair, i: int) -> tuple[float, bool]:
        first, second = pair.logits[i].topk(2).values.tolist()
        return first - second, first - second <= 2 * pair.noise

    def only_verdict(rule: Callable[[float, float], bool]) -> Callable[[Pair], Answer]:
        return at_first(lambda p, i: (gap_of(p, i), rule(gap_of(p, i), p.noise)))

    def zipped(pair: Pair) -> Answer:
        right = right_difference(pair)
        return None if right is None or right[1] is None else right

    def last(pair: Pair) -> Answer:
        both = list(zip(pair.tokens_a, pair.tokens_b, strict=False))
        places = [i for i, (x, y) in enumerate(both) if x != y]
        if not places:
            return right_difference(pair)
        gap = gap_of(pair, places[-1])
        return _round(places[-1], gap, gap <= 2 * pair.noise)

    def one_based(pair: Pair) -> Answer:
        right = right_difference(pair)
        return right and (right[0] + 1, *right[1:])

    def ended_explained(pair: Pair) -> Answer:
        right = right_difference(pair)
        return (right[0], None, True) if right and right[1] is None else right

    two = "A's token may have lost up to `noise`, B's may have gained as much: `gap <= 2 * noise`."
    return [
        Fault(zipped,
              "Answers of different length count as equal when one is the beginning of the other. "
              "One engine stopped, and the other did not.",
              "`zip` ends with the shorter list. Compare the lengths, too."),
        Fault(last,
              "You take the last difference. After the first one, both engines continue different "
              "texts, and there is nothing left to compare.",
              "Stop at the first index where they differ."),
        Fault(one_based, "The index is one too large: places are counted from 0.",
              "`enumerate` starts at 0."),
        Fault(ended_explained,
              "One answer simply ends, and you call it explained. No logits were compared there.",
              "`Difference(index, None, False)`."),
        Fault(at_first(top_two),
              "You measure the gap between the two best tokens. B may have taken the third: then "
              "the near tie of the first two explains nothing.",
              "`logits[i][tokens_a[i]] - logits[i][tokens_b[i]]`."),
        Fault(at_first(lambda p, i: (top_two(p, i)[0], gap_of(p, i) <= 2 * p.noise)),
              "You report the gap between the two best tokens. B may have taken the third.",
              "`logits[i][tokens_a[i]] - logits[i][tokens_b[i]]`."),
        Fault(at_first(lambda p, i: (-gap_of(p, i), True)),
              "The gap has the wrong sign. A greedy engine prefers its own token: the gap is not "
              "negative, and a negative one always looks explained.",
              "A's token first: `logits[i][tokens_a[i]] - logits[i][tokens_b[i]]`."),
        Fault(only_verdict(lambda gap, noise: gap <= noise),
              "You allow for the noise of one logit. Two are compared, and each may be off, in "
              "opposite directions.", two),
        Fault(only_verdict(lambda gap, noise: gap < 2 * noise),
              "A gap of exactly twice the noise can still be turned around to a tie.", two),
        Fault(only_verdict(lambda gap, noise: gap >= 2 * noise),
              "The verdict is turned around: a *small* gap can be explained by noise.", two),
        Fault(only_verdict(lambda gap, noise: True),
              "Everything counts as explained. A large gap means that the engines do not compute "
              "the same thing.", two),
        Fault(only_verdict(lambda gap, noise: False),
              "Nothing counts as explained. A gap within the noise is no bug.", two),
    ]  # fmt: skip


def judge_first_difference(function: Callable[..., Any]) -> str:
    """Check `first_difference(tokens_a, tokens_b, logits, noise)`."""

    def ask(pair: Pair) -> Answer:
        given = _told(pair)
        arguments = list(pair.tokens_a), list(pair.tokens_b), pair.logits.clone(), pair.noise
        got = call(function, *arguments, given=given)
        if got is None:
            return None
        if not isinstance(got, Difference):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected None, or `Difference(index, "
                "gap, explained)`.",
                input=given,
            )  # fmt: skip
        gap = None if got.gap is None else float(got.gap)
        return _round(int(got.index), gap, bool(got.explained))

    def show(answer: Answer) -> str:
        if answer is None:
            return "None: the answers are equal"
        return f"index {answer[0]}, gap {answer[1]}, explained: {answer[2]}"

    def picture(pair: Pair, want: Answer, got: Answer) -> tuple[Figure | None, str]:
        if want is None or want[1] is None or pair.logits.shape[1] > 8:
            return None, ""
        i = want[0]
        words = "within" if want[2] else "beyond"
        figure = pictures.rivals(
            pair.logits[i].tolist(), pair.tokens_a[i], pair.tokens_b[i],
            f"Token {i}: the gap is {want[1]:g}, {words} twice the noise of {pair.noise:g}",
        )  # fmt: skip
        return figure, "The logits at the first difference, as bars."

    pairs = _pairs()
    otherwise = ("This is not the first difference, or not its gap.",
                 "First the index, then the two logits of that row.")  # fmt: skip
    judge(pairs, ask, right_difference, _told, _faults(), otherwise, show, picture)
    with one_thread():
        real = _rounded_pairs()
    judge(real, ask, right_difference, _told, _faults(), otherwise, show, picture)
    parted = [answer for answer in map(right_difference, real) if answer is not None]
    assert parted and all(answer[2] for answer in parted)
    return (
        f"Right for {len(pairs)} pairs. Then a small model answered {NUM_PROMPTS} prompts in "
        "float32 and in bfloat16. Some of the answers part somewhere, and rounding explains each "
        "of them. It must: B's choice is the largest of logits that are within the noise of A's."
    )


@torch.no_grad()
def _rounded_pairs() -> list[Pair]:
    """Greedy answers of a small model in float32 (A) and in bfloat16 (B)."""
    tiny = TinyModel()
    rounded = copy.deepcopy(tiny.hf).to(torch.bfloat16)
    dice = random.Random(3)
    pairs = []
    for _ in range(NUM_PROMPTS):
        prompt = [dice.randrange(tiny.vocab_size) for _ in range(6)]
        texts = torch.tensor([prompt, prompt])
        logits, noise = [], 0.0
        for _ in range(MAX_TOKENS):
            a = tiny.hf(texts[:1], use_cache=False).logits[0, -1]
            b = rounded(texts[1:], use_cache=False).logits[0, -1].float()
            if torch.equal(texts[0], texts[1]):  # as long as both read the same text
                noise = max(noise, float((a - b).abs().max()))
            logits.append(a)
            chosen = torch.stack([a.argmax(), b.argmax()])
            texts = torch.cat([texts, chosen[:, None]], dim=1)
        answers = texts[:, len(prompt) :].tolist()
        pairs.append(Pair(answers[0], answers[1], torch.stack(logits), noise))
    return pairs
