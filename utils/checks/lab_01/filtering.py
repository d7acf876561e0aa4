"""Exercise 5: temperature, top-k and top-p, with every answer that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.inputs import laid_out, tensor

BESIDE = 1e-5  # a sum so near to top_p may count as below it, or as reaching it
TAIL = 1e-12  # probabilities below it may be rounded away, if the token stays
NONE = 1e-37  # less than that is 0
SHOWN = 60  # bars
TEMPERATURES = (1.0, 1.0, 0.0, 0.0, 0.5, 0.7, 2.0, 3.0, 0.01, 0.001, 0.001, 100.0)
TOP_P = (1.0, 1.0, 0.5, 0.9, 0.25, 0.75, 0.99, 1e-6)
PLAIN = ("contiguous",)
KINDS = ("plain", "plain", "ties", "ties", "negative", "large", "zero")


class Settings(NamedTuple):
    logits: Tensor
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def step(self) -> str:
        """Which of the settings say something on these logits: the clause for a wrong answer."""
        filters = self.top_p < 1, 0 < self.top_k < len(self.logits)
        if self.temperature == 0:
            return "greedy"
        return {(True, True): "both", (True, False): "top_p", (False, True): "top_k"}.get(
            filters, "softmax"
        )


def draw(c: Choices) -> Given:
    """Peaked and flat ones; ties; tails of 1e-9; k and p at the edges, or left out."""
    if c.rarely(12):  # sums without rounding, one of which is top_p
        vocab = c.pick((4, 2, 8, 32))
        return Given(torch.zeros(vocab), 1.0, 0, c.integer(1, vocab - 1) / vocab)
    kind = c.pick((*("small",) * 40, "middle", "middle", "middle", "large"))
    vocab = {
        "small": lambda: c.size(1, 300),
        "middle": lambda: c.integer(2000, 4000),
        "large": lambda: c.integer(65_536, 70_000),
    }[kind]()
    logits = tensor(c, (vocab,), values=KINDS if kind == "small" else ("plain",), layouts=PLAIN)
    logits = logits * (c.pick((1, 3, 20, 0.01)) if kind == "small" else 1)
    if c.rarely(4):
        logits[c.integer(0, vocab - 1)] += 25.0
    temperature = c.pick(TEMPERATURES)
    edges = (0, 2, 1, vocab, vocab + 1, vocab - 1, 10 * vocab)
    top_k = c.pick((c.pick(edges), c.size(1, 200), c.integer(1, vocab)))
    if kind == "large":
        top_k = min(top_k, 200)
    top_p = c.pick(TOP_P)
    if kind == "middle":  # the whole vocabulary counts
        temperature, top_k = 2.0, 0
    way = c.pick(("fixed", "between", "any", "between")) if kind == "small" else "fixed"
    if way == "any":
        top_p = round(1 - c.integer(0, 999) / 1000, 3)
    elif way == "between":
        top_p = between(c, logits, temperature, top_k if c.rarely(2) else 0)
    logits = laid_out(logits, c.pick(("contiguous", "a slice")))
    named: dict[str, dict[str, Any]] = {
        "k": {"top_k": top_k},
        "p": {"top_p": top_p},
        "temperature": {"temperature": temperature},
        "nothing": {},
    }
    given = c.pick(("all", "all", "all", *named)) if kind == "small" else "all"
    if given == "all":
        return Given(logits, temperature, top_k, top_p)
    return Given(logits, **named[given])


def tell(given: Given) -> str:
    """The arguments that are given, and those that are left out."""
    settings = Settings(*given.args, **given.named)
    names = ["logits", *given.named] if given.named or len(given.args) == 1 else settings._fields
    words = [f"{name} {shown(getattr(settings, name)).replace('`', '')}" for name in names]
    out = [name for name in settings._fields if name not in names]
    return ", ".join(words) + (f"; left out: {', '.join(out)}" if out else "")


def between(c: Choices, logits: Tensor, temperature: float, top_k: int) -> float:
    """A top_p within a token, when tokens are added up with the most likely one first.

    With a `top_k`, the probabilities are those of what it leaves; without, of all tokens. To take
    the ones for the others then is a visible mistake.
    """
    ranked = logits.sort(descending=True).values[: top_k or None].double()
    probabilities = (ranked / (temperature or 1.0)).softmax(0)
    place = c.integer(0, min(5, len(ranked) - 1))
    part = c.pick((0.5, 0.1, 0.9)) * probabilities[place]
    return round(float(probabilities[:place].sum() + part), 4) or 1.0


class Answers(list[Tensor]):
    """All that is right. Of tokens with equal logits, each may be the one that stays."""

    def __repr__(self) -> str:
        return shown(self[0]).replace("`", "")


def oracle(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Answers:
    """In float64; the answer with the fewest tokens first."""
    order = logits.sort(descending=True, stable=True).indices
    return Answers(
        torch.zeros_like(logits).scatter(0, order[: len(kept)], kept.float())
        for kept in _sorted(logits[order].double(), temperature, top_k, top_p)
    )


def _sorted(ranked: Tensor, temperature: float, top_k: int, top_p: float) -> Iterator[Tensor]:
    """The probabilities that may stay, largest first."""
    if temperature == 0:
        yield torch.ones(1)
        return
    count = min(top_k or len(ranked), len(ranked))
    tied = int((ranked >= ranked[count - 1]).sum())
    for kept in sorted({count, tied}):
        weights = (ranked[:kept] / temperature).softmax(0)
        before = weights.cumsum(0) - weights
        exact = not ranked[:kept].any() and kept & (kept - 1) == 0  # equal, and halves of halves
        beside = 0.0 if exact else BESIDE
        fewest, most = (
            kept if top_p == 1 else int((before < top_p + d).sum()) for d in (-beside, beside)
        )
        for nucleus in range(max(1, fewest), most + 1):
            yield weights[:nucleus] / weights[:nucleus].sum()


def wrong(expected: Answers, got: Any, given: Given) -> Fault | None:
    """Tokens of equal logits may change places; one of the right answers must then come."""
    settings = Settings(*given.args, **given.named)
    logits = settings.logits
    if says := difference(torch.zeros_like(logits), got, atol=torch.inf):
        right_shape = isinstance(got, Tensor) and got.shape == logits.shape
        clause = "form" if not right_shape else "dtype" if got.dtype != logits.dtype else "nan"
        return Fault(clause, "", expected[0], got, says)
    heat = float(logits.abs().max()) / settings.temperature if settings.temperature else 0.0
    mine = _by_rank(logits, got)
    tried = [_by_rank(logits, right) for right in expected]
    rtol = 1e-3 + 4e-7 * heat
    for right in tried:
        if not difference(right, mine, rtol, TAIL) and not (mine[right == 0] > NONE).any():
            return None
    total = float(got.double().sum())
    clause, says = settings.step, _what(expected, tried, mine, got)
    if not abs(total - 1) < 1e-3 or bool((got < 0).any()):
        clause, says = "sum", f"{total:.5g}"

    def picture() -> tuple[Figure | None, str]:
        if len(logits) > SHOWN:
            return None, ""
        figure = pictures.bars(
            expected[0], got.detach(), "token id", "probability", "The distribution to draw from"
        )
        return figure, "Bars of the expected and of your probabilities."

    return Fault(clause, "", expected[0], got, says, picture=picture)


def _what(expected: Answers, tried: list[Tensor], mine: Tensor, got: Tensor) -> str:
    """What is wrong with probabilities, in a sentence."""
    counts = sorted({int((right > NONE).sum()) for right in expected})
    number = int((got > NONE).sum())
    if not counts[0] <= number <= counts[-1]:
        nearest = counts[-1] if number > counts[-1] else counts[0]
        keep = "token keeps" if number == 1 else "tokens keep"
        return f"{number} {keep} a probability; expected {nearest}."
    if not any(torch.equal(right > NONE, mine > NONE) for right in tried):
        return "The right number of tokens keep a probability, but not the most likely ones."
    return "The right tokens keep a probability, but the numbers are wrong."


def _by_rank(logits: Tensor, probabilities: Tensor) -> Tensor:
    """The probabilities of the largest logit first; of equal logits, the largest first."""
    rank = probabilities.sort(descending=True, stable=True).indices
    rank = rank[logits[rank].sort(descending=True, stable=True).indices]
    return probabilities[rank].detach()
