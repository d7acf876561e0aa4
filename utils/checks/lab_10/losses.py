"""What lab 10 says of the loss: exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.runner import Bug, Case, Mismatch, call, compare
from utils.checks.lab_10.label_masks import IGNORE


def _by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """Token by token, in double precision."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in range(labels.shape[0]):
        for i in range(1, labels.shape[1]):
            if labels[row, i] != IGNORE:
                scores = logits[row, i - 1].double()
                total += scores.logsumexp(0) - scores[labels[row, i]]
                count += 1
    return (total / count).float()


def _case(given: str, labels: list[list[int]], vocab: int = 6, scale: float = 2.0,
          dtype: torch.dtype = torch.float32, above: float = 0.0) -> Case:  # fmt: skip
    tensor = torch.tensor(labels)
    generator = torch.Generator().manual_seed(len(labels) * 100 + tensor.shape[1])
    logits = (torch.randn(*tensor.shape, vocab, generator=generator) * scale + above).to(dtype)
    expected = _by_hand(logits, tensor)
    return Case(given, (logits, tensor), expected, rtol=2e-4, atol=1e-5)


_N = IGNORE
_LOSS_CASES = (
    _case("one text of 3 tokens, labels [[-100, 1, 4]]", [[_N, 1, 4]]),
    _case("labels [[-100, -100, 3, 0, 2]]", [[_N, _N, 3, 0, 2]]),
    _case("two texts, the second one padded: labels [[-100, 1, 2, 3, 4], [-100, 5, -100, -100, "
          "-100]]", [[_N, 1, 2, 3, 4], [_N, 5, _N, _N, _N]]),
    _case("a label at place 0, which no logits predict: [[2, 1, -100, 4]]", [[2, 1, _N, 4]]),
    _case("two texts; the second one has a label at place 0, which no logits predict: "
          "[[-100, 1, 4], [3, 2, -100]]", [[_N, 1, 4], [3, 2, _N]]),
    _case("one text of 3 tokens, all logits near 100: labels [[-100, 1, 4]]", [[_N, 1, 4]],
          above=100.0),
    _case("two texts in bfloat16, with large logits", [[_N, _N, 3, 0, 2], [_N, 5, 4, _N, _N]],
          scale=20.0, dtype=torch.bfloat16),
)  # fmt: skip


def _mean(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=options.pop("ignore", IGNORE),
        **options,
    )  # fmt: skip


def _shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1].float(), labels[:, 1:]


def _per_text(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    return torch.stack(
        [_mean(x[None], y[None]) for x, y in zip(logits, labels, strict=True)]
    ).mean()


def _over_all_places(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    return _mean(logits, labels, reduction="sum") / labels.numel()


def _zeros_learned(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    return _mean(logits, labels.clamp(min=0))


def _twice(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    return _mean(logits.softmax(-1), labels)


def _naive(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    right, odds = labels != IGNORE, logits.exp()
    picked = (odds / odds.sum(-1, keepdim=True))[right].gather(1, labels[right][:, None])
    return -picked.log().mean()


_SHIFT = "`logits[:, :-1]` predict `labels[:, 1:]`."
_LOSS_BUGS = (
    Bug("The shift is missing: you compare the logits at a position with the token at the same "
        "position, which the model has just read.", _SHIFT,
        lambda x, y: _mean(x.float(), y)),
    Bug("The shift is the wrong way round: you compare with the token *before*.", _SHIFT,
        lambda x, y: _mean(x[:, 1:].float(), y[:, :-1])),
    Bug("The texts are joined before the shift. So the last place of one text is asked for the "
        "first token of the next.", "Shift first, join the texts afterwards. " + _SHIFT,
        lambda x, y: _mean(x.float().flatten(0, 1)[None, :-1], y.flatten()[None, 1:])),
    Bug("The exponential of a logit above 88 is infinite in float32.",
        "`F.cross_entropy`, `log_softmax` and `logsumexp` subtract the largest logit first.",
        _naive),
    Bug("The shift is two places.", "Shift here only, by one. " + _SHIFT,
        lambda x, y: _mean(x[:, :-2].float(), y[:, 2:])),
    Bug("You divide by all places, also those that are not learned (-100).",
        "The mean is over the labels that are not -100.", _over_all_places),
    Bug("You average per text first. A token of a short answer then weighs more than one of a long "
        "answer.", "One mean over all learned tokens of the batch.", _per_text),
    Bug("Labels of -100 are learned as token 0.", "They must not count: `ignore_index=-100`.",
        _zeros_learned),
    Bug("You return the sum, so a batch with more tokens has a larger loss.", "Take the mean.",
        lambda x, y: _mean(*_shifted(x, y), reduction="sum")),
    Bug("A softmax is applied twice. `cross_entropy` takes logits, and contains it.",
        "Give the logits as they are.", _twice),
    Bug("The logarithm is to base 2. The loss is in nats.", "Use the natural logarithm.",
        lambda x, y: _mean(*_shifted(x, y)) / torch.log(torch.tensor(2.0))),
    Bug("The loss is computed in bfloat16, with 8 bits of precision.",
        "`logits.float()` before the loss.",
        lambda x, y: _mean(x[:, :-1], y[:, 1:])),
    Bug("The loss is computed in bfloat16, with 8 bits of precision.",
        "`logits.float()` before the loss; afterwards it is too late.",
        lambda x, y: _mean(x[:, :-1], y[:, 1:]).float()),
    Bug("The sign is wrong: this is the mean log-probability, which training would make smaller.",
        "The loss is the *negative* log-probability.", lambda x, y: -_mean(*_shifted(x, y))),
    Bug("You return the perplexity. The loss is its logarithm.", "Leave out the exponential.",
        lambda x, y: _mean(*_shifted(x, y)).exp()),
)  # fmt: skip


def judge_answer_loss(function: Callable[..., Tensor]) -> str:
    """Check `answer_loss(logits, labels)`."""
    compare(function, _LOSS_CASES, _LOSS_BUGS)
    logits, labels = _LOSS_CASES[1].args
    logits = logits.clone().requires_grad_()
    loss = call(function, logits, labels, given=_LOSS_CASES[1].given)
    if not loss.requires_grad:
        raise Mismatch(
            "The loss has no gradient: nothing could be learned from it.",
            look="`.item()`, `.detach()`, `torch.tensor(...)` and `no_grad` cut it off.",
        )
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1:4].any() and not logits.grad[0, [0, 4]].any()
    return (
        "Shifted by one, -100 passed over, one mean over all learned tokens, in float32. The "
        "last token of the prompt is where the first token of the answer is predicted."
    )
