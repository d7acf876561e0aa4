"""What lab 01 says of temperature, top-k and top-p: exercise 5."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from utils.checks.kit import model_mistakes, pictures
from utils.checks.kit.runner import Bug, Case, compare


def judge_token_probabilities(function: Callable[..., Tensor]) -> str:
    """Check `token_probabilities(logits [vocab], temperature, top_k, top_p) -> [vocab]`."""

    def case(given: str, logits: Tensor, t: float = 1.0, k: int = 0, p: float = 1.0) -> Case:
        given = f"{given}, temperature {t:g}, top_k {k}, top_p {p:g}"
        return Case(given, (logits, t, k, p), _hf_probabilities(logits, t, k, p))

    three = torch.tensor([1.0, 0.0, 2.0])
    ranked = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    peaked = torch.tensor([0.1, 0.7, 0.2]).log()
    wide = torch.randn(50) * 2
    cases = [
        case("logits [1, 0, 2]", three),
        case("logits [1, 0, 2]", three, t=0.5),
        case("logits [1, 0, 2]", three, t=3.0),
        case("logits [1, 0, 2]", three, t=0.0),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=2),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=9),
        case("probabilities [0.1, 0.7, 0.2]", peaked, p=0.5),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, p=0.6),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, p=0.8),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, t=2.0, p=0.6),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=3, p=0.78),
        case("50 random logits", wide, t=0.7, k=20, p=0.9),
    ]
    bugs = [
        Bug("Top-p drops the token that crosses the threshold. The nucleus is the *smallest set "
            "that reaches* top_p, so that token belongs to it.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="drop")),
        Bug("Top-p drops the token that crosses the threshold, and keeps only the most likely one "
            "as an exception. The nucleus is the *smallest set that reaches* top_p.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="drop but first")),
        Bug("Top-p keeps one token too many: it stops after the sum has been *passed* for a whole "
            "token.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="extra")),
        Bug("Top-p adds up tokens in the order of the vocabulary. It must start with the most "
            "likely one.",
            "Sort by probability, largest first, and take the cumulative sum of that.",
            functools.partial(model_mistakes.probabilities, nucleus="unsorted")),
        Bug("Your probabilities come out sorted. Entry i must be the probability of token i.",
            "Undo the sort: `torch.zeros_like(p).scatter(0, order, sorted_p)`.",
            functools.partial(model_mistakes.probabilities, nucleus="not scattered")),
        Bug("Top-p keeps each token whose own probability is at least 1 - top_p. The nucleus "
            "counts a sum, not single tokens.",
            "Sort, take the cumulative sum, keep the smallest set that reaches top_p.",
            functools.partial(model_mistakes.probabilities, nucleus="single")),
        Bug("Top-p has no effect.",
            "Sort, take the cumulative sum, keep the smallest set that reaches top_p.",
            functools.partial(model_mistakes.probabilities, nucleus="off")),
        Bug("The temperature is applied after the softmax. It must divide the *logits*.",
            "First `logits / temperature`, then everything else.",
            functools.partial(model_mistakes.probabilities, heat="after softmax")),
        Bug("The temperature is applied after the softmax; after renormalising it has no effect.",
            "First `logits / temperature`, then everything else.",
            functools.partial(model_mistakes.probabilities, heat="off")),
        Bug("You multiply by the temperature. A *high* temperature must make the distribution "
            "flatter.",
            "`logits / temperature`.",
            functools.partial(model_mistakes.probabilities, heat="times")),
        Bug("Temperature 0 divides by zero.",
            "Treat 0 on its own: it means greedy, all probability on the largest logit.",
            functools.partial(model_mistakes.probabilities, heat="no zero")),
        Bug("Temperature 0 is treated as temperature 1. It means greedy: all probability on the "
            "largest logit.",
            "Treat 0 on its own, before you divide.",
            functools.partial(model_mistakes.probabilities, heat="zero is one")),
        Bug("What is left does not add up to 1: renormalise after filtering.",
            "Set filtered *logits* to -inf before the softmax, or divide by the sum at the end.",
            functools.partial(model_mistakes.probabilities, normalise=False)),
        Bug("Top-k keeps the k *least* likely tokens.",
            "`torch.topk(logits, k)` gives the largest.",
            functools.partial(model_mistakes.probabilities, topk="smallest")),
        Bug("Top-k keeps one token too many.",
            "Keep logits that are >= the k-th largest.",
            functools.partial(model_mistakes.probabilities, topk="extra")),
        Bug("Top-k keeps one token too few.",
            "Keep logits that are >= the k-th largest, not only those above it.",
            functools.partial(model_mistakes.probabilities, topk="fewer")),
        Bug("Top-k has no effect.",
            "Set every logit below the k-th largest to -inf.",
            functools.partial(model_mistakes.probabilities, topk="off")),
        Bug("Top-p comes before top-k. The order here, as in vLLM and transformers: temperature, "
            "top-k, top-p; top-p then works on what top-k left, renormalised.",
            "Filter with top-k, take the softmax, then find the nucleus.",
            functools.partial(model_mistakes.probabilities, order="p first")),
        Bug("Top-p looks at the probabilities before the temperature.",
            "First `logits / temperature`, then the filters.",
            functools.partial(model_mistakes.probabilities, order="p before heat")),
        Bug("Top-p sums probabilities from before top-k. After top-k they must be renormalised, "
            "so that they add up to 1 again.",
            "Filter with top-k, take the softmax of what is left, then find the nucleus.",
            functools.partial(model_mistakes.probabilities, order="p on old sum")),
    ]  # fmt: skip

    def picture(case: Case, got: Tensor) -> tuple[Figure, str]:
        figure = pictures.bars(
            case.expected, got, "token id", "probability", "The distribution to draw from"
        )
        return figure, "Bars of the expected and of your probabilities."

    compare(function, cases, bugs, picture)
    return "Equal to transformers' temperature, top-k and top-p warpers on 12 settings."


def _hf_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The oracle; greedy at temperature 0, as in vLLM."""
    if temperature == 0.0:
        return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits[None])[0].softmax(-1)
