"""What is learned: labels (exercise 3), and the loss over them (exercise 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.lab_10 import pictures
from utils.checks.lab_10.gradients import Differentiable, Near, Wanted, pulled

IGNORE = -100

# Exercise 3


def draw_texts(c: Choices) -> Given:
    """Texts of any length, also empty; ids above 65,535; an end token that also stands inside."""

    def token() -> int:
        return c.size(0, 200_000, 9)

    prompt, answer = c.some(token, 0, 9), c.some(token, 0, 9)
    if c.rarely(8):
        prompt = prompt * c.integer(1, 300)
    return Given(prompt, answer, c.pick((2, token(), *prompt[:1], *answer[-1:])))


def row_of(prompt_ids: list[int], answer_ids: list[int], eos_token_id: int) -> Any:
    """Place by place."""
    pairs = [(token, IGNORE) for token in prompt_ids]
    pairs += [(token, token) for token in (*answer_ids, eos_token_id)]
    return [token for token, _ in pairs], [label for _, label in pairs]


def _wrong_lists(expected: Any, got: Any, given: Given) -> Fault | None:
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or not all(isinstance(row, list) for row in got):
        return Fault("form", "", "two lists", got)
    got = tuple(got)
    if got == tuple(expected):
        return None
    clause = "labels" if got[0] == expected[0] else "ids"
    if len(got[0]) != len(got[1]):
        clause = "lengths"
    words = [f"input_ids `{_short(ids)}`\nlabels `{_short(row)}`" for ids, row in (expected, got)]
    return Fault(
        clause,
        "",
        expected,
        got,
        words=(words[0], words[1]),
        picture=lambda: (
            pictures.labels(expected, got),
            "Each token that is read, with its label: expected and yours.",
        ),
    )


def _short(row: list[int]) -> str:
    return str(row) if len(row) <= 24 else f"[{', '.join(map(str, row[:20]))}, ...] ({len(row)})"


def _put(labels: Callable[..., Any], ids: Callable[..., Any] | None = None) -> Callable[..., Any]:
    return lambda p, a, e: (ids(p, a, e) if ids else [*p, *a, e], labels(p, a, e))


def _masked(p: list[int], a: list[int], e: int) -> list[int]:
    return [IGNORE] * len(p) + [*a, e]


MAKE_LABELS = Contract(
    inputs=draw_texts,
    judge=Returns(row_of, own=True, wrong=_wrong_lists),
    passed="All is read; only the answer and the end token are learned.",
    clauses={
        "form": Clause("Your function must return two lists: input_ids and labels."),
        "lengths": Clause(
            "The two lists are not equally long. Each token that is read needs a label.",
            "One -100 for each token of the prompt.",
        ),
        "ids": Clause("`input_ids` are not the prompt, the answer and the end token."),
        "labels": Clause(
            "The labels are wrong: -100 for each token of the prompt, the token "
            "itself for the answer and the end token.",
            "The place decides.",
        ),
    },
    mistakes=(
        mistake(
            "The end token is missing. The model would never learn to stop.",
            "Put `eos_token_id` behind the answer, in both lists.",
            lambda p, a, e: ([*p, *a], [IGNORE] * len(p) + a),
        ),
        mistake(
            "The end token is read, but not learned. The model would never learn to stop.",
            "The label of the last token is `eos_token_id`, not -100.",
            _put(lambda p, a, e: [IGNORE] * len(p) + [*a, IGNORE]),
            _put(lambda p, a, e: [IGNORE if t == e else t for t in _masked(p, a, e)]),
        ),
        mistake(
            "The prompt is learned, too: its labels are not -100. The model would learn to "
            "write customers' messages.",
            "The first `len(prompt_ids)` labels are -100.",
            _put(lambda p, a, e: [*p, *a, e]),
        ),
        mistake(
            "It is the wrong way round: the prompt is learned, and the answer is not.",
            "-100 stands where nothing is learned: on the prompt.",
            _put(lambda p, a, e: [*p] + [IGNORE] * (len(a) + 1)),
        ),
        mistake(
            "One label too many is -100: the first token of the answer is never learned.",
            "As many -100 as the prompt has tokens.",
            _put(lambda p, a, e: [IGNORE] * (len(p) + 1) + [*a, e][1:]),
        ),
        mistake(
            "One label too few is -100: the last token of the prompt is learned.",
            "As many -100 as the prompt has tokens.",
            _put(lambda p, a, e: [IGNORE] * (len(p) - 1) + [*p, *a, e][len(p) - 1 :]),
        ),
        mistake(
            "The labels are shifted by one already. The loss will shift them (exercise 4), so "
            "they would be shifted twice.",
            "A label stands at the place of its own token.",
            _put(lambda p, a, e: [*_masked(p, a, e)[1:], IGNORE]),
        ),
        mistake(
            "Tokens of the answer are masked because they also stand in the prompt. Answers "
            "copy from the prompt all the time.",
            "The place decides, not the token.",
            _put(lambda p, a, e: [IGNORE if t in p else t for t in [*p, *a, e]]),
        ),
        mistake(
            "-100 stands in `input_ids`, too. Both names mean the same list, so masking one "
            "masks both.",
            "Make a list of its own for the labels: `labels = list(input_ids)`.",
            _put(_masked, _masked),
        ),
        mistake(
            "The two lists are swapped.",
            "`return input_ids, labels`.",
            _put(lambda p, a, e: [*p, *a, e], _masked),
        ),
    ),
)

# Exercise 4


def draw_loss(c: Choices) -> Given:
    """Texts of any length, wide vocabularies, first places with a label, large and low logits."""
    batch, length = c.integer(1, 3), 1 + c.size(1, 70)
    vocab_size = 70_000 if c.rarely(30) else 1 + c.size(1, 40)
    length = min(length, 5) if vocab_size > 1000 else length
    dtype = c.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    logits = tensor(c, (batch, length, vocab_size), (dtype,))
    labels = torch.full((batch, length), IGNORE)
    learned = c.pick((2, 1, 4))
    for row in range(batch):
        for place in range(length):
            if c.rarely(learned):
                labels[row, place] = c.integer(0, vocab_size - 1)
    if (labels[:, 1:] == IGNORE).all():
        labels[-1, c.integer(1, length - 1)] = c.integer(0, vocab_size - 1)
    return Given(logits, labels)


def token_by_token(logits: Tensor, labels: Tensor) -> Tensor:
    """In double precision."""
    terms = []
    for row, place in (labels != IGNORE).nonzero().tolist():
        if place > 0:
            scores = logits[row, place - 1].double()
            terms.append(scores.logsumexp(0) - scores[labels[row, place]])
    return torch.stack(terms).mean()


def wanted_loss(logits: Tensor, labels: Tensor) -> Wanted:
    exact = logits.detach().double().requires_grad_()
    loss = token_by_token(exact, labels)
    (loss * pulled(loss)).backward()
    assert exact.grad is not None
    rounding = 1e-6 * logits.detach().double().abs().max()
    output = Near(loss.detach().float(), 1e-5 * loss.detach().abs() + rounding + 1e-6)
    per_token = (rounding + 1e-5) / (labels[:, 1:] != IGNORE).sum()
    tolerance = 4 * torch.finfo(logits.dtype).eps * exact.grad.abs() + 2 * per_token
    return Wanted(output, {"logits": Near(exact.grad.to(logits.dtype), tolerance)})


def _mean(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def _shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1].float(), labels[:, 1:]


def _per_text(logits: Tensor, labels: Tensor) -> Tensor:
    pairs = zip(*_shifted(logits, labels), strict=True)
    return torch.stack([_mean(x[None], y[None]) for x, y in pairs]).mean()


def _naive(logits: Tensor, labels: Tensor) -> Tensor:
    logits, labels = _shifted(logits, labels)
    right, odds = labels != IGNORE, logits.exp()
    picked = (odds / odds.sum(-1, keepdim=True))[right].gather(1, labels[right][:, None])
    return -picked.log().mean()


def _place_by_place(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over all places, learned or not, by their number."""
    logits, labels = _shifted(logits, labels)
    return _mean(logits, labels, reduction="sum") / labels.numel()


_SHIFT = "`logits[:, :-1]` predict `labels[:, 1:]`."
ANSWER_LOSS = Contract(
    inputs=draw_loss,
    judge=Differentiable(wanted_loss),
    passed="Shifted by one, -100 passed over, one mean over all learned tokens, in float32. The "
    "last token of the prompt is where the first token of the answer is predicted.",
    clauses={
        "returns": Clause("This is not the mean of -log p over all learned tokens. {says}", _SHIFT),
        "no gradient": Clause(
            "The loss has no gradient: nothing could be learned from it.",
            "`.item()`, `.detach()`, `torch.tensor(...)` and `no_grad` cut it off.",
        ),
        "gradient": Clause(
            "The loss is right, but its gradient is not: a part of the way is cut off.",
            "`.detach()`, `.data` and `no_grad`.",
        ),
    },
    mistakes=(
        mistake(
            "The shift is missing: you compare the logits at a position with the token at the "
            "same position, which the model has just read.",
            _SHIFT,
            lambda x, y: _mean(x.float(), y),
        ),
        mistake(
            "The shift is the wrong way round: you compare with the token *before*.",
            _SHIFT,
            lambda x, y: _mean(x[:, 1:].float(), y[:, :-1]),
        ),
        mistake(
            "The texts are joined before the shift. So the last place of one text is asked for "
            "the first token of the next.",
            "Shift first, join afterwards. " + _SHIFT,
            lambda x, y: _mean(x.float().flatten(0, 1)[None, :-1], y.flatten()[None, 1:]),
        ),
        mistake(
            "The exponential of a logit above 88 is infinite in float32, that of one below "
            "-104 is zero.",
            "`F.cross_entropy`, `log_softmax` and `logsumexp` subtract the largest logit first.",
            _naive,
        ),
        mistake(
            "You divide by all places, also those that are not learned (-100).",
            "The mean is over the labels that are not -100.",
            _place_by_place,
        ),
        mistake(
            "You average per text first. A token of a short answer then weighs more than one "
            "of a long answer.",
            "One mean over all learned tokens of the batch.",
            _per_text,
        ),
        mistake(
            "Labels of -100 are learned as token 0.",
            "They must not count.",
            lambda x, y: _mean(*_shifted(x, y.clamp(min=0))),
        ),
        mistake(
            "You return the sum, so a batch with more tokens has a larger loss.",
            "Take the mean.",
            lambda x, y: _mean(*_shifted(x, y), reduction="sum"),
        ),
        mistake(
            "A softmax is applied twice. `cross_entropy` takes logits, and contains it.",
            "Give the logits as they are.",
            lambda x, y: _mean(_shifted(x, y)[0].softmax(-1), y[:, 1:]),
        ),
        mistake(
            "The loss is computed in 16 bits: too coarse for a logarithm.",
            "`logits.float()` before the loss; afterwards it is too late.",
            lambda x, y: _mean(x[:, :-1], y[:, 1:]),
            lambda x, y: _mean(x[:, :-1], y[:, 1:]).float(),
        ),
    ),
)
