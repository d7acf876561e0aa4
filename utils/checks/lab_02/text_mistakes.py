"""What learners' loops get wrong, and the words for it: exercise 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_02.text_play import draw_request, play, right_loop

PLACE = "The first new token stands at position `kv_cache.num_tokens`."
ONCE = (
    "First the prompt; its last row of logits gives the first new token; then each new token once."
)

CLAUSES = {
    "tensors": Clause(
        "The model takes two tensors of whole numbers, both of shape [T].",
        "`torch.tensor([token])`, `torch.arange(start, end)`.",
    ),
    "reset": Clause(
        "The cache was not reset: the new request would attend to the one before.",
        "`kv_cache.truncate(0)` before the prompt goes in.",
    ),
    "again": Clause(
        "Tokens that were in the cache are recomputed: it saves nothing.",
        "Feed the prompt once, then only the newest token. Empty the cache only at the start.",
    ),
    "tokens": Clause("These are not the tokens that come next: {got}, expected {expected}.", ONCE),
    "positions": Clause("The positions are wrong.", PLACE),
    "ints": Clause("Expected a list of plain ints.", "`int(logits[-1].argmax())`."),
    "result": Clause(
        "These are not the tokens of a loop that recomputes everything. {says}",
        "Stop after max_tokens new tokens, or after a new token that is EOS.",
    ),
    "once more": Clause(
        "The tokens are right, but the model ran once more after the last one.",
        "Stop before you feed a token whose successor nobody asked for.",
    ),
    "changes": Clause(
        "Your function changes the prompt's list or the EOS set. The caller still needs them.",
        "Copy it first: `list(prompt_token_ids)`.",
    ),
}


def _loop(
    feed: str = "newest",
    place: str = "right",
    stop: str = "right",
    count: int = 0,
    emptied: bool = False,
    row: int = -1,
    result: str = "new",
) -> Callable[..., list[int]]:
    """The loop with a mistake in it."""

    def generate(model: Any, cache: Any, prompt: list[int], max_tokens: int, eos: set[int]) -> Any:
        new: list[int] = []
        ids = list(prompt)
        ends = {"max": {max(eos, default=-1)}, "min": {min(eos, default=-1)}, "never": set()}
        cache.truncate(0)
        while len(new) < max_tokens + count:
            if emptied:
                cache.truncate(0)
            start = 0 if place == "zero" or feed == "all" else cache.num_tokens
            start += bool(new) if place == "ahead" else 0
            logits = model(torch.tensor(ids), torch.arange(start, start + len(ids)), cache)
            new.append(int(logits[row].argmax()))
            ids = list(prompt) + new if feed == "all" else new[-1:]
            if new[-1] in ends.get(stop, eos) and not (stop == "not the first" and len(new) == 1):
                new = new[:-1] if stop == "dropped" else new
                break
        return list(prompt) + new if result == "with prompt" else new

    return generate


MISTAKES = (
    mistake(
        "The whole sequence went through the model again, although the cache already holds all "
        "but the newest token.",
        "After the prompt, feed `torch.tensor([token])`: one token per step.",
        _loop(feed="all"),
    ),
    mistake(
        "The cache saves nothing: it is emptied at each step, and earlier tokens are recomputed.",
        "Feed the prompt once, then only the newest token. Empty the cache only at the start.",
        _loop(feed="all", emptied=True),
    ),
    mistake(
        "Positions restart at zero. A new token stands *behind* those in the cache, and RoPE "
        "needs to know.",
        PLACE,
        _loop(place="zero"),
    ),
    mistake("Positions are off by one.", PLACE, _loop(place="ahead")),
    mistake(
        "Generation goes on after the EOS token.",
        "Leave the loop if `token in eos_token_ids`.",
        _loop(stop="never"),
    ),
    mistake(
        "The very first new token can be EOS, too: it comes from the prompt's own pass.",
        "Ask after *each* new token, the first included.",
        _loop(stop="not the first"),
    ),
    mistake(
        "Only one of several EOS tokens ends your text.",
        "`token in eos_token_ids`.",
        _loop(stop="max"),
        _loop(stop="min"),
    ),
    mistake(
        "The EOS token is missing at the end.",
        "Append the token, then ask whether it is EOS.",
        _loop(stop="dropped"),
    ),
    mistake(
        "Too many tokens: max_tokens is off by one.", "`len(new) < max_tokens`.", _loop(count=1)
    ),
    mistake(
        "Too few tokens.", "The prompt's own pass already yields the first token.", _loop(count=-1)
    ),
    mistake(
        "Your list begins with the prompt. Return the new tokens only.",
        "",
        _loop(result="with prompt"),
    ),
    mistake(
        "The next token comes from the first row of logits. The last row belongs to the newest "
        "token.",
        "`logits[-1]`.",
        _loop(row=0),
    ),
)

GENERATE_WITH_CACHE = Contract(
    inputs=draw_request,
    judge=InLockstep(play, right_loop),
    passed="Equal to a loop that recomputes everything, on 150 random requests; each token went "
    "through the model exactly once.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
)
