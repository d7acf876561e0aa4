"""What learners' loops get wrong, and the words for it: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_01.greedy_loop import draw, play, right_loop

CLAUSES = {
    "tensor": Clause(
        "The model takes a tensor of token ids, of shape [T].", "`model(torch.tensor(token_ids))`."
    ),
    "batch": Clause(
        "The model takes token ids of shape [T], without a batch dimension; {got} came.",
        "`model(torch.tensor(token_ids))`, no `[None]`, no extra brackets.",
    ),
    "end": Clause(
        "Your loop does not stop: {got} of the model; expected {expected}.",
        "Leave the loop after max_tokens new tokens or after an EOS token, whichever comes first.",
    ),
    "text": Clause(
        "The model must be given the whole text so far: {expected}, not {got}.",
        "Without a KV cache, feed the prompt and all new tokens in each step.",
    ),
    "ints": Clause(
        "Expected a list of plain ints; you returned {got}.",
        "`int(logits[-1].argmax())` makes a plain int of a tensor.",
    ),
    "result": Clause(
        "These are not the tokens that greedy decoding gives. {says}",
        "The argmax of the *last* row, until max_tokens new tokens, or a new one that "
        "is in `eos_token_ids`.",
    ),
    "own": Clause(
        "A later call changes the list that you returned.",
        "Begin a new list in each call: `new_token_ids = []`.",
    ),
    "calls": Clause(
        "The tokens are right, but there were {got}. One call per new token is enough.",
        "Do not call the model after the last token.",
    ),
    "changes": Clause(
        "Your function changes the caller's prompt or EOS set.",
        "Work on a copy: `token_ids = list(prompt_token_ids)`.",
    ),
}


def but(
    stop: str = "right", count: int = 0, row: int = -1, feed: str = "all", result: str = "new"
) -> Callable[..., list[int]]:
    """The loop with one thing changed."""

    def generate(model: Any, prompt: list[int], max_tokens: int, eos: set[int]) -> list[int]:
        new: list[int] = []
        ends = {"max": {max(eos, default=-1)}, "min": {min(eos, default=-1)}, "never": set()}
        most = max_tokens + count - (len(prompt) if result == "counted" else 0)
        while len(new) < most:
            fed = {"newest": new[-1:] or prompt, "prompt": prompt}.get(feed, [*prompt, *new])
            new.append(int(model(torch.tensor(fed))[row].argmax()))
            if stop == "any" and eos & {*prompt, *new}:
                break
            if new[-1] in ends.get(stop, eos) and not (stop == "not the first" and len(new) == 1):
                new = new[:-1] if stop == "dropped" else new
                break
        return [*prompt, *new] if result == "with prompt" else new

    return generate


MISTAKES = (
    mistake(
        "Generation goes on after the EOS token.",
        "After adding a token, leave the loop if `token in eos_token_ids`.",
        but("never"),
    ),
    mistake(
        "Only one of several EOS tokens ends your text.",
        "`token in eos_token_ids`.",
        but("max"),
        but("min"),
    ),
    mistake(
        "The very first new token can be EOS, too.",
        "Ask after *each* new token.",
        but("not the first"),
    ),
    mistake(
        "The EOS token is missing at the end. vLLM and transformers both return it, so that "
        "the caller can see why generation stopped.",
        "Append the token first, then ask whether it is an EOS token.",
        but("dropped"),
    ),
    mistake(
        "Your loop stops because the *prompt* contains an EOS token. Chat prompts do: each "
        "turn ends with one.",
        "Ask about the new token only, not about the whole list.",
        but("any"),
    ),
    mistake(
        "Too many tokens: max_tokens is off by one.",
        "`for _ in range(max_tokens)` runs exactly max_tokens times.",
        but(count=1),
    ),
    mistake(
        "Too few tokens. Do you count the prompt as part of max_tokens?",
        "max_tokens limits the *new* tokens.",
        but(count=-1),
        but(result="counted"),
        but(result="counted", count=1),
    ),
    mistake(
        "Your list begins with the prompt. Return the new tokens only.",
        "`token_ids[len(prompt_token_ids):]`, or collect new tokens in a list of their own.",
        but(result="with prompt"),
    ),
    mistake(
        "You read the logits of the first position. The next token follows from the last one.",
        "`logits[-1]`: row t predicts token t + 1.",
        but(row=0),
    ),
    mistake(
        "After the first step the model sees only the newest token: it has forgotten the prompt.",
        "Without a KV cache, feed the prompt and everything generated so far in each step.",
        but(feed="newest"),
    ),
    mistake(
        "Every step sees only the prompt: the new token is not appended to the model's input.",
        "Append the new token before the next step.",
        but(feed="prompt"),
    ),
)

GENERATE = Contract(
    inputs=draw,
    judge=InLockstep(play, right_loop),
    passed="Right on 150 random requests, with one call of the model per new token.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
)
