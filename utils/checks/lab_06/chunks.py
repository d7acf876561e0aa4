"""What lab 06 says of chunked prefill: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import Bare, ask, draw_bare
from utils.engine.request import Request


@dataclass(frozen=True)
class Turn:
    """A request, and what is left of a step's budget when it is its turn."""

    request: Bare
    budget: int
    num_running_after: int

    def __str__(self) -> str:
        after = self.num_running_after
        return f"a request: {self.request}; budget {self.budget}, num_running_after {after}"

    def arguments(self) -> tuple[Request, int, int]:
        return self.request.made("A"), self.budget, self.num_running_after


def draw(c: Choices) -> Turn:
    """Budgets far too small, just too small, exact, and more than enough."""
    request, after = draw_bare(c, 70_000), c.size(0, 300)
    exact = request.lacking + c.pick((0, 0, -1, 1))
    free = c.pick((c.size(1, 70_000), exact, exact + after))
    return Turn(request, after + max(1, free), after)


def chunk(turn: Turn) -> tuple[int, bool]:
    """In ranges: the tokens in reach of the budget, and whether the last one is among them."""
    reach = range(turn.request.computed, turn.request.computed + turn.budget)
    reach = reach[: len(reach) - turn.num_running_after]
    text = range(turn.request.num_tokens)
    return len(reach[: len(text) - reach.start]), text[-1] in reach


def play(stage: Stage, function: Any, turn: Turn) -> None:
    ask(stage, function, turn.arguments, partial(_judge, stage, turn))


def _judge(stage: Stage, turn: Turn, got: Any) -> Any:
    want = chunk(turn)
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or not isinstance(got[0], Integral) or got[1] not in (True, False):
        stage.blame("pair", want, got)
    came = int(got[0]), bool(got[1])
    clause = "tokens"
    if came[0] == want[0]:
        clause = "sampled" if came[1] else "not sampled"
    elif came[0] > turn.request.lacking:
        clause = "too many"
    elif came[0] > turn.budget:
        clause = "beyond the budget"
    stage.expect(clause, want, came, _told, lambda *_: _picture(turn, want[0], came[0]))
    return came


def _told(pair: tuple[int, bool]) -> str:
    return f"{pair[0]} tokens, and {'a' if pair[1] else 'no'} new token is sampled"


def _picture(turn: Turn, want: int, got: int) -> tuple[Figure | None, str]:
    after = {"those after it": turn.num_running_after}
    if turn.budget > 60 or got > 60:
        return None, ""
    figure = pictures.budget(
        [("expected", {"A": want} | after), ("yours", {"A": max(0, got)} | after)],
        list(after),
        turn.budget,
        "What A takes of the budget",
        {"A": want} | after,
    )
    return figure, "The part of the budget that the request takes, expected and yours."


def _in_action(function: Callable[..., tuple[int, bool]]) -> Passed:
    """A long prompt among three answers, step by step, with the learner's function."""
    rows: list[tuple[str, dict[str, int]]] = []
    prompt, complete = Bare(18, 0, 0).made("P"), False
    while not complete:
        count, complete = function(prompt, 8 - 2, 1)
        rows.append((f"step {len(rows) + 1}", {"A": 1, "B": 1, "P": count, "C": 1}))
        prompt.num_computed_tokens += count
    return Passed(
        "Chunks fill the budget, leave a token for each request that follows, and a token is "
        f"sampled when all are computed. Below, a prompt of 18 tokens, P, takes {len(rows)} steps "
        "beside three answers, and none of these has to pause.",
        pictures.budget(
            rows, ["A", "B", "C"], 8, "A long prompt in chunks: no answer has to pause"
        ),
        "Step by step, the chunks of a prompt between the decodes of three requests.",
    )


def _right(request: Request, budget: int, after: int) -> int:
    return min(request.num_tokens - request.num_computed_tokens, budget - after)


def _bug(
    tokens: Callable[[Request, int, int], int] = _right,
    sampled: Callable[[Request, int], bool] | None = None,
) -> Callable[[Request, int, int], tuple[int, bool]]:
    def wrong(request: Request, budget: int, after: int) -> tuple[int, bool]:
        count = tokens(request, budget, after)
        if sampled is not None:
            return count, sampled(request, count)
        return count, count == request.num_tokens - request.num_computed_tokens

    return wrong


def _prompt_left(request: Request) -> int:
    return len(request.prompt_token_ids) - request.num_computed_tokens


MIN = "`min(request.num_tokens - request.num_computed_tokens, budget - num_running_after)`."
COMPLETE = "Only when this chunk is all that the request lacks."
NEXT_CHUNK = Contract(
    inputs=draw,
    judge=InLockstep(play, _bug()),
    passed=_in_action,
    clauses={
        "pair": Clause(
            "Your function returned {got}; expected a pair: how many tokens, and "
            "whether a new token will be sampled.",
            "`return num_new_tokens, is_complete`.",
        ),
        "too many": Clause("The request lacks fewer tokens than it gets.", MIN),
        "beyond the budget": Clause("The chunk is larger than the budget.", MIN),
        "tokens": Clause("The number of tokens is wrong.", MIN),
        "sampled": Clause(
            "A token is sampled though not all tokens are computed. The model would "
            "continue in the middle of the text.",
            COMPLETE,
        ),
        "not sampled": Clause(
            "All tokens are computed, and no new one is sampled. The request would stand still.",
            COMPLETE,
        ),
        "changes": Clause(
            "Your function changes the request. It only says what could be done.",
            "`num_computed_tokens` moves on when the step is booked.",
        ),
    },
    mistakes=(
        mistake(
            "The chunk leaves nothing for the running requests that come after. Their answers "
            "would stand still until the prompt is computed.",
            f"Leave each of them one token: {MIN}",
            _bug(lambda r, b, a: _right(r, b, 0)),
        ),
        mistake(
            "The prompt is not cut: the chunk may be larger than the budget.",
            MIN,
            _bug(lambda r, b, a: _right(r, 10**9, 0)),
        ),
        mistake(
            "What is computed already is counted again.",
            MIN,
            _bug(lambda r, b, a: min(r.num_tokens, b - a)),
        ),
        mistake(
            "A token is sampled after every chunk. Before the prompt is complete, the model "
            "would continue in the middle of the text.",
            COMPLETE,
            _bug(sampled=lambda r, n: True),
        ),
        mistake(
            "A token is sampled as soon as the *prompt* is computed. A request that lost its "
            "blocks must compute its answer so far again, too, before it goes on.",
            "Compare with `num_tokens`, not with the length of the prompt.",
            _bug(sampled=lambda r, n: n >= _prompt_left(r)),
        ),
        mistake(
            "The first token of the answer comes a step too late. The chunk that completes the "
            "prompt gives its logits already.",
            "Look at what is computed *after* this step.",
            _bug(sampled=lambda r, n: _prompt_left(r) <= 0),
        ),
        mistake(
            "Only the prompt is looked at. The tokens of the answer must be computed as well, "
            "and after a preemption all of them again.",
            "`num_tokens` counts both.",
            _bug(lambda r, b, a: min(_prompt_left(r) if _prompt_left(r) > 0 else 1, b - a)),
        ),
        mistake(
            "`num_running_after` is taken from the request's tokens. It belongs to the budget.",
            MIN,
            _bug(lambda r, b, a: min(_right(r, 10**9, 0) - a, b)),
        ),
        mistake(
            "One token of the budget stays unused.", MIN, _bug(lambda r, b, a: _right(r, b, a + 1))
        ),
        mistake(
            "A chunk that fills the budget exactly may be the last one, too.",
            "`==`: the chunk is all that was lacking.",
            lambda r, b, a: (_right(r, b, a), r.num_tokens - r.num_computed_tokens < b - a),
        ),
    ),
)
