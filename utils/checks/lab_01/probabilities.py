"""Temperature, top-k and top-p: exercise 5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.inputs import laid_out, tensor
from utils.checks.lab_01.probability_mistakes import MISTAKES

BESIDE = 1e-5  # a sum so near to top_p may count as below it, or as reaching it
TAIL = 1e-12  # probabilities below it may be rounded away, if the token stays
NONE = 1e-37  # less than that is 0
SHOWN = 60  # bars
TEMPERATURES = (1.0, 1.0, 0.0, 0.0, 0.5, 0.7, 2.0, 3.0, 0.01, 100.0)
TOP_P = (1.0, 1.0, 0.5, 0.9, 0.25, 0.75, 0.99, 1e-6)


def draw(c: Choices) -> Given:
    """Peaked and flat ones; ties; tails of 1e-9; k and p at the edges, or left out."""
    if c.rarely(12):  # sums without rounding, one of which is top_p
        vocab = c.pick((4, 2, 8, 32))
        return Given(torch.zeros(vocab), 1.0, 0, c.integer(1, vocab - 1) / vocab)
    large = c.rarely(60)
    vocab = c.integer(65_536, 70_000) if large else c.size(1, 300)
    kinds = ("plain", "plain", "ties", "ties", "negative", "large", "zero")
    logits = tensor(c, (vocab,), (torch.float32,), kinds, ("contiguous",)) * c.pick((1, 3, 20))
    if c.rarely(4):
        logits[c.integer(0, vocab - 1)] += 25.0
    temperature = c.pick(TEMPERATURES)
    edges = (0, vocab, vocab + 1, vocab - 1, 1, 2, 10 * vocab)
    top_k = c.size(1, 200) if large or c.rarely(2) else c.pick(edges)
    top_p = c.pick(TOP_P) if c.rarely(2) else round(1 - c.integer(0, 999) / 1000, 3)
    logits = laid_out(logits, c.pick(("contiguous", "a slice")))
    given = c.pick(("all", "all", "all", "temperature", "nothing", "k", "p"))
    if large or given == "all":
        return Given(logits, temperature, top_k, top_p)
    named: dict[str, dict[str, Any]] = {
        "k": {"top_k": top_k},
        "p": {"top_p": top_p},
        "temperature": {"temperature": temperature},
        "nothing": {},
    }
    return Given(logits, **named[given])


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
    logits, temperature = given.args[0], _temperature(given)
    if says := difference(torch.zeros_like(logits), got, atol=torch.inf):
        return Fault("form", "", expected[0], got, says)
    heat = float(logits.abs().max()) / temperature if temperature else 0.0
    mine = _by_rank(logits, got)
    tried = [_by_rank(logits, right) for right in expected]
    rtol = 1e-3 + 4e-7 * heat
    for right in tried:
        if not difference(right, mine, rtol, TAIL) and not (mine[right == 0] > NONE).any():
            return None
    clause, says = _what(expected, tried, mine, got)

    def picture() -> tuple[Figure | None, str]:
        if len(logits) > SHOWN:
            return None, ""
        figure = pictures.bars(
            expected[0], got.detach(), "token id", "probability", "The distribution to draw from"
        )
        return figure, "Bars of the expected and of your probabilities."

    return Fault(clause, "", expected[0], got, says, picture=picture)


def _what(expected: Answers, tried: list[Tensor], mine: Tensor, got: Tensor) -> Any:
    """The clause that is broken, and by how much."""
    counts = sorted({int((right > NONE).sum()) for right in expected})
    number = int((got > NONE).sum())
    if not abs(float(got.double().sum()) - 1) < 1e-3 or bool((got < 0).any()):
        return "sum", f"{float(got.double().sum()):.5g}"
    if number > counts[-1]:
        return "many", f"{number} tokens stay; expected {counts[-1]}."
    if number < counts[0]:
        return "few", f"{number} stay; expected {counts[0]}."
    if not any(torch.equal(t > NONE, mine > NONE) for t in tried):
        return "others", ""
    return "values", difference(expected[0], got)


def _by_rank(logits: Tensor, probabilities: Tensor) -> Tensor:
    """The probabilities of the largest logit first; of equal logits, the largest first."""
    rank = probabilities.sort(descending=True, stable=True).indices
    rank = rank[logits[rank].sort(descending=True, stable=True).indices]
    return probabilities[rank].detach()


def _temperature(given: Given) -> float:
    return float(given.args[1] if len(given.args) > 1 else given.named.get("temperature", 1.0))


TOKEN_PROBABILITIES = Contract(
    inputs=draw,
    judge=Returns(oracle, own=True, wrong=wrong),
    passed="Right, token by token, in 200 random settings: ties, exact fits, tails of 1e-9, "
    "vocabularies of up to 70,000 tokens, arguments left out.",
    clauses={
        "form": Clause(
            "{says} Expected a float32 tensor [vocab] of probabilities.",
            "Is something divided by 0, or are all logits filtered out?",
        ),
        "sum": Clause(
            "Your probabilities add up to {says}; expected 1.",
            "Set filtered *logits* to -inf before the softmax, or divide by the sum at the end.",
        ),
        "many": Clause(
            "Too many tokens keep a probability. {says}",
            "Top-k keeps k tokens. Top-p "
            "keeps a token while the sum of those *before* it, largest first, is below "
            "top_p. Greedy keeps one.",
        ),
        "few": Clause(
            "Too few tokens keep a probability: {says}",
            "Top-k keeps k tokens. Top-p "
            "keeps a token while the sum of those *before* it, largest first, is below "
            "top_p; 1 keeps all, and needs no sum.",
        ),
        "others": Clause(
            "The right number of tokens, but not the most likely ones.",
            "Entry i is the probability of token i: sort, and undo the sort at the end.",
        ),
        "values": Clause(
            "The right tokens, with wrong probabilities. {says}",
            "First `logits / temperature`, then the filters; what is left is renormalised.",
        ),
    },
    mistakes=MISTAKES,
    examples=200,
)
