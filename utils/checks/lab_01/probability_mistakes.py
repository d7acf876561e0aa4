"""What learners' filters get wrong, and the words for it: exercise 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.contracts import mistake

BEFORE = (
    "Keep a token while the sum of the tokens *before* it is below top_p: `cumulative - p < top_p`."
)
HEAT = "First `logits / temperature`, then everything else."


def but(
    nucleus: str = "right",
    heat: str = "right",
    greedy: str = "right",
    topk: str = "right",
    order: str = "right",
    end: str = "softmax",
) -> Callable[..., Any]:
    """Temperature, top-k and top-p with one thing changed."""

    def keep_k(x: Tensor, k: int) -> Tensor:
        if k <= 0 or k >= x.numel():
            return torch.ones_like(x, dtype=torch.bool)
        smallest = x.topk(k).values[-1]
        return x > smallest if topk == "fewer" else x >= smallest

    def keep_p(p: Tensor, top_p: float) -> Tensor:
        if nucleus == "unsorted" and top_p < 1:
            return p.cumsum(0) - p < top_p
        values, order = p.sort(descending=True)
        total = values.cumsum(0)
        first = torch.arange(len(values)) == 0
        kept = {
            "drop": total <= top_p,
            "drop but first": (total <= top_p) | first,
            "extra": torch.cat((first[:1], (total - values < top_p)[:-1])),
        }.get(nucleus, total - values < top_p)
        if top_p >= 1 and nucleus != "no guard":
            kept = torch.ones_like(kept)
        return torch.zeros_like(kept).scatter(0, order, kept)

    def probabilities(
        logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
    ) -> Any:
        if temperature == 0 and greedy == "right":
            return F.one_hot(logits.argmax(), logits.numel()).float()
        if temperature == 0 and greedy == "ties":
            best = (logits == logits.max()).float()
            return best / best.sum()
        divisor = 1.0 if greedy == "one" and temperature == 0 else temperature
        divisor = {"times": 1 / divisor if divisor else 1.0}.get(heat, divisor)
        hot = logits if heat.startswith("after") else logits / divisor
        none = torch.tensor(-torch.inf)
        if order == "p first":
            kept = keep_p(hot.softmax(0), top_p)
            kept = kept & keep_k(torch.where(kept, hot, none), top_k)
        else:
            kept = keep_k(hot, top_k)
            kept = kept & keep_p(torch.where(kept, hot, none).softmax(0), top_p)
        out = torch.where(kept, hot, none).softmax(0) if end == "softmax" else hot.softmax(0) * kept
        if end == "divide":
            out = out / out.sum()
        if nucleus == "not scattered" and top_p < 1:
            out = out.sort(descending=True).values
        return out / temperature if heat == "after" else out

    return probabilities


MISTAKES = (
    mistake(
        "Top-p drops the token that crosses the threshold. The nucleus is the *smallest set "
        "that reaches* top_p, so that token belongs to it.",
        BEFORE,
        but("drop"),
        but("drop but first"),
    ),
    mistake(
        "Top-p keeps one token too many: it stops after the sum has been *passed* for a whole "
        "token.",
        BEFORE,
        but("extra"),
    ),
    mistake(
        "`top_p = 1` keeps all. Your sum of many tokens, rounded, reaches 1 before the last "
        "of them.",
        "Filter only `if top_p < 1`.",
        but("no guard"),
    ),
    mistake(
        "Top-p adds up tokens in the order of the vocabulary. It must start with the most "
        "likely one.",
        "Sort by probability, largest first, and take the cumulative sum of that.",
        but("unsorted"),
        but("unsorted", end="divide"),
    ),
    mistake(
        "Your probabilities come out sorted. Entry i must be the probability of token i.",
        "Undo the sort: `torch.zeros_like(p).scatter(0, order, sorted_p)`.",
        but("not scattered"),
    ),
    mistake(
        "The temperature is applied after the softmax. It must divide the *logits*.",
        HEAT,
        but(heat="after"),
        but(heat="after, without effect"),
    ),
    mistake(
        "You multiply by the temperature. A *high* temperature must make the distribution flatter.",
        "`logits / temperature`.",
        but(heat="times"),
    ),
    mistake(
        "Temperature 0 divides by zero, or is treated as 1. It means greedy: all probability "
        "on the largest logit.",
        "Treat 0 on its own, before you divide.",
        but(greedy="divides"),
        but(greedy="one"),
    ),
    mistake(
        "Greedy takes one token, also if several logits are the largest.",
        "`logits.argmax()` is one of them.",
        but(greedy="ties"),
    ),
    mistake(
        "What is left does not add up to 1: renormalise after filtering.",
        "Set filtered *logits* to -inf before the softmax, or divide by the sum at the end.",
        but(end="as it is"),
    ),
    mistake(
        "Top-k keeps one token too few.",
        "Keep logits that are >= the k-th largest, not only those above it.",
        but(topk="fewer"),
    ),
    mistake(
        "Top-p comes before top-k. The order here, as in vLLM and transformers: temperature, "
        "top-k, top-p; top-p then works on what top-k left, renormalised.",
        "Filter with top-k, take the softmax, then find the nucleus.",
        but(order="p first"),
    ),
)
