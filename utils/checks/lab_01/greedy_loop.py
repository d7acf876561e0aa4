"""What lab 01 says of the loop that generates token by token: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.runner import Mismatch, call
from utils.checks.kit.tiny_model import TinyModel


def judge_generate(function: Callable[..., list[int]]) -> str:
    """Check `generate(model, prompt_token_ids, max_tokens, eos_token_ids) -> list[int]`."""
    tiny = TinyModel()
    long = tiny.greedy([3, 1, 4, 1, 5], 8)
    stop = next(t for i, t in enumerate(long[1:6], 1) if t not in long[:i])
    free = set(range(tiny.vocab_size)) - set(long) - {3, 1, 4, 5}
    low, high = min(free), max(free)
    prompt = [3, 1, 4, 1, 5]
    with_eos = [low, 3, 1]
    cases: list[tuple[str, list[int], int, set[int]]] = [
        ("prompt [7], max_tokens 1, no EOS", [7], 1, set()),
        (f"prompt {prompt}, max_tokens 8, no EOS", prompt, 8, set()),
        (f"prompt {prompt}, max_tokens 8, EOS {stop}", prompt, 8, {stop}),
        (f"prompt {prompt}, max_tokens 8, EOS {low} or {stop}", prompt, 8, {low, stop}),
        (f"prompt {prompt}, max_tokens 8, EOS {stop} or {high}", prompt, 8, {stop, high}),
        (f"prompt {with_eos} (it contains EOS), max_tokens 4, EOS {low}", with_eos, 4, {low}),
    ]
    for given, prompt, max_tokens, eos in cases:
        expected = tiny.greedy(prompt, max_tokens, eos)
        model = _CountedModel(tiny, limit=max_tokens + 2, eos=eos)
        given_prompt = list(prompt)
        got = call(function, model, given_prompt, max_tokens, eos, given=given)
        if given_prompt != prompt:
            raise Mismatch(
                "Your function changes the caller's prompt: it appended to the list it was given.",
                input=given, expected=f"`{prompt}`", got=f"`{given_prompt}`",
                look="Work on a copy: `token_ids = list(prompt_token_ids)`.",
            )  # fmt: skip
        _judge_tokens(tiny, given, prompt, max_tokens, eos, expected, got)
        if len(model.calls) != len(expected):
            raise Mismatch(
                f"The tokens are right, but the model ran {len(model.calls)} times for "
                f"{len(expected)} new tokens. One call per new token is enough.",
                input=given, look="Do not call the model again after the last token.",
            )  # fmt: skip
    return "Equal to Hugging Face `generate(do_sample=False)` on 6 inputs, with one call per token."


class _CountedModel:
    """The `model` that the learner's loop calls: checks its input, counts, refuses to run on."""

    def __init__(self, tiny: TinyModel, limit: int, eos: set[int]) -> None:
        self.calls: list[list[int]] = []
        self._tiny, self._limit, self._eos = tiny, limit, eos

    def __call__(self, token_ids: Tensor) -> Tensor:
        if not isinstance(token_ids, Tensor):
            raise Mismatch(
                f"The model was given a {type(token_ids).__name__}; it takes a tensor.",
                look="`model(torch.tensor(token_ids))`.",
            )
        if token_ids.dim() != 1:
            raise Mismatch(
                f"The model was given token ids of shape {tuple(token_ids.shape)}; it takes [T], "
                "without a batch dimension.",
                look="`model(torch.tensor(token_ids))`, no `[None]` and no extra brackets.",
            )
        if len(self.calls) >= self._limit:
            raise Mismatch(
                f"Your loop does not stop: it called the model more than {self._limit} times.",
                look="Leave the loop after max_tokens new tokens or after an EOS token, "
                "whichever comes first.",
            )
        self.calls.append(token_ids.tolist())
        return self._tiny(token_ids)


def _judge_tokens(
    tiny: TinyModel, given: str, prompt: list[int], max_tokens: int, eos: set[int],
    expected: list[int], got: Any,
) -> None:  # fmt: skip
    """Compare token lists, and name the mistake."""
    if not isinstance(got, list) or not all(isinstance(t, int) for t in got):
        kind = f"a list of {type(got[0]).__name__}" if isinstance(got, list) and got else repr(got)
        raise Mismatch(
            f"Expected a list of plain ints; you returned {kind}.",
            input=given, expected=f"`{expected}`",
            look="`int(logits[-1].argmax())` makes a plain int of a tensor.",
        )  # fmt: skip
    if got == expected:
        return
    free = tiny.greedy(prompt, max_tokens + 1)
    ends = expected[-1] in eos
    first, last_only = _replay(tiny, prompt, len(got), 0), _replay_last(tiny, prompt, len(got))
    known = [
        (got == prompt + expected,
         "Your list begins with the prompt. Return the new tokens only.",
         "`token_ids[len(prompt_token_ids):]`, or collect new tokens in a list of their own."),
        (got == free[: len(got)] and ends and len(got) > len(expected),
         "Generation goes on after the EOS token.",
         "After adding a token, leave the loop if `token in eos_token_ids`."),
        (ends and got == expected[:-1],
         "The EOS token is missing at the end. vLLM and transformers both return it, so that the "
         "caller can see why generation stopped.",
         "Append the token first, then ask whether it is an EOS token."),
        (bool(set(prompt) & eos) and len(got) < len(expected),
         "Your loop stops because the *prompt* contains an EOS token. Chat prompts do: each turn "
         "ends with one.",
         "Ask about the new token only, not about the whole list."),
        (len(got) == max_tokens + 1 and got == free,
         "One token too many: max_tokens is off by one.",
         "`for _ in range(max_tokens)` runs exactly max_tokens times."),
        (len(got) < len(expected) and got == expected[: len(got)],
         f"Too few tokens: {len(got)} instead of {len(expected)}. Do you count the prompt as part "
         "of max_tokens?",
         "max_tokens limits the *new* tokens."),
        (got == first,
         "You read the logits of the first position. The next token follows from the last one.",
         "`logits[-1]`: row t predicts token t + 1."),
        (got == last_only,
         "After the first step the model sees only the newest token: it has forgotten the prompt.",
         "Without a KV cache, feed the prompt and everything generated so far in each step."),
        (got == _replay(tiny, prompt, len(got), None),
         "Every step sees only the prompt: the new token is not appended to the model's input.",
         "Append the new token to `token_ids` before the next step."),
    ]  # fmt: skip
    for matches, says, look in known:
        if matches:
            raise Mismatch(says, input=given, expected=f"`{expected}`", got=f"`{got}`", look=look)
    raise Mismatch(
        "The tokens differ from Hugging Face `generate`.",
        input=given, expected=f"`{expected}`", got=f"`{got}`",
        look="The next token is the argmax of the last row of logits.",
    )  # fmt: skip


def _replay(tiny: TinyModel, prompt: list[int], steps: int, row: int | None) -> list[int]:
    """Tokens of a loop that reads the wrong row, or (row None) never extends its input."""
    tokens = list(prompt)
    for _ in range(steps):
        logits = tiny(torch.tensor(tokens if row is not None else prompt))
        tokens.append(int(logits[-1 if row is None else row].argmax()))
    return tokens[len(prompt) :]


def _replay_last(tiny: TinyModel, prompt: list[int], steps: int) -> list[int]:
    """Tokens of a loop that feeds the prompt once and single tokens afterwards."""
    fed, out = list(prompt), []
    for _ in range(steps):
        fed = [int(tiny(torch.tensor(fed))[-1].argmax())]
        out += fed
    return out
