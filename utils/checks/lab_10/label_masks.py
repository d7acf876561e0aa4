"""What lab 10 says of labels, which say what is learned: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_10 import pictures

IGNORE = -100
EOS = 2

_TEXTS = (([5, 6], [7]), ([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9]), ([3, 5, 3], [3, 5]))
Pair = tuple[list[int], list[int]]


def _pair(prompt: list[int], answer: list[int]) -> Pair:
    return [*prompt, *answer, EOS], [IGNORE] * len(prompt) + [*answer, EOS]


def _put(ids: Callable[[list[int], list[int]], list[int]],
         labels: Callable[[list[int], list[int]], list[int]]) -> Callable[..., Pair]:  # fmt: skip
    return lambda p, a: (ids(p, a), labels(p, a))


def _ids(p: list[int], a: list[int]) -> list[int]:
    return [*p, *a, EOS]


def _masked(p: list[int], a: list[int]) -> list[int]:
    return [IGNORE] * len(p) + [*a, EOS]


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
    (_put(_masked, _masked),
     "-100 stands in `input_ids`, too. Both names mean the same list, so masking one masks both.",
     "Make a list of its own for the labels: `labels = list(input_ids)`."),
    (_put(_masked, _ids), "The two lists are swapped.", "`return input_ids, labels`."),
    (_put(lambda p, a: [*p, EOS, *a, EOS], lambda p, a: [IGNORE] * (len(p) + 1) + [*a, EOS]),
     "There is an end token between prompt and answer, too. It belongs behind the answer only.",
     "`input_ids` are the prompt, the answer and the end token."),
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
            figure=pictures.labels(expected, got),
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
