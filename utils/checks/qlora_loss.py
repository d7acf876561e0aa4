"""What lab 10 says of what is learned: exercises 3 (labels) and 4 (the loss)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks import qlora_pictures
from utils.checks.runner import Bug, Case, Mismatch, call, compare

IGNORE = -100
EOS = 2

# Exercise 3

_TEXTS = (([5, 6], [7]), ([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9]), ([3, 5, 3], [3, 5]))
Pair = tuple[list[int], list[int]]


def _pair(prompt: list[int], answer: list[int]) -> Pair:
    return [*prompt, *answer, EOS], [IGNORE] * len(prompt) + [*answer, EOS]


def _put(ids: Callable[[list[int], list[int]], list[int]],
         labels: Callable[[list[int], list[int]], list[int]]) -> Callable[..., Pair]:  # fmt: skip
    return lambda p, a: (ids(p, a), labels(p, a))


def _ids(p: list[int], a: list[int]) -> list[int]:
    return [*p, *a, EOS]


_LABEL_MISTAKES: tuple[tuple[Callable[..., Pair], str, str], ...] = (
    (_put(lambda p, a: [*p, *a], lambda p, a: [IGNORE] * len(p) + a),
     "The end token is missing. The model would never learn to stop.",
     "Put `eos_token_id` behind the answer, in both lists."),
    (_put(_ids, lambda p, a: [IGNORE] * len(p) + [*a, IGNORE]),
     "The end token is read, but not learned. The model would never learn to stop.",
     "The label of the last token is `eos_token_id`, not -100."),
    (_put(_ids, _ids),
     "The prompt is learned, too: its labels are not -100. The model would learn to write "
     "customers' messages.", "The first `len(prompt_ids)` labels are -100."),
    (_put(_ids, lambda p, a: [*p] + [IGNORE] * (len(a) + 1)),
     "It is the wrong way round: the prompt is learned, and the answer is not.",
     "-100 stands where nothing is learned: on the prompt."),
    (_put(_ids, lambda p, a: [IGNORE] * (len(p) + 1) + [*a[1:], EOS]),
     "One label too many is -100: the first token of the answer is never learned.",
     "As many -100 as the prompt has tokens."),
    (_put(_ids, lambda p, a: [IGNORE] * (len(p) - 1) + [p[-1], *a, EOS]),
     "One label too few is -100: the last token of the prompt is learned.",
     "As many -100 as the prompt has tokens."),
    (_put(_ids, lambda p, a: [IGNORE] * (len(p) - 1) + [*a, EOS, IGNORE]),
     "The labels are shifted by one already. The loss will shift them (exercise 4), so they would "
     "be shifted twice.", "A label stands at the place of its own token."),
    (_put(_ids, lambda p, a: [0] * len(p) + [*a, EOS]),
     "The prompt's labels are 0. But 0 is a token like any other, so it would be learned.",
     "-100, the number that the loss passes over."),
    (_put(_ids, lambda p, a: [-1] * len(p) + [*a, EOS]),
     "The prompt's labels are -1. The loss passes over -100 only.", "Use -100."),
    (_put(_ids, lambda p, a: [*a, EOS]),
     "The labels are as long as the answer. Each token that is read needs a label.",
     "Begin the labels with one -100 for each token of the prompt."),
    (_put(lambda p, a: [*a, EOS], lambda p, a: [*a, EOS]),
     "The prompt is missing. It is not learned, but it must be read.",
     "`input_ids` are the prompt, the answer and the end token."),
    (_put(_ids, lambda p, a: [IGNORE if t in p else t for t in [*p, *a, EOS]]),
     "Tokens of the answer are masked because they also stand in the prompt. Answers copy from "
     "the prompt all the time.", "The place decides, not the token."),
)  # fmt: skip


def judge_make_labels(function: Callable[..., Pair]) -> str:
    """Check `make_labels(prompt_ids, answer_ids, eos_token_id)`."""
    answers = [_labels(function, p, a) for p, a in _TEXTS]
    for (prompt, answer), got in zip(_TEXTS, answers, strict=True):
        expected = _pair(prompt, answer)
        if got == expected:
            continue
        says, look = "The lists are not as expected.", ""
        for wrong, words, where in _LABEL_MISTAKES:
            if all(wrong(p, a) == g for (p, a), g in zip(_TEXTS, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_given(prompt, answer),
            expected=f"input_ids `{expected[0]}`\nlabels `{expected[1]}`",
            got=f"input_ids `{got[0]}`\nlabels `{got[1]}`", look=look,
            figure=qlora_pictures.labels(expected, got),
            alt="Each token that is read, with its label: expected and yours.",
        )  # fmt: skip
    return "All is read; only the answer and the end token are learned."


def _given(prompt: list[int], answer: list[int]) -> str:
    return f"prompt_ids {prompt}, answer_ids {answer}, eos_token_id {EOS}"


def _labels(function: Callable[..., Pair], prompt: list[int], answer: list[int]) -> Pair:
    p, a = list(prompt), list(answer)
    got: Any = call(function, p, a, EOS, given=_given(prompt, answer))
    if (p, a) != (prompt, answer):
        raise Mismatch(
            "Your function changes its arguments.", input=_given(prompt, answer),
            look="`prompt_ids += ...` and `.append` write into the caller's list.",
        )  # fmt: skip
    if isinstance(got, tuple | list) and len(got) == 2:
        lists = [x.tolist() if isinstance(x, Tensor) else x for x in got]
        if all(isinstance(x, list | tuple) for x in lists):
            return list(lists[0]), list(lists[1])
    raise Mismatch(
        "Your function must return two lists: input_ids and labels.", input=_given(prompt, answer)
    )


# Exercise 4


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
          dtype: torch.dtype = torch.float32) -> Case:  # fmt: skip
    tensor = torch.tensor(labels)
    generator = torch.Generator().manual_seed(len(labels) * 100 + tensor.shape[1])
    logits = (torch.randn(*tensor.shape, vocab, generator=generator) * scale).to(dtype)
    expected = _by_hand(logits, tensor)
    return Case(given, (logits, tensor), expected, rtol=2e-4, atol=1e-5)


_N = IGNORE
_LOSS_CASES = (
    _case("one text of 3 tokens, labels [[-100, 1, 4]]", [[_N, 1, 4]]),
    _case("labels [[-100, -100, 3, 0, 2]]", [[_N, _N, 3, 0, 2]]),
    _case("two texts, the second one padded: labels [[-100, 1, 2, 3, 4], [-100, 5, -100, -100, "
          "-100]]", [[_N, 1, 2, 3, 4], [_N, 5, _N, _N, _N]]),
    _case("a label at place 0, which no logits predict: [[2, 1, -100, 4]]", [[2, 1, _N, 4]]),
    _case("the same in bfloat16, with large logits", [[_N, _N, 3, 0, 2], [_N, 5, 4, _N, _N]],
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


_SHIFT = "`logits[:, :-1]` predict `labels[:, 1:]`."
_LOSS_BUGS = (
    Bug("The shift is missing: you compare the logits at a position with the token at the same "
        "position, which the model has just read.", _SHIFT,
        lambda x, y: _mean(x.float(), y)),
    Bug("The shift is the wrong way round: you compare with the token *before*.", _SHIFT,
        lambda x, y: _mean(x[:, 1:].float(), y[:, :-1])),
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
